//! Adding noise.

use zeroize::Zeroizing;

use crate::Error;
use crate::bits::{Bits, Entropy, WORDS, Words};

/// The largest exact value that may be noised.
pub const MAX_EXACT: u128 = 1 << 120;

/// Noisy values are below this: they have at most 38 decimal digits.
const NOISY_END: u128 = 10_u128.pow(38);

/// Whether no value is larger than [`MAX_EXACT`].
///
/// In the first pass only the upper halves are looked at: of a value, or of -1 - value if it is negative, they
/// are below 2^56 but for one that is too large or 2^120.
pub fn check(exact: &[i128]) -> Result<(), Error> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // neither: the sign bit is cleared
    let upper = |value: &i128| ((value ^ (value >> 127)) >> 64) as u64;
    if exact.iter().fold(0, |all, value| all | upper(value)) >> 56 == 0
        || exact.iter().all(|value| value.unsigned_abs() <= MAX_EXACT)
    {
        return Ok(());
    }
    Err(Error::Exact)
}

/// The random bits with which a draw starts.
pub trait Start: Copy {
    /// So many are cut from [`WORDS`] words.
    const COUNT: usize;

    fn cut(words: &Words) -> impl Iterator<Item = Self>;
}

impl Start for [u64; 2] {
    const COUNT: usize = WORDS / 2;

    fn cut(words: &Words) -> impl Iterator<Item = Self> {
        words.as_chunks().0.iter().map(|pair| pair.map(u64::from_le_bytes))
    }
}

impl Start for u32 {
    const COUNT: usize = 2 * WORDS;

    fn cut(words: &Words) -> impl Iterator<Item = Self> {
        words.as_flattened().as_chunks().0.iter().map(|half| u32::from_le_bytes(*half))
    }
}

/// A distribution on the integers, of which most draws need no more bits than to start, and little work.
///
/// # Needs
///
/// `fast` gives what `slow` gives, or None.
pub trait Sampler<S: Start>: Sync {
    fn fast(&self, start: S) -> Option<i64>;

    /// None stands for all integers from 2^127 on, in magnitude.
    fn slow(&self, start: S, bits: &mut impl Bits) -> Option<i128>;
}

/// Each value, of magnitude at most [`MAX_EXACT`], plus a draw.
pub fn add_each<S: Start>(
    exact: &[i128],
    sampler: &impl Sampler<S>,
    bits: &mut Entropy,
) -> Result<Vec<i128>, Error> {
    let (mut sums, mut failed) = (Vec::with_capacity(exact.len()), Ok(()));
    let mut buffer = Zeroizing::new([[0; 8]; WORDS]);
    for exact in exact.chunks(S::COUNT) {
        let words = &mut buffer[..(exact.len() * WORDS).div_ceil(S::COUNT)];
        bits.fill(words);
        sums.extend(exact.iter().zip(S::cut(words)).map(|(value, start)| {
            match sampler.fast(start) {
                Some(noise) => value.wrapping_add(noise.into()), // below 2^121
                None => add(*value, sampler.slow(start, bits)).unwrap_or_else(|error| {
                    failed = Err(error);
                    0
                }),
            }
        }));
    }
    failed.map(|()| sums)
}

/// Without a branch: half of them would be mispredicted.
#[inline]
pub fn signed(size: u64, negative: bool) -> i64 {
    let mask = -i64::from(negative);
    (size.cast_signed() ^ mask).wrapping_sub(mask) // sizes are below 2^63
}

#[cold]
fn add(value: i128, noise: Option<i128>) -> Result<i128, Error> {
    noise
        .and_then(|noise| value.checked_add(noise))
        .filter(|noisy| noisy.unsigned_abs() < NOISY_END)
        .ok_or(Error::Noisy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_an_error() {
        let (limit, end) = (1 << 120, 10_i128.pow(38));
        assert_eq!(add(limit, Some(end - limit - 1)), Ok(end - 1));
        assert_eq!(add(limit, Some(end - limit)), Err(Error::Noisy));
        assert_eq!(add(-limit, Some(limit - end)), Err(Error::Noisy));
        assert_eq!(add(limit, Some(i128::MAX)), Err(Error::Noisy));
        assert_eq!(add(-limit, Some(i128::MAX)), Err(Error::Noisy)); // so must None be, for any value
        assert_eq!(add(-limit, None), Err(Error::Noisy));
    }

    #[test]
    fn both_passes_agree() {
        let limit = 1 << 120;
        for value in [0, -1, limit - 1, 1 - limit, limit, -limit, i128::from(u64::MAX)] {
            assert_eq!(check(&[3, value, limit, 1]), Ok(()));
            assert_eq!(check(&[3, value]), Ok(()));
        }
        for value in [limit + 1, -limit - 1, i128::MAX, i128::MIN] {
            assert_eq!(check(&[3, value]), Err(Error::Exact));
        }
    }

    #[test]
    fn signs() {
        for (size, noise) in [(0, 0), (1, 1), ((1 << 63) - 1, i64::MAX)] {
            assert_eq!((signed(size, false), signed(size, true)), (noise, -noise));
        }
    }
}
