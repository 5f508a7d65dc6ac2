//! Adding noise.

use zeroize::Zeroizing;

use crate::Error;
use crate::bits::{Bits, Entropy, WORDS};

/// The largest exact value that may be noised.
pub const MAX_EXACT: u128 = 1 << 120;

/// Noisy values are below this: they have at most 38 decimal digits.
const NOISY_END: u128 = 10_u128.pow(38);

/// A distribution on the integers, of which most draws need W words and little work.
///
/// # Needs
///
/// `fast` gives what `slow` gives, or None.
pub trait Sampler<const W: usize>: Sync {
    fn fast(&self, words: [u64; W]) -> Option<i64>;

    /// None stands for all integers from 2^127 on, in magnitude.
    fn slow(&self, words: [u64; W], bits: &mut impl Bits) -> Option<i128>;
}

/// Adds a draw to each value, of magnitude at most [`MAX_EXACT`].
pub fn add_each<const W: usize>(
    values: &mut [i128],
    sampler: &impl Sampler<W>,
    bits: &mut Entropy,
) -> Result<(), Error> {
    let mut buffer = Zeroizing::new([[0; 8]; WORDS]);
    for values in values.chunks_mut(WORDS / W) {
        let words = &mut buffer[..W * values.len()];
        bits.fill(words);
        for (value, words) in values.iter_mut().zip(words.as_chunks().0) {
            let words = words.map(u64::from_le_bytes);
            *value = match sampler.fast(words) {
                Some(noise) => value.wrapping_add(noise.into()), // below 2^121
                None => add(*value, sampler.slow(words, bits))?,
            };
        }
    }
    Ok(())
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
    fn signs() {
        for (size, noise) in [(0, 0), (1, 1), ((1 << 63) - 1, i64::MAX)] {
            assert_eq!((signed(size, false), signed(size, true)), (noise, -noise));
        }
    }
}
