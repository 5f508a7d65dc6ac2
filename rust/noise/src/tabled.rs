//! Tables for one scale: half a word for a draw, where the scale is drawn from many times.

use std::sync::{Arc, Mutex};

use num_bigint::BigUint;

use crate::Scale;
use crate::bits::Bits;
use crate::exp::{Enclosure, Ratio, exp_minus};
use crate::lazy::coin;
use crate::noise::Sampler;
use crate::table::{Law, Shares, columns};

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
/// [`Shares`] give the magnitude, from one half of the distribution, on 2^31 values; of 2^32, each sign has one
/// half. The first bits of a draw choose a column, the others are its first owner's if they are less than what is
/// his: with ones in all further places they are less than the whole entry then, and only then.
///
/// # Checked
///
/// `tabled::tests`, `tests/test_mechanisms.py`.
pub struct Tabled<L> {
    shares: Shares<L>,
    /// For each column what is its first owner's in the upper half, then the second owner, then the first.
    columns: Box<[u64; COLUMNS]>,
}

const INDEX: u32 = 11;
const COLUMNS: usize = 1 << INDEX;

/// Stands for the rest of the shares.
const REST: i16 = i16::MIN;

/// So many scales of each kind are remembered.
const KEPT: usize = 64;

/// By the bits of the scale: how often it was drawn from, and its table; the last used at the end.
type Cache<L> = Mutex<Vec<(u64, usize, Option<Arc<Tabled<L>>>)>>;

static LAPLACE: Cache<HalfLaplace> = Mutex::new(Vec::new());
static GAUSSIAN: Cache<HalfGaussian> = Mutex::new(Vec::new());

impl<L: Law> Tabled<L> {
    /// Of at most [`COLUMNS`] / 2 entries.
    fn new(law: L, entries: u32) -> Self {
        let shares = Shares::new(law, entries, 31);
        let mut owners = vec![(0, 2 * shares.floors[0]), (REST, 2 * shares.rest)];
        for (size, floor) in (1..).zip(&shares.floors[1..]) {
            owners.extend([(size, *floor), (-size, *floor)]);
        }
        owners.resize(COLUMNS, (0, 0));
        let made = columns(owners.iter().map(|(_, mass)| *mass).collect(), 1 << (32 - INDEX));
        let bits = |i: usize| u64::from(owners[i].0.cast_unsigned());
        let pack = |(i, (own, other))| own << (32 + INDEX) | bits(other) << 16 | bits(i);
        let packed: Vec<_> = made.into_iter().enumerate().map(pack).collect();
        Self { shares, columns: packed.try_into().expect("so many were made") }
    }
}

/// The table of this scale, once all draws from it together pay for one: an entry takes the time that `cost` of
/// them save.
///
/// A lock that another thread holds is not waited for, as after a fork nobody may ever give it back: then there
/// is no table, and the draws have the same distribution without one.
fn kept<L: Law>(
    cache: &Cache<L>,
    scale: f64,
    n: usize,
    (entries, cost): (f64, usize),
    law: fn(Ratio) -> L,
) -> Option<Arc<Tabled<L>>> {
    let most = u32::try_from(COLUMNS / 2).ok()?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // large ones stay large
    let entries = Some(entries as u32).filter(|entries| (5..=most).contains(entries))?;
    let (key, mut scales) = (scale.to_bits(), cache.try_lock().ok()?);
    let known = scales.iter().position(|(other, ..)| *other == key);
    let (_, drawn, table) = known.map_or((key, 0, None), |i| scales.remove(i));
    let drawn = drawn.saturating_add(n);
    let table = match table {
        None if drawn / cost >= entries as usize => {
            Some(Arc::new(Tabled::new(law(Ratio::new(scale)?), entries)))
        }
        table => table,
    };
    if scales.len() == KEPT {
        scales.remove(0);
    }
    scales.push((key, drawn, table.clone()));
    table
}

pub fn laplace(scale: Scale, n: usize) -> Option<Arc<Tabled<HalfLaplace>>> {
    laplace_in(&LAPLACE, scale.float(), n)
}

pub fn gaussian(scale: Scale, n: usize) -> Option<Arc<Tabled<HalfGaussian>>> {
    gaussian_in(&GAUSSIAN, scale.float(), n)
}

fn laplace_in(
    cache: &Cache<HalfLaplace>,
    scale: f64,
    n: usize,
) -> Option<Arc<Tabled<HalfLaplace>>> {
    let scale = Some(scale).filter(|scale| *scale >= 0.25)?;
    kept(cache, scale, n, (26.0 * scale + 4.0, 1 << 10), HalfLaplace)
}

fn gaussian_in(
    cache: &Cache<HalfGaussian>,
    scale: f64,
    n: usize,
) -> Option<Arc<Tabled<HalfGaussian>>> {
    let scale = Some(scale).filter(|scale| *scale >= 0.5)?;
    kept(cache, scale, n, (6.8 * scale + 2.0, 1 << 12), HalfGaussian)
}

impl<L: Law + Send + Sync> Sampler<u32> for Arc<Tabled<L>> {
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the last bits are meant
    fn fast(&self, start: u32) -> Option<i64> {
        let column = self.columns[(start >> (32 - INDEX)) as usize];
        let his = u64::from(start) << (32 + INDEX) | u64::from(u32::MAX) < column;
        let noise = (if his { column } else { column >> 16 }) as i16;
        (noise != REST).then_some(noise.into())
    }

    #[cold]
    fn slow(&self, mut start: u32, bits: &mut impl Bits) -> Option<i128> {
        loop {
            if let Some(noise) = self.fast(start) {
                return Some(noise.into());
            }
            if let Some(size) = self.shares.escape(bits) {
                return Some(if coin(bits) { -i128::from(size) } else { size.into() });
            }
            start = u32::try_from(bits.word() >> 32).ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bits::Entropy;

    const MANY: usize = 1 << 40;

    fn new_laplace(scale: f64, n: usize) -> Option<Arc<Tabled<HalfLaplace>>> {
        laplace_in(&Mutex::default(), scale, n)
    }

    fn new_gaussian(scale: f64, n: usize) -> Option<Arc<Tabled<HalfGaussian>>> {
        gaussian_in(&Mutex::default(), scale, n)
    }

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
        #[allow(clippy::cast_precision_loss)]
        let share = |floor: u64| floor as f64 / 2_f64.powi(31);
        for scale in [0.25, 0.3, 0.5, 0.51, 0.77, 1.0, 1.5, 2.2, 4.224_679, 10.0, 33.3, 39.0] {
            let floors = &new_laplace(scale, MANY).unwrap().shares.floors;
            let q = (-1.0 / scale).exp();
            assert!((share(floors[0]) - (1.0 - q) / (1.0 + q)).abs() < 1e-7);
            assert!((share(floors[2]) - 2.0 * q * q * (1.0 - q) / (1.0 + q)).abs() < 1e-7);
        }
        for (scale, p0) in
            [(1.0, 0.382_924_922_548), (4.224_679, 0.094_211_391_506), (10.0, 0.039_877_611_677)]
        {
            let floors = &new_gaussian(scale, MANY).unwrap().shares.floors;
            assert!((share(floors[0]) - p0).abs() < 1e-7);
        }
        for scale in [0.5, 0.51, 0.77, 1.5, 2.2, 33.3, 150.0] {
            assert!(new_gaussian(scale, MANY).is_some());
        }
        for scale in [0.1, 0.2, 1e6, 1e30] {
            assert!(new_laplace(scale, MANY).is_none() && new_gaussian(scale, MANY).is_none());
        }
        assert!(new_laplace(1.0, 1000).is_none() && new_gaussian(1.0, 1000).is_none());
    }

    /// How many of the 2^32 starts give each noise, and None: in a column it changes once at most.
    fn counts<L: Law + Send + Sync>(table: &Arc<Tabled<L>>) -> BTreeMap<Option<i64>, u64> {
        let (mut counts, capacity) = (BTreeMap::new(), 1_u32 << (32 - INDEX));
        for column in 0..1 << INDEX {
            let at = |i: u32| table.fast(column << (32 - INDEX) | i);
            let (mut low, mut high) = (0, capacity - 1);
            while low < high {
                let middle = low.midpoint(high);
                if at(middle) == at(capacity - 1) { high = middle } else { low = middle + 1 }
            }
            *counts.entry(at(0)).or_default() += u64::from(low);
            *counts.entry(at(capacity - 1)).or_default() += u64::from(capacity - low);
            assert!(low == 0 || at(low - 1) == at(0));
        }
        counts
    }

    #[test]
    fn every_start() {
        fn check<L: Law + Send + Sync>(table: Option<Arc<Tabled<L>>>) {
            let table = table.unwrap();
            let mut counts = counts(&table);
            assert_eq!(counts.remove(&None), Some(2 * table.shares.rest));
            for (size, floor) in (0..).zip(&table.shares.floors) {
                for noise in [size, -size] {
                    let twice = if size == 0 { 2 } else { 1 };
                    let count = counts.get(&Some(noise)).copied().unwrap_or(0);
                    assert_eq!(count, twice * floor, "{noise}");
                }
            }
            let all: u64 = counts.values().sum();
            assert_eq!(all + 2 * table.shares.rest, 1 << 32);
        }
        for scale in [0.5, 1.0, 7.5, 39.0] {
            check(new_laplace(scale, MANY));
            check(new_gaussian(scale, MANY));
        }
    }

    #[test]
    fn the_rest_is_drawn_slowly() {
        let (table, mut bits) = (new_gaussian(2.0, MANY).unwrap(), Entropy::new().unwrap());
        let starts = (0..1_u32 << INDEX).map(|column| column << (32 - INDEX));
        let rest: Vec<_> = starts.filter(|start| table.fast(*start).is_none()).collect();
        assert!(!rest.is_empty());
        let slow: Vec<_> =
            (0..500).map(|i| table.slow(rest[i % rest.len()], &mut bits).unwrap()).collect();
        assert!(slow.iter().any(|noise| *noise > 0) && slow.iter().any(|noise| *noise < 0));
        assert!(slow.iter().all(|noise| noise.abs() < 40));
    }

    #[test]
    fn tables_are_kept() {
        let cache = Mutex::default();
        assert!(gaussian_in(&cache, 2.0, 1).is_none());
        assert!((0..9).map(|_| gaussian_in(&cache, 1.5, 10_000)).any(|table| table.is_some()));
        let first = gaussian_in(&cache, 2.0, MANY).unwrap();
        assert!(Arc::ptr_eq(&first, &gaussian_in(&cache, 2.0, 1).unwrap()));
        for i in 0..KEPT - 1 {
            #[allow(clippy::cast_precision_loss)]
            let other = gaussian_in(&cache, 3.0 + i as f64 / 8.0, MANY).unwrap();
            assert!(!Arc::ptr_eq(&first, &other));
        }
        assert!(gaussian_in(&cache, 2.0, 1).is_some()); // now the last used
        assert!(gaussian_in(&cache, 1.0, MANY).is_some());
        assert!(gaussian_in(&cache, 2.0, 1).is_some() && gaussian_in(&cache, 3.0, 1).is_none());
        let held = cache.lock().unwrap();
        assert!(gaussian_in(&cache, 2.0, MANY).is_none()); // without waiting
        drop(held);
    }
}
