//! Report noisy max.

use num_bigint::{BigInt, BigUint};

use crate::bits::Bits;
use crate::choice::Rate;
use crate::laplace::exponential;
use crate::scale::Real;

/// A candidate that may have the largest noisy score.
struct Contender {
    i: usize,
    noise: Real,
    negative: bool,
    high: i128,
}

/// # Needs
///
/// At least one score, else there is none to give.
///
/// # Gives
///
/// The i with the largest rate * `scores[i]` + noise, for independent real noise: standard exponential
/// (which is permute-and-flip: Ding et al. 2021) or, with `signs`, standard Laplace.
///
/// # Proof
///
/// Scores are taken from the largest one. In units of 2^-57 each noisy score is enclosed by a few
/// integers, and only those that reach above the low end of another can be the largest. Those that are
/// left are told apart by [`narrow`].
///
/// # Checked
///
/// `noisy_max::tests`, `tests/test_choice.py`.
pub fn noisy_max(rate: &Rate, scores: &[i128], signs: bool, bits: &mut impl Bits) -> Option<usize> {
    let largest = *scores.iter().max()?;
    let mut contenders: Vec<Contender> = Vec::new();
    let mut best = i128::MIN;
    for (i, score) in scores.iter().enumerate() {
        let (mut noise, sign) = exponential(bits);
        let negative = signs && sign;
        let size = i128::from(noise.whole) << 52 | i128::from(noise.fraction.digit(0, bits) >> 12);
        let (least, most) = if negative { (-size - 1, -size) } else { (size, size + 1) };
        let (low, high) = match rate.units(score.abs_diff(largest)) {
            Some(units) => (least - i128::from(units) - 3, most - i128::from(units)),
            None => (i128::MIN, most - (1 << 63)),
        };
        if high < best {
            continue;
        }
        if low > best {
            best = low;
            contenders.retain(|other| other.high >= best);
        }
        contenders.push(Contender { i, noise, negative, high });
    }
    Some(narrow(rate, scores, largest, contenders, bits))
}

/// The largest of some: all are enclosed by more and more digits, until one is above all others.
fn narrow(
    rate: &Rate,
    scores: &[i128],
    largest: i128,
    mut contenders: Vec<Contender>,
    bits: &mut impl Bits,
) -> usize {
    let mut places = 5_u32; // the noise is in units of 1/32
    for digit in 0.. {
        if let [last] = contenders.as_slice() {
            return last.i;
        }
        places += 64;
        let mut ends = Vec::new();
        for contender in &mut contenders {
            let mut size = BigUint::from(contender.noise.whole);
            for i in 0..=digit {
                size = (size << 64_u32) + contender.noise.fraction.digit(i, bits);
            }
            let below = rate.times(scores[contender.i].abs_diff(largest));
            let below = BigInt::from((below.over << places) / below.under);
            let size = BigInt::from(size);
            let least = if contender.negative { -size - 1_u8 } else { size } - below;
            ends.push((&least - 1_u8, least + 1_u8));
        }
        let best = ends.iter().map(|(low, _)| low).max().cloned().unwrap_or_default();
        let mut ends = ends.into_iter();
        contenders.retain(|_| ends.next().is_some_and(|(_, high)| high >= best));
    }
    unreachable!()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Entropy;
    use crate::lazy::Lazy;
    use crate::tape::Tape;

    fn shares(scores: &[i128], signs: bool) -> Vec<f64> {
        let (rate, mut bits) = (Rate::new(1.0).unwrap(), Entropy::new().unwrap());
        let mut seen = vec![0_u32; scores.len()];
        for _ in 0..200_000 {
            seen[noisy_max(&rate, scores, signs, &mut bits).unwrap()] += 1;
        }
        seen.into_iter().map(|seen| f64::from(seen) / 200_000.0).collect()
    }

    #[test]
    fn probabilities() {
        // Permute-and-flip on (0, 1, 2), as published; two Laplace noises differ by more than 1 on one
        // side with probability (1/2 + 1/4) / e.
        let two = 0.75 / 1_f64.exp();
        for (scores, signs, expected) in [
            (&[0, 1, 2][..], false, &[0.059_370, 0.175_642, 0.764_988][..]),
            (&[7, 6], true, &[1.0 - two, two]),
            (&[1, 1, 1, 1], true, &[0.25; 4]),
        ] {
            for (seen, expected) in shares(scores, signs).iter().zip(expected) {
                assert!((seen - expected).abs() < 0.0075, "{seen} for {expected}");
            }
        }
    }

    #[test]
    fn near_ties_are_told_apart_by_more_digits() {
        let rate = Rate::new(1.0).unwrap();
        for (words, negative, winner) in [([3, 8, 80], false, 1), ([3, 8, 80], true, 0)] {
            let tape = &mut Tape::new(&[5, 5, words[0], words[0], words[1], words[2]]);
            let fractions = [Lazy::new(tape), Lazy::new(tape)];
            let contenders = (0..).zip(fractions).map(|(i, fraction)| Contender {
                i,
                noise: Real { whole: 4, fraction },
                negative,
                high: 0,
            });
            assert_eq!(narrow(&rate, &[0, 0], 0, contenders.collect(), tape), winner);
            assert_eq!(tape.used(), 6);
        }
    }

    #[test]
    fn extremes() {
        let bits = &mut Entropy::new().unwrap();
        let (tiny, huge) = (Rate::new(5e-324).unwrap(), Rate::new(f64::MAX).unwrap());
        for signs in [false, true] {
            assert_eq!(noisy_max(&huge, &[-5, 1 << 120, 3], signs, bits), Some(1));
            assert_eq!(noisy_max(&huge, &[9], signs, bits), Some(0));
            assert_eq!(noisy_max(&huge, &[], signs, bits), None);
            assert!(noisy_max(&tiny, &[0; 1000], signs, bits).is_some());
        }
    }
}
