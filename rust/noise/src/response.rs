//! Randomized response.

use num_bigint::BigUint;

use crate::Error;
use crate::bernoulli::Coin;
use crate::exp::{Enclosure, Ratio, exp_minus};
use crate::lazy::below;
use crate::parallel::in_parallel;

/// Replaces each of the answers 0 .. k - 1 by another one, now and then.
///
/// # Needs
///
/// k of at least 2; a finite and positive epsilon.
///
/// # Gives
///
/// Each answer with probability e^epsilon / (k - 1 + e^epsilon), else one of the k - 1 others, all with
/// the same probability: epsilon-DP for the answer.
///
/// # Proof
///
/// The probability of the truth is 1 / (1 + (k - 1) e^-epsilon), which falls with e^-epsilon, so ends
/// of the one enclose the other. Any other answer has probability e^-epsilon times that.
///
/// # Checked
///
/// `response::tests`, `tests/test_response.py`.
///
/// # Errors
///
/// [`Error::Rate`], [`Error::Category`], [`Error::Entropy`].
pub fn respond(epsilon: f64, k: u64, mut answers: Vec<i128>) -> Result<Vec<i128>, Error> {
    let epsilon = Ratio::new(epsilon).ok_or(Error::Rate)?;
    if k < 2 || answers.iter().any(|answer| !(0..k.into()).contains(answer)) {
        return Err(Error::Category);
    }
    let coin = Coin::new(|precision| truth(&epsilon, k, precision));
    in_parallel(&mut answers, |answers, bits| {
        for answer in answers {
            if !coin.flip(bits) {
                let other = if k == 2 { 0 } else { i128::from(below(k - 1, bits)) };
                *answer = other + i128::from(other >= *answer);
            }
        }
        Ok(())
    })?;
    Ok(answers)
}

fn truth(epsilon: &Ratio, k: u64, precision: u32) -> Enclosure {
    let width = precision + 66;
    let lie = exp_minus(epsilon, width);
    let one = BigUint::from(1_u8) << width;
    let end = |lie: BigUint| (&one << precision) / (&one + lie * (k - 1));
    Enclosure { low: end(lie.high), high: end(lie.low) + 1_u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities() {
        for (epsilon, k) in [(1.0, 2), (0.5, 3), (2.0, 10)] {
            let n = 300_000;
            let answers = respond(epsilon, k, vec![1; n]).unwrap();
            #[allow(clippy::cast_precision_loss)]
            let (n, others) = (n as f64, (k - 1) as f64);
            let p = 1.0 / (1.0 + others * (-epsilon).exp());
            for answer in 0..i128::from(k) {
                let p = if answer == 1 { p } else { (1.0 - p) / others };
                #[allow(clippy::cast_precision_loss)]
                let seen = answers.iter().filter(|other| **other == answer).count() as f64;
                assert!((seen - n * p).abs() < 6.5 * (n * p * (1.0 - p)).sqrt());
            }
        }
    }

    #[test]
    fn extremes() {
        let Enclosure { low, high } = truth(&Ratio::new(1.0).unwrap(), 2, 60);
        let (low, high) = (u64::try_from(low).unwrap(), u64::try_from(high).unwrap());
        assert!(
            high - low <= 2 && (842_853_156_429_840_000..842_853_156_429_850_000).contains(&low)
        );
        assert_eq!(respond(1e300, 5, vec![0, 4]), Ok(vec![0, 4]));
        assert_eq!(respond(5e-324, u64::MAX, vec![]), Ok(vec![]));
        for (epsilon, k, answers, error) in [
            (f64::NAN, 2, vec![0], Error::Rate),
            (-1.0, 2, vec![0], Error::Rate),
            (1.0, 1, vec![0], Error::Category),
            (1.0, 3, vec![3], Error::Category),
            (1.0, 3, vec![-1], Error::Category),
        ] {
            assert_eq!(respond(epsilon, k, answers), Err(error));
        }
    }
}
