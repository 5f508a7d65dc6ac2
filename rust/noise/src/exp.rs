//! Enclosures of e^-x, as narrow as asked for.

use std::sync::LazyLock;

use num_bigint::BigUint;

/// A non-negative rational.
#[derive(Clone, Debug)]
pub struct Ratio {
    pub over: BigUint,
    pub under: BigUint,
}

impl Ratio {
    /// Exactly the finite and positive `value`; None for any other.
    pub fn new(value: f64) -> Option<Self> {
        if !(value.is_finite() && value > 0.0) {
            return None;
        }
        let biased = value.to_bits() >> 52;
        let fraction = value.to_bits() & ((1 << 52) - 1);
        let mantissa = BigUint::from(if biased == 0 { fraction } else { 1 << 52 | fraction });
        let exponent = i64::try_from(biased.max(1)).ok()? - 1075;
        let (up, down) = (exponent.max(0), (-exponent).max(0));
        Some(Self { over: mantissa << up, under: BigUint::from(1_u8) << down })
    }
}

/// Numbers between which a real lies, in units of 2^-precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enclosure {
    pub low: BigUint,
    pub high: BigUint,
}

/// # Needs
///
/// A rational x.
///
/// # Gives
///
/// Low and high with low <= 2^precision e^-x <= high, about one apart.
///
/// # Proof
///
/// From x >= precision on, e^-x < 2^-precision. Below, r = x / 2^halvings < 2^-8 is enclosed by
/// rounding down and up, then e^r by [`grow`], then e^-r by division, and e^-x by squaring; each
/// step is monotone and rounds low ends down and high ends up.
///
/// # Checked
///
/// `exp::tests::known_values`, `exp::tests::narrower_lies_within_wider`.
pub fn exp_minus(x: &Ratio, precision: u32) -> Enclosure {
    let zero = BigUint::ZERO;
    if x.over >= &x.under * precision {
        return Enclosure { low: zero, high: BigUint::from(1_u8) };
    }
    let halvings = (&x.over / &x.under).bits() + 8;
    let spare = halvings + 16;
    let width = u64::from(precision) + spare;
    let r = (&x.over << (width - halvings)) / &x.under;
    let square = BigUint::from(1_u8) << (2 * width);
    let mut low = &square / grow(&(&r + 1_u8), width).high;
    let mut high = square / grow(&r, width).low + 1_u8;
    for _ in 0..halvings {
        low = (&low * &low) >> width;
        high = ((&high * &high) >> width) + 1_u8;
    }
    Enclosure { low: low >> spare, high: (high >> spare) + 1_u8 }
}

/// e^r for r below 1/2, both in units of 2^-width.
///
/// The terms r^n / n! are rounded down, each from the one before, so they are too small by less than
/// 4: an error of 4 becomes one of (4 r + 1) / n + 1 < 4. Where the n-th is zero, it and all that
/// follow have a sum below 8.
fn grow(r: &BigUint, width: u64) -> Enclosure {
    let mut term = BigUint::from(1_u8) << width;
    let (mut low, mut n) = (BigUint::ZERO, 0_u32);
    while term != BigUint::ZERO {
        low += &term;
        n += 1;
        term = ((term * r) >> width) / n;
    }
    Enclosure { high: &low + 4 * n + 8_u8, low }
}

/// e^-0 .. e^-63, then in steps of 2^-8 and of 2^-16, in units of 2^-63, rounded down by less than 4.
static POWERS: LazyLock<[Vec<u64>; 3]> = LazyLock::new(|| {
    [(64_u32, 1_u32), (256, 1 << 8), (256, 1 << 16)].map(|(count, under)| {
        let power = |over: u32| exp_minus(&Ratio { over: over.into(), under: under.into() }, 63);
        (0..count).map(|over| u64::try_from(power(over).low).unwrap()).collect()
    })
});

/// How far [`exp_minus_fast`] may be off.
pub const OFF: u128 = 512;

/// # Needs
///
/// x in [units, units + 3] 2^-57, units < 2^63.
///
/// # Gives
///
/// A number w with w <= 2^63 e^-x <= w + [`OFF`].
///
/// # Proof
///
/// With x = a + b 2^-8 + c 2^-16 + r and r < 2^-16, e^-x is the product of three table entries and
/// 1 - r + r^2/2 - r^3/6, up to r^4/24 < 2^-68. All factors are at most 1 and are rounded down: the
/// entries by less than 4 each, the polynomial by less than 3, the products by less than 1 each. That
/// x may be larger by 3 * 2^-57 is the last line's part, at most 2^8 + 1, taken off once more by x.
///
/// # Checked
///
/// `exp::tests::fast_is_enclosed`.
#[inline]
#[allow(clippy::cast_possible_truncation)] // the parts of x are small
pub fn exp_minus_fast(units: u64) -> u64 {
    let [ones, large, small] = &*POWERS;
    let times = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 63) as u64;
    let part = |shift: u32| (units >> shift) as usize & 255;
    let r = (units & ((1 << 41) - 1)) << 6;
    let square = times(r, r) / 2;
    let last = (1 << 63) - r + square - times(square, r) / 3 - 2;
    let first = times(ones[(units >> 57) as usize], large[part(49)]);
    let power = times(first, times(small[part(41)], last));
    power.saturating_sub((power >> 55) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(over: u64, under: u64) -> Ratio {
        Ratio { over: over.into(), under: under.into() }
    }

    #[test]
    fn a_ratio_is_exact() {
        for (value, mantissa, exponent) in [
            (5e-324, 1_u64, -1074),
            (0.3, 0x0013_3333_3333_3333, -54),
            (7.5, 15 << 49, -50),
            (1e22, 0x10_F0CF_064D_D592, 21),
            (f64::MAX, (1 << 53) - 1, 971),
        ] {
            let Ratio { over, under } = Ratio::new(value).unwrap();
            let (up, down): (i32, i32) = (exponent, -exponent);
            assert_eq!(over << down.max(0), (BigUint::from(mantissa) * under) << up.max(0));
        }
        let bad = [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        assert!(bad.iter().all(|value| Ratio::new(*value).is_none()));
    }

    #[test]
    fn known_values() {
        // 2^100 e^-x, rounded down, from another program.
        for (x, digits) in [
            (ratio(0, 1), 1 << 100),
            (ratio(1, 1), 0x0005_E2D5_8D8B_3BCD_F1AB_ADEC_7829_u128),
            (ratio(1, 2), 0x0009_B459_7E37_CB04_FF3D_675A_3553_u128),
        ] {
            let Enclosure { low, high } = exp_minus(&x, 100);
            assert!(low <= digits.into() && high >= digits.into() && &high - &low <= 4_u8.into());
        }
    }

    #[test]
    fn narrower_lies_within_wider() {
        for over in [0, 1, 2, 7, 100, 1000, 12_345, 99_999] {
            let x = ratio(over, 997);
            for precision in [1, 8, 64, 192, 500] {
                let wide = exp_minus(&x, precision);
                let narrow = exp_minus(&x, precision + 300);
                assert!(wide.low <= &narrow.low >> 300 && wide.high << 300 >= narrow.high);
                assert!(narrow.high - narrow.low <= 4_u8.into());
            }
        }
        assert_eq!(exp_minus(&ratio(500, 1), 500).high, 1_u8.into());
    }

    #[test]
    fn fast_is_enclosed() {
        let mut units = 1_u64;
        for _ in 0..2000 {
            units = units.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(12_345);
            for units in [units >> 1, units >> 6, units >> 20, units >> 60] {
                for x in [units, units + 3] {
                    let exact = exp_minus(&ratio(x, 1 << 57), 63);
                    let fast = BigUint::from(exp_minus_fast(units));
                    assert!(fast <= exact.high && exact.low <= fast + OFF);
                }
            }
        }
    }
}
