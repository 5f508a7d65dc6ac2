//! The discrete Laplace distribution between two bounds.

use crate::bernoulli::exp_event;
use crate::bits::Bits;
use crate::choice::Rate;
use crate::exp::Ratio;
use crate::laplace::Laplace;
use crate::lazy::below;
use crate::noise::Sampler;
use crate::{Error, Scale};

/// # Needs
///
/// A bound of at most 2^62.
///
/// # Gives
///
/// The integer k with probability proportional to exp(-|k| / scale), exactly, among those with
/// |k| <= bound.
///
/// # Proof
///
/// Rejection: from the discrete Laplace distribution whatever is beyond; where the bound is below the scale,
/// from the uniform one each k but with probability exp(-|k| / scale).
///
/// # Checked
///
/// `truncated::tests`, `tests/test_mechanisms.py`.
pub struct Truncated {
    laplace: Laplace,
    rate: Rate,
    bound: u64,
    wide: bool,
}

impl Truncated {
    /// # Errors
    ///
    /// [`Error::Bound`].
    pub fn new(scale: Scale, bound: u64) -> Result<Self, Error> {
        if bound > 1 << 62 {
            return Err(Error::Bound);
        }
        let exact = Ratio::new(scale.float()).ok_or(Error::Scale)?;
        let wide = &exact.under * bound >= exact.over;
        let rate = Rate::of(Ratio { over: exact.under, under: exact.over }).ok_or(Error::Scale)?;
        Ok(Self { laplace: Laplace::new(scale), rate, bound, wide })
    }
}

impl Sampler<[u64; 2]> for Truncated {
    #[inline]
    fn fast(&self, words: [u64; 2]) -> Option<i64> {
        self.laplace.fast(words).filter(|noise| self.wide && noise.unsigned_abs() <= self.bound)
    }

    #[cold]
    fn slow(&self, mut words: [u64; 2], bits: &mut impl Bits) -> Option<i128> {
        if self.wide {
            loop {
                let noise = self.laplace.slow(words, bits);
                if noise.is_some_and(|noise| noise.unsigned_abs() <= self.bound.into()) {
                    return noise;
                }
                words = [bits.word(), bits.word()];
            }
        }
        loop {
            let noise =
                if self.bound == 0 { 0 } else { i128::from(below(2 * self.bound + 1, bits)) };
            let noise = noise - i128::from(self.bound);
            if exp_event(&self.rate, noise.unsigned_abs(), bits) {
                return Some(noise);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Entropy;

    #[test]
    fn probabilities() {
        let mut bits = Entropy::new().unwrap();
        for (scale, bound) in [(1.0, 3_i32), (0.5, 2), (2.5, 1), (4.0, 0), (100.0, 4)] {
            let made =
                Truncated::new(Scale::new(scale).unwrap(), bound.unsigned_abs().into()).unwrap();
            let weight = |k: i32| (-f64::from(k.abs()) / scale).exp();
            let total: f64 = (-bound..=bound).map(weight).sum();
            let n = 60_000;
            let mut seen = vec![0_u32; usize::try_from(2 * bound + 1).unwrap()];
            for _ in 0..n {
                let words = [bits.word(), bits.word()];
                let noise =
                    made.fast(words).map(i128::from).or_else(|| made.slow(words, &mut bits));
                seen[usize::try_from(noise.unwrap() + i128::from(bound)).unwrap()] += 1;
            }
            for (k, seen) in (-bound..=bound).zip(seen) {
                let (p, n) = (weight(k) / total, f64::from(n));
                assert!((f64::from(seen) - n * p).abs() <= 6.5 * (n * p * (1.0 - p)).sqrt() + 1e-6);
            }
        }
        let one = Scale::new(1.0).unwrap();
        assert!(Truncated::new(one, 1 << 62).is_ok() && Truncated::new(one, u64::MAX).is_err());
    }
}
