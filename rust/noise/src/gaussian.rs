//! The rounded Gaussian distribution.

use crate::Scale;
use crate::bits::Bits;
use crate::lazy::{Lazy, below, coin};
use crate::run::{even_run, exp_minus_half};
use crate::scale::Real;

/// # Needs
///
/// Nothing.
///
/// # Gives
///
/// k >= 0 with weight exp(-k^2 / 2), up to rounds that give None.
///
/// # Proof
///
/// k successes of probability e^-1/2 before the first failure have weight e^(-k / 2), and k (k - 1)
/// further ones have e^(-k (k - 1) / 2): the product is e^(-k^2 / 2).
///
/// # Checked
///
/// `gaussian::tests::whole_part_is_exact`.
fn whole(bits: &mut impl Bits) -> Option<u64> {
    let mut k = 0;
    while exp_minus_half(bits) {
        k += 1;
    }
    (1..k).all(|_| (0..k).all(|_| exp_minus_half(bits))).then_some(k)
}

/// # Needs
///
/// x in [0, 1).
///
/// # Gives
///
/// True with probability exp(-x (2k + x) / 2).
///
/// # Proof
///
/// A uniform integer i in 0..2k + 2 plus a uniform real w is below 2k + x with probability
/// p = (2k + x) / (2k + 2): surely for i < 2k, if w < x for i = 2k, never for i = 2k + 1. So each of
/// the k + 1 runs is even with probability exp(-x p), and all are with exp(-(k + 1) x p).
///
/// # Checked
///
/// `gaussian::tests::fraction_is_exact`.
fn accept(k: u64, x: &mut Lazy, bits: &mut impl Bits) -> bool {
    (0..=k).all(|_| {
        even_run(x, bits, |x, bits| match below(2 * k + 2, bits) {
            i if i < 2 * k => true,
            i if i == 2 * k => Lazy::new(bits).less(x, bits),
            _ => false,
        })
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
/// By [`whole`] and [`accept`], a round that succeeds gives k + x with density proportional to
/// exp(-k^2 / 2) exp(-x (2k + x) / 2) = exp(-(k + x)^2 / 2), the half-normal one (Karney 2016,
/// algorithm N). Multiplied by the scale and by a fair sign it is N(0, scale^2); rounding commutes
/// with the sign but at ties, of probability zero.
///
/// # Checked
///
/// `gaussian::tests::extreme_scales`, `tests/test_mechanisms.py`.
pub fn gaussian(scale: Scale, bits: &mut impl Bits) -> Option<i128> {
    loop {
        let Some(whole) = whole(bits) else { continue };
        let mut fraction = Lazy::new(bits);
        if accept(whole, &mut fraction, bits) {
            let size = Real { whole, fraction }.round_times(scale, bits)?;
            let size = i128::try_from(size).ok()?;
            return Some(if coin(bits) { -size } else { size });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Entropy;
    use crate::tape::assert_encloses;

    #[test]
    fn whole_part_is_exact() {
        let stop = 1.0 - (-0.5_f64).exp();
        assert_encloses(1, 20, 0.13, stop, |bits| whole(bits) == Some(0));
        assert_encloses(1, 20, 0.13, stop * (-0.5_f64).exp(), |bits| whole(bits) == Some(1));
        assert_encloses(1, 20, 0.13, stop * (-2_f64).exp(), |bits| whole(bits) == Some(2));
    }

    #[test]
    fn fraction_is_exact() {
        // Over a uniform x, by the midpoint rule. The integer below 2k + 2 takes k + 1 bits.
        for (k, width, depth, open) in [(0_u32, 1, 20, 0.013), (1, 2, 10, 0.13)] {
            let density = |x: f64| (-x * (2.0 * f64::from(k) + x) / 2.0).exp();
            let integral =
                (0..1000).map(|i| density((f64::from(i) + 0.5) / 1e3)).sum::<f64>() / 1e3;
            assert_encloses(width, depth, open, integral, |bits| {
                accept(k.into(), &mut Lazy::new(bits), bits)
            });
        }
    }

    #[test]
    fn extreme_scales() {
        let mut bits = Entropy::new().unwrap();
        let mut draw = |exponent| gaussian(Scale::new(2_f64.powi(exponent)).unwrap(), &mut bits);
        for _ in 0..100 {
            assert_eq!(draw(-200), Some(0));
            assert_eq!(draw(-40), Some(0));
            assert!((1 << 30..1 << 70).contains(&draw(60).unwrap().abs()));
            assert!((1 << 70..1 << 110).contains(&draw(100).unwrap().abs()));
        }
    }
}
