//! Tables for one scale: one word for a draw, where the scale is drawn from many times.

use num_bigint::BigUint;

use crate::bits::Bits;
use crate::exp::{Enclosure, Ratio, exp_minus};
use crate::noise::{Sampler, signed};
use crate::table::{Law, Table};

/// One half of the discrete Laplace distribution: 0, which has two signs, has half its weight.
pub struct HalfLaplace(Ratio);

impl Law for HalfLaplace {
    fn weight(&self, k: u64, precision: u32) -> Enclosure {
        if k == 0 {
            let half = BigUint::from(1_u8) << (precision - 1);
            return Enclosure { low: half.clone(), high: half };
        }
        exp_minus(&Ratio { over: &self.0.under * k, under: self.0.over.clone() }, precision)
    }
}

/// One half of the rounded Gaussian distribution: the areas from 0 to 1/2, 1/2 to 3/2, 3/2 to 5/2 ..
pub struct HalfGaussian(Ratio);

impl HalfGaussian {
    /// The area from 0 to half of this.
    fn up_to(&self, twice: u64, precision: u32) -> Enclosure {
        area(&Ratio { over: &self.0.under * twice, under: 2_u8 * &self.0.over }, precision)
    }
}

fn between(start: &Enclosure, end: &Enclosure) -> Enclosure {
    Enclosure { low: (&end.low).max(&start.high) - &start.high, high: &end.high - &start.low }
}

impl Law for HalfGaussian {
    fn weight(&self, k: u64, precision: u32) -> Enclosure {
        let end = self.up_to(2 * k + 1, precision);
        if k == 0 { end } else { between(&self.up_to(2 * k - 1, precision), &end) }
    }

    /// Each end once.
    fn weights(&self, entries: u32, precision: u32) -> Vec<Enclosure> {
        let zero = Enclosure { low: BigUint::ZERO, high: BigUint::ZERO };
        let ends = (0..entries).map(|k| self.up_to(2 * u64::from(k) + 1, precision));
        let ends: Vec<_> = [zero].into_iter().chain(ends).collect();
        ends.windows(2).map(|pair| between(&pair[0], &pair[1])).collect()
    }
}

/// The area under exp(-x^2 / 2) from 0 to z.
///
/// It is exp(-z^2 / 2) times the sum of z^(2n + 1) / (1 * 3 * .. * (2n + 1)), as both sides have the
/// same derivative and are 0 at 0. Low ends are rounded down and high ends up; once a term is at most
/// half of the one before it, all that follow have at most its own sum.
fn area(z: &Ratio, precision: u32) -> Enclosure {
    let half_square = Ratio { over: z.over.pow(2), under: 2_u8 * z.under.pow(2) };
    let magnitude = u32::try_from(&half_square.over / &half_square.under).unwrap();
    let width = precision + 32;
    let fixed = |ratio: &Ratio| (&ratio.over << width) / &ratio.under;
    let (first, square) = (fixed(z), fixed(&half_square) << 1_u32);
    let mut term = Enclosure { high: &first + 1_u8, low: first };
    let mut sum = Enclosure { low: BigUint::ZERO, high: BigUint::ZERO };
    let mut odd = 1_u32;
    while term.low != BigUint::ZERO || odd <= 4 * magnitude + 4 {
        sum.low += &term.low;
        sum.high += &term.high;
        odd += 2;
        term.low = ((term.low * &square) >> width) / odd;
        term.high = ((term.high * (&square + 2_u8)) >> width) / odd + 1_u8;
    }
    sum.high += 2_u8 * term.high;
    let power = exp_minus(&half_square, width + 2 * magnitude); // the sum is below e^magnitude z
    let back = 2 * width + 2 * magnitude - precision;
    Enclosure { low: (sum.low * power.low) >> back, high: ((sum.high * power.high) >> back) + 1_u8 }
}

/// Noise from a table of its distribution.
///
/// # Needs
///
/// A scale that is neither small nor large: [`laplace`] and [`gaussian`] give None for others.
///
/// # Gives
///
/// What [`crate::laplace`] and [`crate::gaussian`] give.
///
/// # Proof
///
/// [`Table`] draws the magnitude from one half of the distribution; the word's last bit is its sign.
///
/// # Checked
///
/// `tabled::tests`, `tests/test_mechanisms.py`.
pub struct Tabled<L>(Table<L>);

/// A table of so many entries, if `n` draws pay for it: an entry takes the time of `cost` draws.
fn worth(n: usize, entries: f64, cost: u32) -> Option<u32> {
    (5.0..5000.0).contains(&entries).then_some(())?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // just checked
    let entries = entries as u32;
    (n / cost as usize >= entries as usize).then_some(entries)
}

pub fn laplace(scale: f64, n: usize) -> Option<Tabled<HalfLaplace>> {
    let entries = worth(n, 48.0 * scale + 4.0, 1 << 10).filter(|_| scale >= 0.25)?;
    Some(Tabled(Table::new(HalfLaplace(Ratio::new(scale)?), entries, 63)))
}

pub fn gaussian(scale: f64, n: usize) -> Option<Tabled<HalfGaussian>> {
    let entries = worth(n, 9.6 * scale + 2.0, 1 << 14).filter(|_| scale >= 0.5)?;
    Some(Tabled(Table::new(HalfGaussian(Ratio::new(scale)?), entries, 63)))
}

impl<L: Law + Sync> Sampler<1> for Tabled<L> {
    #[inline]
    fn fast(&self, [word]: [u64; 1]) -> Option<i64> {
        Some(signed(self.0.fast(word)?, word & 1 == 1))
    }

    #[cold]
    fn slow(&self, [mut word]: [u64; 1], bits: &mut impl Bits) -> Option<i128> {
        loop {
            if let Some(size) = self.0.slow(word, bits) {
                return Some(if word & 1 == 1 { -i128::from(size) } else { size.into() });
            }
            word = bits.word();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas() {
        // From 0 to z, times sqrt(2 / pi): erf(z / sqrt(2)).
        for (over, under, erf) in [
            (1_u8, 2_u8, 0.382_924_922_548_026),
            (1, 1, 0.682_689_492_137_086),
            (3, 1, 0.997_300_203_936_740),
            (9, 1, 1.0),
        ] {
            let z = Ratio { over: over.into(), under: under.into() };
            let [rough, fine] = [100, 180].map(|precision| area(&z, precision));
            #[allow(clippy::cast_precision_loss)]
            let value = u128::try_from(&rough.low).unwrap() as f64 / 2_f64.powi(100);
            assert!((value * std::f64::consts::FRAC_2_PI.sqrt() - erf).abs() < 1e-14);
            assert!(rough.low <= &fine.low >> 80 && rough.high >= &fine.high >> 80);
            assert!(fine.high - fine.low < 8_u8.into());
        }
    }

    #[test]
    fn tables_of_many_scales() {
        for scale in [0.25, 0.3, 0.5, 0.51, 0.77, 1.0, 1.5, 2.2, 4.224_679, 10.0, 33.3] {
            let table = laplace(scale, 1 << 40).unwrap();
            let q = (-1.0 / scale).exp();
            #[allow(clippy::cast_precision_loss)]
            let share = |floor: u64| floor as f64 / 2_f64.powi(63);
            assert!((share(table.0.floors[0]) - (1.0 - q) / (1.0 + q)).abs() < 1e-12);
            assert!((share(table.0.floors[2]) - 2.0 * q * q * (1.0 - q) / (1.0 + q)).abs() < 1e-12);
        }
        for (scale, p0) in
            [(1.0, 0.382_924_922_548), (4.224_679, 0.094_211_391_506), (10.0, 0.039_877_611_677)]
        {
            #[allow(clippy::cast_precision_loss)]
            let share = gaussian(scale, 1 << 40).unwrap().0.floors[0] as f64 / 2_f64.powi(63);
            assert!((share - p0).abs() < 1e-11);
        }
        for scale in [0.5, 0.51, 0.77, 1.5, 2.2, 33.3] {
            assert!(gaussian(scale, 1 << 40).is_some());
        }
        for scale in [0.1, 0.2, 1e6] {
            assert!(laplace(scale, 1 << 40).is_none() && gaussian(scale, 1 << 40).is_none());
        }
        assert!(laplace(1.0, 1000).is_none() && gaussian(1.0, 1000).is_none());
    }
}
