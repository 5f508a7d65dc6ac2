//! Which keys are shown, where nothing else is.

use num_bigint::BigUint;

use crate::Error;
use crate::bernoulli::Coin;
use crate::exp::{Enclosure, Ratio, exp_minus};
use crate::parallel::in_parallel;

/// More steps than anybody needs, and few enough to take.
const MOST_STEPS: usize = 1 << 17;

/// Whether to show each key, from the number of its persons.
///
/// # Needs
///
/// Persons who have one key each. 0 < epsilon, 0 < delta < 1.
///
/// # Gives
///
/// A key with n persons is shown with probability p(n), where p(0) = 0 and p(n) is the least of
/// e^epsilon p(n - 1) + delta, 1 - e^-epsilon (1 - p(n - 1) - delta) and 1. This is (epsilon, delta)-DP,
/// and no such rule shows a key with a larger probability (Desfontaines, Voss, Gipson, Mandayam 2020).
///
/// # Proof
///
/// For neighbours with n - 1 and n persons the four inequalities between p, p', 1 - p and 1 - p' are: the
/// first two limits, and, as p(n) >= p(n - 1), two that hold by themselves. Each limit grows with
/// p(n - 1), so the largest p(n - 1) allows the largest p(n). All steps are monotone: enclosures of the
/// parts enclose p(n).
///
/// # Checked
///
/// `partition::tests`, `tests/test_threshold.py`.
///
/// # Errors
///
/// [`Error::Rate`], [`Error::Delta`], [`Error::Entropy`].
pub fn show(epsilon: f64, delta: f64, persons: &[i128]) -> Result<Vec<bool>, Error> {
    let epsilon = Ratio::new(epsilon).ok_or(Error::Rate)?;
    let delta = Ratio::new(delta).filter(|_| delta < 1.0).ok_or(Error::Delta)?;
    let steps: Vec<_> = Steps::new(&epsilon, &delta, 64).take(MOST_STEPS + 1).collect();
    if steps.len() > MOST_STEPS {
        return Err(Error::Delta);
    }
    let (epsilon, delta) = (&epsilon, &delta);
    let coin =
        |(n, step)| Coin::known(step, move |precision| Steps::new(epsilon, delta, precision).at(n));
    let coins: Vec<_> = steps.into_iter().enumerate().map(coin).collect();
    let mut shown: Vec<_> = persons.iter().map(|persons| (*persons, false)).collect();
    in_parallel(&mut shown, |keys, bits| {
        for (persons, shown) in keys {
            *shown = *persons > 0
                && usize::try_from(*persons)
                    .ok()
                    .and_then(|persons| coins.get(persons))
                    .is_none_or(|coin| coin.flip(bits));
        }
        Ok(())
    })?;
    Ok(shown.into_iter().map(|(_, shown)| shown).collect())
}

/// p(0), p(1) .. in units of 2^-precision, up to the last one that may be below 1.
struct Steps {
    width: u32,
    spare: u32,
    one: BigUint,
    shrink: Enclosure,
    delta: Enclosure,
    next: Enclosure,
    done: bool,
}

impl Steps {
    fn new(epsilon: &Ratio, delta: &Ratio, precision: u32) -> Self {
        let spare = 64 + u32::try_from(delta.under.bits()).unwrap_or(0); // errors grow as p does
        let width = precision + spare;
        let low = (&delta.over << width) / &delta.under;
        Self {
            width,
            spare,
            one: BigUint::from(1_u8) << width,
            shrink: exp_minus(epsilon, width),
            delta: Enclosure { high: &low + 1_u8, low },
            next: Enclosure { low: BigUint::ZERO, high: BigUint::ZERO },
            done: false,
        }
    }

    /// p(n), which is 1 after the last.
    fn at(mut self, n: usize) -> Enclosure {
        let one = &self.one >> self.spare;
        self.nth(n).unwrap_or(Enclosure { low: one.clone(), high: one })
    }

    /// 1 - p - delta, or 0.
    fn rest(&self, p: &BigUint, delta: &BigUint) -> BigUint {
        &self.one - (p + delta).min(self.one.clone())
    }
}

impl Iterator for Steps {
    type Item = Enclosure;

    fn next(&mut self) -> Option<Enclosure> {
        if self.done {
            return None;
        }
        let (one, shrink, delta, p) = (&self.one, &self.shrink, &self.delta, &self.next);
        let rest = (self.rest(&p.low, &delta.low), self.rest(&p.high, &delta.high));
        let first = (&p.low << self.width) / &shrink.high + &delta.low;
        let second = one - (((&shrink.high * &rest.0) >> self.width) + 1_u8).min(one.clone());
        let low = first.min(second).min(one.clone());
        // e^epsilon p is p / e^-epsilon; where that may be a division by zero, this is no limit.
        let first = if shrink.low == BigUint::ZERO {
            one.clone()
        } else {
            (&p.high << self.width) / &shrink.low + 1_u8 + &delta.high
        };
        let second = one - ((&shrink.low * rest.1) >> self.width);
        let high = first.min(second).min(one.clone());
        self.done = rest.0 == BigUint::ZERO; // then the next is 1
        let now = std::mem::replace(&mut self.next, Enclosure { low, high });
        Some(Enclosure { low: now.low >> self.spare, high: (now.high >> self.spare) + 1_u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_chances() {
        let (epsilon, delta) = (Ratio::new(1.0).unwrap(), Ratio::new(1e-6).unwrap());
        #[allow(clippy::cast_precision_loss)]
        let p: Vec<_> = Steps::new(&epsilon, &delta, 60)
            .map(|p| {
                assert!(&p.high - &p.low <= 2_u8.into());
                u64::try_from(p.low).unwrap() as f64 / 2_f64.powi(60)
            })
            .collect();
        for (n, published) in [
            (0, 0.0),
            (1, 1e-6),
            (2, 3.718_28e-6),
            (3, 1.110_73e-5),
            (10, 0.012_818_3),
            (13, 0.257_474),
            (14, 0.699_887),
            (15, 0.889_595),
            (16, 0.959_385),
            (20, 0.999_257),
        ] {
            assert!((p[n] - published).abs() <= 5e-6 * published, "{n}: {}", p[n]);
        }
        assert!(p.len() < 40 && p[p.len() - 1] > 0.999_998);
    }

    #[test]
    fn enclosures_hold_at_every_precision() {
        for (epsilon, delta) in
            [(0.01, 1e-9), (0.3, 0.2), (1.0, 1e-15), (50.0, 1e-3), (1e20, 1e-300)]
        {
            let (epsilon, delta) = (Ratio::new(epsilon).unwrap(), Ratio::new(delta).unwrap());
            for (n, rough) in Steps::new(&epsilon, &delta, 64).enumerate().step_by(7) {
                let fine = Steps::new(&epsilon, &delta, 200).at(n);
                assert!(rough.low <= &fine.low >> 136 && rough.high << 136 >= fine.high);
            }
        }
    }

    #[test]
    fn keys() {
        let n = 300_000;
        let persons: Vec<_> = [0, -3, 13, 1 << 100].into_iter().cycle().take(4 * n).collect();
        let shown = show(1.0, 1e-6, &persons).unwrap();
        let count = |i| shown.iter().skip(i).step_by(4).filter(|shown| **shown).count();
        assert_eq!((count(0), count(1), count(3)), (0, 0, n));
        #[allow(clippy::cast_precision_loss)]
        let share = count(2) as f64 / n as f64;
        assert!((share - 0.257_474).abs() < 0.006);
        assert_eq!(show(1.0, 1e-6, &[]), Ok(vec![]));
        assert_eq!(show(0.0, 1e-6, &[]), Err(Error::Rate));
        assert_eq!(show(1e-9, 1e-9, &[]), Err(Error::Delta));
        assert!(
            [0.0, 1.0, -1.0, f64::NAN]
                .iter()
                .all(|delta| show(1.0, *delta, &[]) == Err(Error::Delta))
        );
    }
}
