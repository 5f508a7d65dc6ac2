//! Where random bits come from.

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
}

impl Entropy {
    pub fn new() -> Result<Self, Error> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(key.as_mut()).map_err(|_| Error::Entropy)?;
        let cipher = Ctr64LE::new((&*key).into(), &[0; 16].into());
        Ok(Self { cipher, buffer: Zeroizing::new([[0; 8]; WORDS]), used: WORDS })
    }

    /// Overwrites all of `words` with fresh ones.
    pub fn fill(&mut self, words: &mut Words) {
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
                return u64::from_le_bytes(*word);
            }
            self.buffer.fill([0; 8]);
            self.cipher.apply_keystream(self.buffer.as_flattened_mut());
            self.used = 0;
        }
    }
}
