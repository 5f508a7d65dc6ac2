//! Uniform reals and integers, exactly.

use std::cmp::Ordering;

use crate::bits::Bits;

/// A uniform real in [0, 1), whose digits in base 2^64 are drawn when they are first looked at.
pub struct Lazy {
    first: u64,
    rest: Vec<u64>,
}

impl Lazy {
    pub fn new(bits: &mut impl Bits) -> Self {
        Self::of(bits.word())
    }

    /// A uniform with this first digit.
    pub fn of(first: u64) -> Self {
        Self { first, rest: Vec::new() }
    }

    /// A uniform whose first bits are the last `count` of `known`, fewer than 64.
    pub fn starting(known: u64, count: u32, bits: &mut impl Bits) -> Self {
        Self::of(known << (64 - count) | bits.word() >> count)
    }

    /// Digit `i` after the point.
    pub fn digit(&mut self, i: usize, bits: &mut impl Bits) -> u64 {
        if i == 0 {
            return self.first;
        }
        while self.rest.len() < i {
            self.rest.push(bits.word());
        }
        self.rest[i - 1]
    }

    /// Whether `self < other`, decided by the first digit that differs.
    ///
    /// Two independent uniforms are equal with probability zero, so this ends with probability one.
    pub fn less(&mut self, other: &mut Self, bits: &mut impl Bits) -> bool {
        let mut i = 0;
        loop {
            match self.digit(i, bits).cmp(&other.digit(i, bits)) {
                Ordering::Less => return true,
                Ordering::Greater => return false,
                Ordering::Equal => i += 1,
            }
        }
    }
}

/// A uniform integer in 0..n, for n of at least 2: as many leading bits as `n - 1` has, redrawn
/// until they are below `n`.
pub fn below(n: u64, bits: &mut impl Bits) -> u64 {
    loop {
        let candidate = bits.word() >> (n - 1).leading_zeros();
        if candidate < n {
            return candidate;
        }
    }
}

/// A fair coin.
pub fn coin(bits: &mut impl Bits) -> bool {
    below(2, bits) == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::{Tape, masses};

    #[test]
    fn a_tie_draws_more_digits() {
        let mut tape = Tape::new(&[5, 5, 8, 8, 1, 2]);
        let (mut a, mut b) = (Lazy::new(&mut tape), Lazy::new(&mut tape));
        assert!(a.less(&mut b, &mut tape)); // .5 8 1 < .5 8 2
        assert_eq!(tape.used(), 6);
        assert!(!b.less(&mut a, &mut tape)); // the digits stay what they were
        assert_eq!(tape.used(), 6);
    }

    #[test]
    fn below_is_uniform() {
        for n in 2..=8_u64 {
            let (mass, open) = masses(3, 5, |bits| below(n, bits));
            assert!(mass.keys().all(|i| *i < n) && mass.len() as u64 == n);
            assert!(mass.values().all(|p| p.to_bits() == mass[&0].to_bits()) && open < 0.01);
        }
        assert_eq!(below(u64::MAX, &mut Tape::new(&[u64::MAX, 7])), 7);
    }
}
