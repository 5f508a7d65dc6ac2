//! Events whose probability is known by enclosures only.

use num_bigint::BigUint;

use crate::Error;
use crate::bits::Bits;
use crate::choice::Rate;
use crate::exp::{Enclosure, OFF, Ratio, exp_minus, exp_minus_fast};
use crate::lazy::Lazy;
use crate::parallel::in_parallel;

/// # Needs
///
/// `p(n)` encloses 2^n p, for one p in [0, 1], as narrowly as to a constant.
///
/// # Gives
///
/// True with probability p, exactly.
///
/// # Proof
///
/// It is whether a uniform real v is below p. After n bits, v lies in [d, d + 1) 2^-n. Where that and
/// the enclosure do not overlap, the answer is proved; else both are narrowed. They overlap for ever
/// with probability zero.
///
/// # Checked
///
/// `bernoulli::tests::a_tie_draws_more_digits`, `table::tests`.
pub fn bernoulli(bits: &mut impl Bits, p: impl Fn(u32) -> Enclosure) -> bool {
    below(&mut Lazy::new(bits), bits, p)
}

fn below(v: &mut Lazy, bits: &mut impl Bits, p: impl Fn(u32) -> Enclosure) -> bool {
    let mut drawn = BigUint::ZERO;
    let mut precision = 0;
    for i in 0.. {
        drawn = (drawn << 64_u32) + v.digit(i, bits);
        precision += 64;
        let Enclosure { low, high } = p(precision);
        if drawn < low {
            return true;
        }
        if drawn >= high {
            return false;
        }
    }
    unreachable!()
}

/// True with probability exp(-rate n), exactly.
///
/// A word below 2 w or from 2 (w + OFF) on proves the comparison, for the w of [`exp_minus_fast`]; else
/// [`below`] goes on with it. From rate n >= 64 on w is zero: 2^63 e^-64 is less than one.
pub fn exp_event(rate: &Rate, n: u128, bits: &mut impl Bits) -> bool {
    let word = bits.word();
    let low = u128::from(rate.units(n).map_or(0, exp_minus_fast));
    match u128::from(word) {
        word if word < 2 * low => true,
        word if word >= 2 * (low + OFF) => false,
        _ => below(&mut Lazy::of(word), bits, |precision| exp_minus(&rate.times(n), precision)),
    }
}

/// The same event again and again: a word decides it, but for one draw in 2^60 or so.
pub struct Coin<P> {
    p: P,
    low: u128,
    high: u128,
}

impl<P: Fn(u32) -> Enclosure> Coin<P> {
    pub fn new(p: P) -> Self {
        Self::known(p(64), p)
    }

    /// Where `p(64)` is known already.
    pub fn known(Enclosure { low, high }: Enclosure, p: P) -> Self {
        let word = |end: BigUint| u128::try_from(end).unwrap_or(u128::MAX);
        Self { low: word(low), high: word(high), p }
    }

    #[inline]
    pub fn flip(&self, bits: &mut impl Bits) -> bool {
        let word = bits.word();
        if u128::from(word) < self.low {
            return true;
        }
        u128::from(word) < self.high && below(&mut Lazy::of(word), bits, &self.p)
    }
}

/// A probability, exactly.
#[derive(Clone, Debug)]
pub enum Chance {
    Ratio(Ratio),
    /// e^-x.
    ExpMinus(Ratio),
}

impl Chance {
    pub fn enclose(&self, precision: u32) -> Enclosure {
        match self {
            Self::Ratio(p) => {
                let scaled = &p.over << precision;
                let high = (&scaled + &p.under - 1_u8) / &p.under;
                Enclosure { low: scaled / &p.under, high }
            }
            Self::ExpMinus(x) => exp_minus(x, precision),
        }
    }
}

/// Independent events of one probability: `over / under`, or exp(-over / under).
///
/// # Errors
///
/// [`Error::Chance`] if there is no such probability, [`Error::Entropy`].
pub fn flips(over: u128, under: u128, exp: bool, n: usize) -> Result<Vec<bool>, Error> {
    if under == 0 || !exp && over > under {
        return Err(Error::Chance);
    }
    let ratio = Ratio { over: over.into(), under: under.into() };
    let chance = if exp { Chance::ExpMinus(ratio) } else { Chance::Ratio(ratio) };
    let coin = Coin::new(|precision| chance.enclose(precision));
    let mut events = vec![false; n];
    in_parallel(&mut events, |events, bits| {
        for event in events {
            *event = coin.flip(bits);
        }
        Ok(())
    })?;
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Tape;

    #[test]
    fn a_tie_draws_more_digits() {
        let third = u64::MAX / 3;
        for (last, below) in [(third - 1, true), (third + 1, false)] {
            let mut tape = Tape::new(&[third, third, last]);
            let p = |precision| {
                let low = (BigUint::from(1_u8) << precision) / 3_u8;
                Enclosure { high: &low + 1_u8, low }
            };
            assert_eq!(bernoulli(&mut tape, p), below);
            assert_eq!(tape.used(), 3);
        }
    }

    #[test]
    fn fast_and_slow_agree() {
        let third = u64::MAX / 3;
        let coin = Coin::new(|precision| {
            Chance::Ratio(Ratio { over: 1_u8.into(), under: 3_u8.into() }).enclose(precision)
        });
        for (words, below, used) in [
            ([third - 1, 0], true, 1),
            ([third + 1, 0], false, 1),
            ([third, third - 1], true, 2),
            ([third, third + 1], false, 2),
        ] {
            let mut tape = Tape::new(&words);
            assert_eq!((coin.flip(&mut tape), tape.used()), (below, used));
        }
    }

    #[test]
    fn an_exponential_event_is_decided_by_few_words() {
        let rate = Rate::new(0.7).unwrap();
        for n in [0_u32, 1, 2, 9, 60, 1000] {
            let slow = |word: u64| {
                let p = |precision| exp_minus(&rate.times(n.into()), precision);
                below(&mut Lazy::of(word), &mut Tape::new(&[1 << 63]), p)
            };
            let end = (2_f64.powi(64) * (-0.7 * f64::from(n)).exp()).min(2_f64.powi(64) - 1e4);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // below 2^64
            let end = end as u64;
            let mut used = Vec::new();
            for off in [0, 1, 100, 500, 1000, 1500, 1 << 14, 1 << 40] {
                for word in [end.saturating_sub(off), end.saturating_add(off)] {
                    let mut tape = Tape::new(&[word, 1 << 63]);
                    assert_eq!(exp_event(&rate, n.into(), &mut tape), slow(word));
                    used.push(tape.used());
                }
            }
            assert!(!(1..10).contains(&n) || used[used.len() - 2..] == [1, 1]); // far from the end
        }
        // e^0 = 1: the slow path is taken just below it, and is always true.
        for word in [u64::MAX, u64::MAX - 1000] {
            assert!(exp_event(&rate, 0, &mut Tape::new(&[word])));
        }
    }

    #[test]
    fn chances() {
        for (over, under, exp, p) in [
            (1, 3, false, 1.0 / 3.0),
            (0, 7, false, 0.0),
            (7, 7, false, 1.0),
            (0, 1, true, 1.0),
            (3, 2, true, (-1.5_f64).exp()),
            (1 << 100, 1, true, 0.0),
        ] {
            let seen = flips(over, under, exp, 300_000).unwrap().into_iter().filter(|event| *event);
            let seen = f64::from(u32::try_from(seen.count()).unwrap());
            assert!((seen - 300_000.0 * p).abs() <= 6.5 * (300_000.0 * p * (1.0 - p)).sqrt());
        }
        assert_eq!(flips(4, 3, false, 1), Err(Error::Chance));
        assert_eq!(flips(0, 0, true, 1), Err(Error::Chance));
        assert_eq!(flips(1, 3, false, 0), Ok(vec![]));
    }
}
