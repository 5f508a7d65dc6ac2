//! Exact products of a scale with a lazily drawn real.

use num_bigint::BigUint;

use crate::Error;
use crate::bits::Bits;
use crate::lazy::Lazy;

/// A noise scale: the dyadic rational `mantissa * 2^exponent` that an f64 is, without rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    mantissa: u64,
    exponent: i32,
}

impl Scale {
    /// # Errors
    ///
    /// [`Error::Scale`] unless `2^-200 <= scale <= 2^100`; in particular for NaN.
    pub fn new(scale: f64) -> Result<Self, Error> {
        if !(2_f64.powi(-200)..=2_f64.powi(100)).contains(&scale) {
            return Err(Error::Scale);
        }
        // Positive and normal, hence 1.fraction * 2^(biased - 1023).
        let (biased, fraction) = (scale.to_bits() >> 52, scale.to_bits() & ((1 << 52) - 1));
        let exponent = i32::try_from(biased).map_err(|_| Error::Scale)? - 1023 - 52;
        Ok(Self { mantissa: 1 << 52 | fraction, exponent })
    }

    /// What it was made from.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // none: 53 bits
    pub fn float(self) -> f64 {
        self.mantissa as f64 * 2_f64.powi(self.exponent)
    }

    /// This scale times 2^power.
    #[must_use]
    pub fn times(self, power: i32) -> Self {
        Self { exponent: self.exponent + power, ..self }
    }

    /// How to multiply with reals that are known to this many binary digits.
    #[must_use]
    pub fn cut(self, digits: i32) -> Cut {
        let shift = u32::try_from(digits - self.exponent - 64);
        Cut {
            mantissa: self.mantissa,
            shift: shift.map_or(0, |shift| shift.min(63)),
            small: shift.is_ok(),
        }
    }

    /// floor(low 2^-shift) for the low end of a product whose high end is below low + mantissa.
    fn decide(self, low: u128, digits: i32) -> Option<u128> {
        let high = low + u128::from(self.mantissa - 1);
        let shift = u32::try_from(digits - self.exponent).ok()?;
        let floor = |end: u128| end.checked_shr(shift).unwrap_or(0);
        (floor(low) == floor(high)).then(|| floor(low))
    }
}

/// A scale, prepared for products of which no bit counts that is not in the upper of two words.
#[derive(Clone, Copy)]
pub struct Cut {
    mantissa: u64,
    shift: u32,
    small: bool,
}

impl Cut {
    /// floor(scale * x) for a real x in [y, y + 1) 2^-digits, y < 2^63; None if that does not decide it.
    ///
    /// The product is in [m y, m y + m). With m < 2^53 its upper word is below 2^52, so shifts by 63 and
    /// by more give the same.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the upper word is meant
    pub fn floor(self, y: u64) -> Option<u64> {
        let low = u128::from(self.mantissa) * u128::from(y);
        let high = low.wrapping_add(u128::from(self.mantissa.wrapping_sub(1)));
        let (low, high) = ((low >> 64) as u64, (high >> 64) as u64);
        let floor = low.wrapping_shr(self.shift);
        (self.small && floor == high.wrapping_shr(self.shift)).then_some(floor)
    }
}

/// The non-negative real `whole + fraction`.
pub struct Real {
    pub whole: u64,
    pub fraction: Lazy,
}

impl Real {
    /// Exactly floor(scale * self), or None from 2^128 on.
    ///
    /// After n digits, `2^(64 n) * self` lies in [y, y + 1) for a known integer y. With
    /// scale = m 2^e, the integer part of `2^(64 n) * m * self` is one of m y ..= m y + m - 1, and
    /// dropping its last 64 n - e bits gives the floor. Where both ends agree, so do all between;
    /// where they do not, one more digit is drawn. The product is an integer with probability zero,
    /// so this ends with probability one.
    pub fn floor_times(&mut self, scale: Scale, bits: &mut impl Bits) -> Option<u128> {
        self.floor_fast(scale, bits).or_else(|| self.floor_slow(scale, bits))
    }

    /// round(scale * self) = floor((floor(2 * scale * self) + 1) / 2), or None from 2^127 on.
    pub fn round_times(&mut self, scale: Scale, bits: &mut impl Bits) -> Option<u128> {
        Some(self.floor_times(scale.times(1), bits)?.div_ceil(2))
    }

    /// The first digit alone; None if it does not fit or does not decide.
    fn floor_fast(&mut self, scale: Scale, bits: &mut impl Bits) -> Option<u128> {
        if self.whole >> 11 != 0 {
            return None; // else the product with the mantissa is below 2^64, and the sum below 2^128
        }
        let low = u128::from(scale.mantissa) * u128::from(self.fraction.digit(0, bits));
        scale.decide((u128::from(scale.mantissa * self.whole) << 64) + low, 64)
    }

    fn floor_slow(&mut self, scale: Scale, bits: &mut impl Bits) -> Option<u128> {
        let mut y = BigUint::from(self.whole);
        let mut shift = -i64::from(scale.exponent);
        for i in 0.. {
            y = (y << 64_u32) + self.fraction.digit(i, bits);
            shift += 64;
            let low = &y * scale.mantissa;
            let high = &low + (scale.mantissa - 1);
            if shift >= 0 && &low >> shift == high >> shift {
                return u128::try_from(low >> shift).ok();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Tape;

    fn scale(value: f64) -> Scale {
        Scale::new(value).unwrap()
    }

    fn real(whole: u64, tape: &mut Tape) -> Real {
        Real { whole, fraction: Lazy::new(tape) }
    }

    #[test]
    fn a_scale_is_exact_and_in_range() {
        for value in [2_f64.powi(-200), 2_f64.powi(-40), 0.3, 1.0, 7.5, 1e300_f64.powf(0.1)] {
            assert_eq!(scale(value).float().to_bits(), value.to_bits());
        }
        assert_eq!(scale(2_f64.powi(100)), Scale { mantissa: 1 << 52, exponent: 48 });
        let (low, high) = (2_f64.powi(-200).next_down(), 2_f64.powi(100).next_up());
        let bad = [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324, low, high];
        assert!(bad.iter().all(|value| Scale::new(*value) == Err(Error::Scale)));
    }

    #[test]
    fn a_product_that_straddles_an_integer_draws_more_digits() {
        // 3 * (1/3): 0.555.. in hexadecimal stays below 1 until a digit says otherwise.
        let third = u64::MAX / 3;
        for (last, floor) in [(third - 1, 0), (third + 1, 1)] {
            let mut tape = Tape::new(&[third, third, third, last]);
            let mut third = real(0, &mut tape);
            assert_eq!(third.floor_fast(scale(3.0), &mut tape), None);
            assert_eq!(third.floor_times(scale(3.0), &mut tape), Some(floor));
            assert_eq!(tape.used(), 4);
        }
    }

    #[test]
    fn a_product_that_straddles_a_half_draws_more_digits() {
        // 1.5 * (2 + 1/3) = 3.5 rounds to 3 from below and to 4 from above.
        let third = u64::MAX / 3;
        for (last, round) in [(third - 1, 3), (third + 1, 4)] {
            let mut tape = Tape::new(&[third, third, last]);
            assert_eq!(real(2, &mut tape).round_times(scale(1.5), &mut tape), Some(round));
            assert_eq!(tape.used(), 3);
        }
    }

    #[test]
    fn the_ends_of_the_interval_are_exact() {
        // (2^53 - 1) * (2^53 + 1) / 2^64 is 2^-64 below the integer 2^42.
        let (odd, close) = (scale(2_f64.powi(53) - 1.0), (1 << 53) + 1);
        for (last, floor) in [(0, (1 << 42) - 1), (u64::MAX, 1 << 42)] {
            let mut tape = Tape::new(&[close, last]);
            assert_eq!(real(0, &mut tape).floor_times(odd, &mut tape), Some(floor));
            assert_eq!(tape.used(), 2);
        }
        // An interval that ends at an integer does not contain it.
        let mut tape = Tape::new(&[u64::MAX]);
        assert_eq!(real(0, &mut tape).floor_fast(odd, &mut tape), Some((1 << 53) - 2));
    }

    #[test]
    fn fast_and_slow_agree() {
        let mut tape = Tape::new(&[]);
        for exponent in -200..=60 {
            for whole in [0, 1, 2, 37, 2047] {
                let scale = scale(2_f64.powi(exponent) * 1.377);
                let mut y = real(whole, &mut tape);
                let slow = y.floor_slow(scale, &mut tape);
                assert_eq!(y.floor_fast(scale, &mut tape).or(slow), slow);
            }
        }
    }

    #[test]
    fn extremes() {
        let mut tape = Tape::new(&[1 << 63, 0, 0, 0, 0]);
        let mut y = real(u64::MAX, &mut tape); // 2^64 - 1/2
        assert_eq!(y.floor_times(scale(2_f64.powi(-200)), &mut tape), Some(0));
        assert_eq!(y.floor_times(scale(2_f64.powi(-40)), &mut tape), Some((1 << 24) - 1));
        assert_eq!(y.round_times(scale(2_f64.powi(-64)), &mut tape), Some(1));
        assert_eq!(y.floor_times(scale(2_f64.powi(60)), &mut tape), Some((1 << 124) - (1 << 59)));
        assert_eq!(
            y.floor_times(scale(2_f64.powi(64)), &mut tape),
            Some(u128::MAX - (1 << 63) + 1)
        );
        assert_eq!(y.floor_times(scale(2_f64.powi(65)), &mut tape), None);
        assert_eq!(y.round_times(scale(2_f64.powi(64)), &mut tape), None);
    }
}
