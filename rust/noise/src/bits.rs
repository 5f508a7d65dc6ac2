//! Where random bits come from.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use zeroize::Zeroizing;

use crate::Error;

/// A source of independent, uniformly distributed 64-bit words.
pub trait Bits {
    fn word(&mut self) -> u64;
}

/// `ChaCha20` under a key that the operating system drew for this one call.
///
/// Every call of [`crate::add_noise`] makes its own and drops it: no state is shared between
/// threads or survives a fork, and nobody can pass a seed. Key and buffer are zeroed on drop.
pub struct Entropy(ChaCha20Rng);

impl Entropy {
    pub fn new() -> Result<Self, Error> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(key.as_mut()).map_err(|_| Error::Entropy)?;
        Ok(Self(ChaCha20Rng::from_seed(*key)))
    }
}

impl Bits for Entropy {
    fn word(&mut self) -> u64 {
        self.0.next_u64()
    }
}
