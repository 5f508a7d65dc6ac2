//! Where random bits come from.

use std::sync::atomic::{AtomicU64, Ordering};

use aes::Aes256;
use ctr::Ctr64LE;
use ctr::cipher::{KeyIvInit, StreamCipher};
use zeroize::Zeroizing;

use crate::Error;

/// A source of independent, uniformly distributed 64-bit words.
pub trait Bits {
    fn word(&mut self) -> u64;
}

/// Words in the order of memory, of which 512 are drawn at a time.
pub type Words = [[u8; 8]];
pub const WORDS: usize = 512;

/// AES-256 in counter mode under a key that the operating system drew for this object alone.
///
/// Every call makes its own for each of its threads and drops it: no state is shared between threads
/// or survives a fork, and nobody can pass a seed. Key and buffer are zeroed on drop. The blocks of one
/// key differ, which independent ones would with probability 1 - n^2 / 2^129 for n of them.
pub struct Entropy {
    cipher: Ctr64LE<Aes256>,
    buffer: Zeroizing<[[u8; 8]; WORDS]>,
    used: usize,
    drawn: u64,
}

/// What all that are dropped have drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// How many 64-bit words the calls of this process have drawn so far, for measurements.
#[must_use]
pub fn words_drawn() -> u64 {
    DRAWN.load(Ordering::Relaxed)
}

impl Drop for Entropy {
    fn drop(&mut self) {
        DRAWN.fetch_add(self.drawn, Ordering::Relaxed);
    }
}

impl Entropy {
    pub fn new() -> Result<Self, Error> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(key.as_mut()).map_err(|_| Error::Entropy)?;
        let cipher = Ctr64LE::new((&*key).into(), &[0; 16].into());
        Ok(Self { cipher, buffer: Zeroizing::new([[0; 8]; WORDS]), used: WORDS, drawn: 0 })
    }

    /// Overwrites all of `words` with fresh ones.
    pub fn fill(&mut self, words: &mut Words) {
        self.drawn += words.len() as u64;
        words.fill([0; 8]);
        self.cipher.apply_keystream(words.as_flattened_mut());
    }
}

impl Bits for Entropy {
    #[inline]
    fn word(&mut self) -> u64 {
        loop {
            if let Some(word) = self.buffer.get(self.used) {
                self.used += 1;
                self.drawn += 1;
                return u64::from_le_bytes(*word);
            }
            self.buffer.fill([0; 8]);
            self.cipher.apply_keystream(self.buffer.as_flattened_mut());
            self.used = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_and_differ() {
        let mut bits = Entropy::new().unwrap();
        let drawn: Vec<_> = (0..WORDS + 9).map(|_| bits.word()).collect();
        let mut more = [[0; 8]; 5];
        bits.fill(&mut more);
        assert_eq!(bits.drawn, WORDS as u64 + 14);
        let more = more.map(u64::from_le_bytes);
        let all: std::collections::BTreeSet<_> = drawn.iter().chain(&more).collect();
        assert_eq!(all.len(), WORDS + 14);
        drop(bits);
        assert!(words_drawn() >= WORDS as u64 + 14); // other tests draw as well
    }
}
