//! The discrete Laplace distribution.

use crate::Scale;
use crate::bits::Bits;
use crate::lazy::{Lazy, coin};
use crate::run::even_run;
use crate::scale::Real;

/// A standard exponential variable.
///
/// # Needs
///
/// Nothing.
///
/// # Gives
///
/// A real of density e^-y on y >= 0.
///
/// # Proof
///
/// A uniform x is accepted with probability e^-x ([`even_run`] with p = 1), so each round fails
/// with probability 1/e. The density of j failures and then x is e^-j e^-x = e^-(j + x).
///
/// # Checked
///
/// `laplace::tests::whole_part_is_exact`, `tests/test_mechanisms.py`.
fn exponential(bits: &mut impl Bits) -> Real {
    let mut whole = 0;
    loop {
        let mut fraction = Lazy::new(bits);
        if even_run(&mut fraction, bits, |_, _| true) {
            return Real { whole, fraction };
        }
        whole += 1;
    }
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
/// With E standard exponential, P(floor(scale E) >= k) = P(E >= k / scale) = exp(-k / scale), so
/// the floor is k >= 0 with probability proportional to q^k, q = exp(-1 / scale). A fair sign
/// halves each weight; refusing -0 leaves one half of q^|k| for every integer k.
///
/// # Checked
///
/// `laplace::tests::extreme_scales`, `tests/test_mechanisms.py`.
pub fn laplace(scale: Scale, bits: &mut impl Bits) -> Option<i128> {
    loop {
        let size = exponential(bits).floor_times(scale, bits)?;
        let size = i128::try_from(size).ok()?;
        let negative = coin(bits);
        if !(negative && size == 0) {
            return Some(if negative { -size } else { size });
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
        let q = (-1_f64).exp();
        assert_encloses(1, 20, 0.1, 1.0 - q, |bits| exponential(bits).whole == 0);
        assert_encloses(1, 20, 0.1, q * (1.0 - q), |bits| exponential(bits).whole == 1);
    }

    #[test]
    fn extreme_scales() {
        let mut bits = Entropy::new().unwrap();
        let mut draw = |exponent| laplace(Scale::new(2_f64.powi(exponent)).unwrap(), &mut bits);
        for _ in 0..100 {
            assert_eq!(draw(-200), Some(0));
            assert_eq!(draw(-40), Some(0));
            assert!((1 << 30..1 << 70).contains(&draw(60).unwrap().abs()));
            assert!((1 << 70..1 << 110).contains(&draw(100).unwrap().abs()));
        }
    }
}
