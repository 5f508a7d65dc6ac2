//! Exact samplers of integer noise: what is drawn has the stated distribution, not one near it.
//!
//! No floating-point number decides anything. Uniform reals are drawn digit by digit until every
//! comparison is settled, so each branch is the one that the algorithm on real numbers takes.

#![forbid(unsafe_code)]

mod bernoulli;
mod bits;
mod choice;
mod exp;
mod gaussian;
mod laplace;
mod lazy;
mod noise;
mod noisy_max;
mod parallel;
mod partition;
mod quantile;
mod response;
mod run;
mod scale;
mod select;
mod sliced;
mod table;
mod tabled;
#[cfg(test)]
mod tape;
mod truncated;

use std::fmt;

pub use bernoulli::flips;
pub use choice::choose;
use gaussian::Gaussian;
use laplace::Laplace;
use noise::{MAX_EXACT, Sampler, add_each};
use parallel::in_parallel;
pub use partition::show;
pub use quantile::quantile;
pub use response::respond;
pub use scale::Scale;
pub use select::{Selection, select};
use truncated::Truncated;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// P(k) proportional to exp(-|k| / scale).
    Laplace,
    /// The same, by operations and addresses that do not depend on it; for scales up to 2^50.
    Sliced,
    /// The same, among |k| up to a bound.
    Truncated(u64),
    /// N(0, scale^2), rounded to the nearest integer.
    Gaussian,
}

/// Why no noise was added. The texts are constant: they show no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Scale,
    Exact,
    Noisy,
    Rate,
    Weights,
    Chance,
    Bound,
    Category,
    Delta,
    Entropy,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scale => {
                "a noise scale must lie between 2^-200 and 2^100, or 2^50 for sliced noise"
            }
            Self::Exact => "an exact value is larger than 2^120",
            Self::Noisy => "a noisy value has more than 38 digits",
            Self::Rate => "a rate must be finite and above zero",
            Self::Weights => {
                "each of the candidates, at least one, needs a weight from 1 to 2^128 - 1"
            }
            Self::Chance => "a probability must lie between 0 and 1",
            Self::Bound => "a bound on the noise must lie between 0 and 2^62",
            Self::Category => "an answer is not one of the k, at least 2, categories",
            Self::Delta => "delta must lie between 0 and 1, and epsilon not be too small beside it",
            Self::Entropy => "the operating system gave no random bits",
        })
    }
}

impl std::error::Error for Error {}

/// Adds independent noise to each value.
///
/// # Needs
///
/// Exact values of magnitude at most 2^120.
///
/// # Gives
///
/// Each value plus fresh noise of the stated distribution; or, where one of these sums has more than
/// 38 digits, an error.
///
/// # Proof
///
/// The samplers are exact, and their key is drawn for this call only. The error is a function of the
/// noisy values alone, hence post-processing: where a sampler gives None or the sum leaves i128, the
/// sum is at least 2^127 - 2^120 in magnitude, which is more than 10^38. With scales up to 2^100 that
/// has probability below exp(-2^25) per value.
///
/// # Checked
///
/// `tests::noise_is_added_to_each_value`, `tests::what_is_too_large_is_an_error`,
/// `tests/test_mechanisms.py`.
///
/// # Errors
///
/// [`Error::Exact`] before any noise is drawn, [`Error::Entropy`], [`Error::Noisy`].
pub fn add_noise(
    mechanism: Mechanism,
    scale: Scale,
    mut values: Vec<i128>,
) -> Result<Vec<i128>, Error> {
    if values.iter().any(|value| value.unsigned_abs() > MAX_EXACT) {
        return Err(Error::Exact);
    }
    let (n, float) = (values.len(), scale.float());
    match mechanism {
        Mechanism::Laplace => match tabled::laplace(float, n) {
            Some(table) => add_all(&mut values, &table),
            None => add_all(&mut values, &Laplace::new(scale)),
        },
        Mechanism::Sliced => add_sliced(&mut values, scale),
        Mechanism::Truncated(bound) => add_all(&mut values, &Truncated::new(scale, bound)?),
        Mechanism::Gaussian => match tabled::gaussian(float, n) {
            Some(table) => add_all(&mut values, &table),
            None => add_all(&mut values, &Gaussian::new(scale)),
        },
    }?;
    Ok(values)
}

fn add_all<const W: usize>(values: &mut [i128], sampler: &impl Sampler<W>) -> Result<(), Error> {
    in_parallel(values, |values, bits| add_each(values, sampler, bits))
}

fn add_sliced(values: &mut [i128], scale: Scale) -> Result<(), Error> {
    let sliced = sliced::sliced(scale)?;
    in_parallel(values, |values, bits| {
        for values in values.chunks_mut(sliced::LANES) {
            for (value, noise) in values.iter_mut().zip(sliced.draw(bits)) {
                *value += i128::from(noise);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: i128 = 1 << 120;

    fn noised(mechanism: Mechanism, scale: f64, exact: &[i128]) -> Result<Vec<i128>, Error> {
        add_noise(mechanism, Scale::new(scale)?, exact.to_vec())
    }

    #[test]
    fn noise_is_added_to_each_value() {
        for mechanism in [Mechanism::Laplace, Mechanism::Gaussian] {
            let exact = [0, 5, -LIMIT, LIMIT];
            assert_eq!(noised(mechanism, 0.001, &exact), Ok(exact.to_vec()));
            let a = noised(mechanism, 1e6, &exact).unwrap();
            let b = noised(mechanism, 1e6, &exact).unwrap();
            assert!(a.iter().zip(&exact).all(|(noisy, exact)| (noisy - exact).abs() < 1 << 30));
            assert_ne!(a, b);
            assert_eq!(noised(mechanism, 1.0, &[]), Ok(vec![]));
            assert!(noised(mechanism, 2_f64.powi(100), &exact).is_ok());
        }
    }

    #[test]
    fn what_is_too_large_is_an_error() {
        for value in [LIMIT + 1, -LIMIT - 1, i128::MAX, i128::MIN] {
            assert_eq!(noised(Mechanism::Laplace, 1.0, &[0, value]), Err(Error::Exact));
        }
    }
}
