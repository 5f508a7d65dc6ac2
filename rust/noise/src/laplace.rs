//! The discrete Laplace distribution.

use std::sync::LazyLock;

use crate::Scale;
use crate::bits::Bits;
use crate::exp::{Enclosure, Ratio, exp_minus};
use crate::lazy::{Lazy, below};
use crate::noise::{Sampler, signed};
use crate::run::even_run;
use crate::scale::{Cut, Real};
use crate::table::{Law, Table};

/// e^-y at the left end of its bins of width 1/32.
struct Bins;

impl Law for Bins {
    fn weight(&self, j: u64, precision: u32) -> Enclosure {
        exp_minus(&Ratio { over: j.into(), under: 32_u8.into() }, precision)
    }
}

static BINS: LazyLock<Table<Bins>> = LazyLock::new(|| Table::new(Bins, 1536, 63));

/// # Needs
///
/// x in [0, 1); `i` uniform below n.
///
/// # Gives
///
/// True with probability exp(-x / n).
///
/// # Proof
///
/// [`even_run`] goes on with probability 1 / n: if a uniform integer below n is zero. The first is `i`.
///
/// # Checked
///
/// `laplace::tests::fraction_is_exact`.
fn accept(n: u64, i: u64, x: &mut Lazy, bits: &mut impl Bits) -> bool {
    let mut first = Some(i);
    even_run(x, bits, |_, bits| first.take().unwrap_or_else(|| below(n, bits)) == 0)
}

/// Discrete Laplace noise.
///
/// # Needs
///
/// Independent uniform words from `bits`.
///
/// # Gives
///
/// The integer k with probability proportional to exp(-|k| / scale), exactly; None stands for all
/// |k| >= 2^127.
///
/// # Proof
///
/// Bin j and a uniform x that [`accept`] keeps with n = 32 have density proportional to
/// exp(-(j + x) / 32), so y = (j + x) / 32 is standard exponential. P(floor(scale y) >= k) =
/// P(y >= k / scale) = exp(-k / scale), so the floor is k >= 0 with probability proportional to q^k,
/// q = exp(-1 / scale). A fair sign halves each weight; refusing -0 leaves one half of q^|k| for every
/// integer k. Where the first integer of [`accept`] is not zero, it keeps x without a look at it; then
/// 52 bits of x mostly decide the floor, and if not, more are drawn.
///
/// # Checked
///
/// `laplace::tests::fast_and_slow_agree`, `tests/test_mechanisms.py`.
pub struct Laplace {
    scale: Scale,
    cut: Cut,
    bins: &'static Table<Bins>,
}

impl Laplace {
    pub fn new(scale: Scale) -> Self {
        Self { scale, cut: scale.cut(52 + 5), bins: &BINS }
    }
}

impl Laplace {
    /// The magnitude, if two words decide that it is kept, and its floor.
    #[inline]
    fn size(&self, [first, second]: [u64; 2]) -> Option<u64> {
        let (i, x) = split(second);
        let j = self.bins.fast(first)?; // below 2^11
        self.cut.floor(j << 52 | x).filter(|_| i != 0)
    }
}

impl Sampler<[u64; 2]> for Laplace {
    #[inline]
    fn fast(&self, words: [u64; 2]) -> Option<i64> {
        let (size, negative) = (self.size(words)?, words[0] & 1 == 1);
        (size != 0 || !negative).then(|| signed(size, negative))
    }

    #[cold]
    fn slow(&self, words: [u64; 2], bits: &mut impl Bits) -> Option<i128> {
        let [mut first, mut second] = words;
        loop {
            let (i, x) = split(second);
            // Most that come here at a small scale are -0.
            if (first & 1 == 0 || self.size([first, second]) != Some(0))
                && let Some(j) = self.bins.slow(first, bits)
            {
                let mut x = Lazy::starting(x, 52, bits);
                if accept(32, i, &mut x, bits) {
                    let size =
                        Real { whole: j, fraction: x }.floor_times(self.scale.times(-5), bits)?;
                    let size = i128::try_from(size).ok()?;
                    if size != 0 || first & 1 == 0 {
                        return Some(if first & 1 == 1 { -size } else { size });
                    }
                }
            }
            [first, second] = [bits.word(), bits.word()];
            if let Some(noise) = self.fast([first, second]) {
                return Some(noise.into());
            }
        }
    }
}

/// A standard exponential variable in units of 1/32, and a fair sign.
pub fn exponential(bits: &mut impl Bits) -> (Real, bool) {
    loop {
        let (first, (i, x)) = (bits.word(), split(bits.word()));
        if let Some(whole) = BINS.slow(first, bits) {
            let mut fraction = Lazy::starting(x, 52, bits);
            if accept(32, i, &mut fraction, bits) {
                return (Real { whole, fraction }, first & 1 == 1);
            }
        }
    }
}

/// 5 bits for [`accept`] and 52 of x.
#[inline]
fn split(word: u64) -> (u64, u64) {
    (word >> 59, word & ((1 << 52) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Entropy;
    use crate::tape::{Tape, assert_encloses};

    #[test]
    fn fraction_is_exact() {
        for (n, width, open) in [(2_u32, 1, 0.01), (4, 2, 0.01), (8, 3, 0.01)] {
            let each = f64::from(n);
            let integral = each * (1.0 - (-1.0 / each).exp());
            assert_encloses(width, 20 / width as usize, open, integral, |bits| {
                let i = below(n.into(), bits);
                accept(n.into(), i, &mut Lazy::new(bits), bits)
            });
        }
    }

    #[test]
    fn fast_and_slow_agree() {
        let mut bits = Entropy::new().unwrap();
        let mut fast = 0;
        for exponent in -200..=80 {
            let sampler = Laplace::new(Scale::new(2_f64.powi(exponent) * 1.377).unwrap());
            for _ in 0..100 {
                let words = [bits.word(), bits.word()];
                let slow = sampler.slow(words, &mut Tape::new(&[bits.word()]));
                if let Some(noise) = sampler.fast(words) {
                    assert_eq!(Some(noise.into()), slow);
                    fast += 1;
                }
            }
        }
        assert!((10_000..25_000).contains(&fast));
    }

    #[test]
    fn extreme_scales() {
        let mut bits = Entropy::new().unwrap();
        let mut draw = |exponent| {
            let words = [bits.word(), bits.word()];
            Laplace::new(Scale::new(2_f64.powi(exponent)).unwrap()).slow(words, &mut bits)
        };
        for _ in 0..100 {
            assert_eq!(draw(-200), Some(0));
            assert_eq!(draw(-40), Some(0));
            assert!((1 << 30..1 << 70).contains(&draw(60).unwrap().abs()));
            assert!((1 << 70..1 << 110).contains(&draw(100).unwrap().abs()));
        }
    }
}
