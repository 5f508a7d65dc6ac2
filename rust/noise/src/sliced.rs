//! The discrete Laplace distribution without tables: 256 draws at a time, bit by bit.

use num_bigint::BigUint;

use crate::bits::Bits;
use crate::exp::{Enclosure, Ratio, exp_minus};
use crate::{Error, Scale};

/// So many draws are made together.
pub const LANES: usize = 256;

/// One bit of each.
type Slice = [u64; LANES / 64];

/// A probability by its binary digits, the first of which are stored.
struct Digits<P> {
    first: u128,
    p: P,
}

impl<P: Fn(u32) -> Enclosure> Digits<P> {
    fn new(p: P) -> Self {
        let first = leading(&p, 128);
        Self { first: u128::try_from(first).unwrap_or(0), p }
    }

    /// All ones if digit `i` after the point is one, else all zeros.
    fn mask(&self, i: u32) -> u64 {
        let bit =
            if i < 128 { self.first >> (127 - i) & 1 == 1 } else { leading(&self.p, i + 1).bit(0) };
        0_u64.wrapping_sub(bit.into())
    }

    /// Independent events of this probability: in each lane, whether a uniform real is below it, decided by
    /// the first digit in which they differ. How long it takes does not depend on what comes out.
    fn flip(&self, bits: &mut impl Bits) -> Slice {
        let (mut open, mut events) = ([u64::MAX; LANES / 64], [0; LANES / 64]);
        for i in 0.. {
            let digit = self.mask(i);
            for (open, events) in open.iter_mut().zip(&mut events) {
                let differ = bits.word() ^ digit;
                *events |= *open & differ & digit;
                *open &= !differ;
            }
            if open == [0; LANES / 64] {
                break;
            }
        }
        events
    }
}

/// floor(2^n p), from enclosures so narrow that both ends agree.
fn leading(p: impl Fn(u32) -> Enclosure, n: u32) -> BigUint {
    let mut more = 64;
    loop {
        let Enclosure { low, high } = p(n + more);
        if &low >> more == high >> more {
            return low >> more;
        }
        more *= 2;
    }
}

/// # Needs
///
/// Independent uniform words.
///
/// # Gives
///
/// 256 draws of the integer k with probability proportional to exp(-|k| / scale), exactly, with the same
/// operations and addresses whatever they are.
///
/// # Proof
///
/// A geometric variable g with ratio e^(-1 / scale) has weight exp(-g / scale), the product over its binary
/// digits of exp(-2^j / scale) where digit j is one: so the digits are independent, and one with
/// probability x / (1 + x), x = exp(-2^j / scale). What is left above the last digit is geometric again,
/// with a ratio below e^-64: it is zero, but for one draw in 2^92. The difference of two geometric variables
/// has P(k) proportional to the sum of q^(2g + |k|) over g, that is to q^|k|.
///
/// # Checked
///
/// `sliced::tests`, `tests/test_mechanisms.py`.
pub struct Sliced<P> {
    digits: Vec<Digits<P>>,
    above: Digits<P>,
}

/// # Errors
///
/// [`Error::Scale`] above 2^50.
pub fn sliced(scale: Scale) -> Result<Sliced<impl Fn(u32) -> Enclosure + Send + Sync>, Error> {
    let scale = scale.float();
    let ratio = Ratio::new(scale).filter(|_| scale <= 2_f64.powi(50)).ok_or(Error::Scale)?;
    let count = (0..=56).find(|j| 2_f64.powi(*j) >= 64.0 * scale).ok_or(Error::Scale)?;
    let digits = |j: i32, odds: bool| {
        let x = Ratio { over: &ratio.under << j, under: ratio.over.clone() };
        Digits::new(move |precision| {
            let Enclosure { low, high } = exp_minus(&x, precision + 2);
            let one = BigUint::from(1_u8) << (precision + 2);
            let end = |x: BigUint| if odds { (&x << precision) / (&one + x) } else { x >> 2_u32 };
            Enclosure { low: end(low), high: end(high) + 1_u8 }
        })
    };
    Ok(Sliced {
        digits: (0..count).map(|j| digits(j, true)).collect(),
        above: digits(count, false),
    })
}

impl<P: Fn(u32) -> Enclosure> Sliced<P> {
    fn geometric(&self, bits: &mut impl Bits) -> [i64; LANES] {
        let mut sizes = [0; LANES];
        for (j, digits) in self.digits.iter().enumerate() {
            for (word, sizes) in digits.flip(bits).into_iter().zip(sizes.chunks_mut(64)) {
                for (lane, size) in sizes.iter_mut().enumerate() {
                    *size |= (word >> lane & 1).cast_signed() << j;
                }
            }
        }
        let mut more = self.above.flip(bits);
        while more != [0; LANES / 64] {
            for (lane, size) in sizes.iter_mut().enumerate() {
                *size += (more[lane / 64] >> (lane % 64) & 1).cast_signed() << self.digits.len();
            }
            let again = self.above.flip(bits);
            more = std::array::from_fn(|i| more[i] & again[i]);
        }
        sizes
    }

    pub fn draw(&self, bits: &mut impl Bits) -> [i64; LANES] {
        let (plus, minus) = (self.geometric(bits), self.geometric(bits));
        std::array::from_fn(|lane| plus[lane] - minus[lane])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Entropy;
    use crate::tape::Tape;

    #[test]
    fn published_digits() {
        let made = sliced(Scale::new(10.0).unwrap()).unwrap();
        for (digits, p) in made.digits.iter().zip([
            0.475_020_81,
            0.450_166,
            0.401_312_34,
            0.310_025_52,
            0.167_981_61,
            0.039_165_72,
            0.001_658_8,
            2.76e-6,
        ]) {
            #[allow(clippy::cast_precision_loss)]
            let first = digits.first as f64 / 2_f64.powi(128);
            assert!((first - p).abs() < 1e-7);
        }
        assert!((0..300).all(|i| (made.above.mask(i) == 0) || i > 90));
    }

    #[test]
    fn a_lane_is_decided_by_the_first_digit_that_differs() {
        // p = 1/3 = .010101..: 0x55.. in each word is a lane pattern, one word for each digit and quarter.
        let third = |precision| {
            let low = (BigUint::from(1_u8) << precision) / 3_u8;
            Enclosure { high: &low + 1_u8, low }
        };
        let digits = Digits::new(third);
        assert_eq!(
            (digits.mask(0), digits.mask(1), digits.mask(200), digits.mask(201)),
            (0, u64::MAX, 0, u64::MAX)
        );
        // First digits: lanes 0 and 1 of each quarter draw 1 (above p), the others 0; then all but lane 2 draw 0.
        let words = [[0b011; 4], [0b100; 4]].concat();
        let mut events = digits.flip(&mut Tape::new(&words));
        assert!(events.iter_mut().all(|events| *events & !0b100 == !0b111));
    }

    #[test]
    fn the_rest_is_added() {
        // With the first digits at zero and one success above, each draw is 2^count.
        let made = sliced(Scale::new(0.01).unwrap()).unwrap();
        assert_eq!(made.digits.len(), 0);
        let small = Sliced {
            digits: vec![],
            above: Digits::new(|precision| {
                let half = BigUint::from(1_u8) << (precision - 1);
                Enclosure { high: half.clone(), low: half }
            }),
        };
        // With ratio 1/2 instead of e^-64: the number of heads before the first tail.
        let mut bits = Entropy::new().unwrap();
        let mut seen = [0_u32; 4];
        for size in (0..1000).flat_map(|_| small.geometric(&mut bits)) {
            seen[usize::try_from(size).unwrap().min(3)] += 1;
        }
        for (seen, p) in seen.iter().zip([0.5, 0.25, 0.125, 0.125]) {
            assert!((f64::from(*seen) / 256_000.0 - p).abs() < 0.0065);
        }
    }
}
