//! The rounded Gaussian distribution.

use std::sync::LazyLock;

use num_bigint::BigUint;

use crate::Scale;
use crate::bits::Bits;
use crate::exp::{Enclosure, Ratio, exp_minus};
use crate::lazy::{Lazy, below};
use crate::noise::{Sampler, signed};
use crate::run::even_run;
use crate::scale::{Cut, Real};
use crate::table::{Law, Table};

/// The density of |N(0, 1)| at the left end of its bins of width 1/64, up to a factor.
struct Bins;

impl Law for Bins {
    fn weight(&self, j: u64, precision: u32) -> Enclosure {
        exp_minus(&Ratio { over: BigUint::from(j).pow(2), under: 8192_u32.into() }, precision)
    }
}

static BINS: LazyLock<Table<Bins>> = LazyLock::new(|| Table::new(Bins, 640, 63));

/// # Needs
///
/// x in [0, 1); `i` uniform below 2 n.
///
/// # Gives
///
/// True with probability exp(-(j x + x^2 / 2) / n).
///
/// # Proof
///
/// That is exp(-x p) with p = (2 j + x) / 2 n. A uniform integer below 2 n plus a uniform real w is below
/// 2 j + x with probability p, and w matters only if the integer is 2 j. The first such integer is `i`.
///
/// # Checked
///
/// `gaussian::tests::fraction_is_exact`.
fn accept(n: u64, j: u64, i: u64, x: &mut Lazy, bits: &mut impl Bits) -> bool {
    let mut first = Some(i);
    even_run(x, bits, |x, bits| match first.take().unwrap_or_else(|| below(2 * n, bits)) {
        i if i == 2 * j => Lazy::new(bits).less(x, bits),
        i => i < 2 * j,
    })
}

/// Gaussian noise, rounded to the nearest integer.
///
/// # Needs
///
/// Independent uniform words from `bits`.
///
/// # Gives
///
/// The integer k with the probability that N(0, scale^2) falls in [k - 1/2, k + 1/2), exactly; None
/// stands for all |k| >= 2^127.
///
/// # Proof
///
/// Bin j and a uniform x that [`accept`] keeps with n = 64^2 have density proportional to
/// exp(-j^2 / 2n) exp(-(j x + x^2 / 2) / n) = exp(-((j + x) / 64)^2 / 2): that of |N(0, 1)| at
/// (j + x) / 64. Multiplied by the scale and by a fair sign it is N(0, scale^2); rounding commutes with
/// the sign but at ties, of probability zero. Where the first integer of [`accept`] exceeds 2 j, it keeps
/// x without a look at it; then 51 bits of x mostly decide the rounding, and if not, more are drawn.
///
/// # Checked
///
/// `gaussian::tests::fast_and_slow_agree`, `tests/test_mechanisms.py`.
pub struct Gaussian {
    scale: Scale,
    cut: Cut,
    bins: &'static Table<Bins>,
}

impl Gaussian {
    pub fn new(scale: Scale) -> Self {
        Self { scale, cut: scale.cut(51 + 6 - 1), bins: &BINS }
    }
}

impl Sampler<[u64; 2]> for Gaussian {
    #[inline]
    fn fast(&self, [first, second]: [u64; 2]) -> Option<i64> {
        let (i, x) = split(second);
        let j = self.bins.fast(first)?;
        if i <= 2 * j {
            return None; // else j < 2^12
        }
        let twice = self.cut.floor(j << 51 | x)?;
        Some(signed(twice.wrapping_add(1) / 2, first & 1 == 1))
    }

    #[cold]
    fn slow(&self, words: [u64; 2], bits: &mut impl Bits) -> Option<i128> {
        let [mut first, mut second] = words;
        loop {
            let (i, x) = split(second);
            if let Some(j) = self.bins.slow(first, bits) {
                let mut x = Lazy::starting(x, 51, bits);
                if accept(1 << 12, j, i, &mut x, bits) {
                    let size =
                        Real { whole: j, fraction: x }.round_times(self.scale.times(-6), bits)?;
                    let size = i128::try_from(size).ok()?;
                    return Some(if first & 1 == 1 { -size } else { size });
                }
            }
            [first, second] = [bits.word(), bits.word()];
            if let Some(noise) = self.fast([first, second]) {
                return Some(noise.into());
            }
        }
    }
}

/// 13 bits for [`accept`] and 51 of x.
#[inline]
fn split(word: u64) -> (u64, u64) {
    (word >> 51, word & ((1 << 51) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Entropy;
    use crate::tape::{Tape, assert_encloses};

    #[test]
    fn fraction_is_exact() {
        // Over a uniform x, by the midpoint rule, with one bin for each unit or two.
        for (n, width, j, open) in [(1_u32, 1, 0_u32, 0.014), (4, 3, 0, 0.014), (4, 3, 3, 0.18)] {
            let density = |x: f64| (-x * (f64::from(j) + x / 2.0) / f64::from(n)).exp();
            let integral =
                (0..1000).map(|i| density((f64::from(i) + 0.5) / 1e3)).sum::<f64>() / 1e3;
            assert_encloses(width, 20 / width as usize, open, integral, |bits| {
                let i = below(2 * u64::from(n), bits);
                accept(n.into(), j.into(), i, &mut Lazy::new(bits), bits)
            });
        }
    }

    #[test]
    fn fast_and_slow_agree() {
        let mut bits = Entropy::new().unwrap();
        let mut fast = 0;
        for exponent in -200..=80 {
            let sampler = Gaussian::new(Scale::new(2_f64.powi(exponent) * 1.377).unwrap());
            for _ in 0..100 {
                let words = [bits.word(), bits.word()];
                let slow = sampler.slow(words, &mut Tape::new(&[bits.word()]));
                if let Some(noise) = sampler.fast(words) {
                    assert_eq!(Some(noise.into()), slow);
                    fast += 1;
                }
            }
        }
        assert!((15_000..28_000).contains(&fast));
    }

    #[test]
    fn published_weights() {
        for (j, published) in [
            (0, 228_549_907_379_051_094),
            (1, 228_522_009_923_195_706),
            (64, 138_622_526_099_877_125),
            (256, 76_669_952_536_252),
        ] {
            assert!((2 * BINS.shares.floors[j]).abs_diff(published) < 100);
        }
    }

    #[test]
    fn extreme_scales() {
        let mut bits = Entropy::new().unwrap();
        let mut draw = |exponent| {
            let words = [bits.word(), bits.word()];
            Gaussian::new(Scale::new(2_f64.powi(exponent)).unwrap()).slow(words, &mut bits)
        };
        for _ in 0..100 {
            assert_eq!(draw(-200), Some(0));
            assert_eq!(draw(-40), Some(0));
            assert!((1 << 30..1 << 70).contains(&draw(60).unwrap().abs()));
            assert!((1 << 70..1 << 110).contains(&draw(100).unwrap().abs()));
        }
    }
}
