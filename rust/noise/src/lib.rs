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
use bits::Entropy;
pub use bits::words_drawn;
pub use choice::{choose, choose_each};
use gaussian::Gaussian;
use laplace::Laplace;
use noise::{Sampler, Start, add_each, check};
use parallel::in_parts;
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

/// Adds independent noise to each value of some columns.
///
/// # Needs
///
/// Columns of one length, of exact values of magnitude at most 2^120.
///
/// # Gives
///
/// Each value plus fresh noise of the stated distribution; or, where one of these sums has more than
/// 38 digits, an error. The rows are cut into parts, one after the other, each with all columns.
///
/// # Proof
///
/// The samplers are exact, and their keys are drawn for this call only. The error is a function of the
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
/// [`Error::Exact`], which no noise decides; [`Error::Entropy`], [`Error::Noisy`].
///
/// # Panics
///
/// If a column is longer or shorter than another.
pub fn add_noise(
    mechanism: Mechanism,
    columns: &[(Scale, &[i128])],
) -> Result<Vec<Vec<Vec<i128>>>, Error> {
    let n = columns.first().map_or(0, |(_, exact)| exact.len());
    assert!(columns.iter().all(|(_, exact)| exact.len() == n));
    let adders = columns.iter().map(|(scale, _)| adder(mechanism, *scale, n));
    let adders = adders.collect::<Result<Vec<_>, _>>()?;
    in_parts(n, |part, bits| {
        let each = columns.iter().map(|(_, exact)| &exact[part.clone()]);
        each.clone().try_for_each(check)?;
        each.zip(&adders).map(|(exact, add)| add(exact, bits)).collect()
    })
}

type Adder = Box<dyn Fn(&[i128], &mut Entropy) -> Result<Vec<i128>, Error> + Sync>;

/// For so many values.
fn adder(mechanism: Mechanism, scale: Scale, n: usize) -> Result<Adder, Error> {
    Ok(match mechanism {
        Mechanism::Laplace => match tabled::laplace(scale, n) {
            Some(table) => each(table),
            None => each(Laplace::new(scale)),
        },
        Mechanism::Truncated(bound) => each(Truncated::new(scale, bound)?),
        Mechanism::Gaussian => match tabled::gaussian(scale, n) {
            Some(table) => each(table),
            None => each(Gaussian::new(scale)),
        },
        Mechanism::Sliced => {
            let sliced = sliced::sliced(scale)?;
            Box::new(move |exact, bits| {
                let mut noisy = Vec::with_capacity(exact.len());
                for exact in exact.chunks(sliced::LANES) {
                    noisy.extend(
                        exact.iter().zip(sliced.draw(bits)).map(|(a, b)| a + i128::from(b)),
                    );
                }
                Ok(noisy)
            })
        }
    })
}

fn each<S: Start>(sampler: impl Sampler<S> + 'static) -> Adder {
    Box::new(move |exact, bits| add_each(exact, &sampler, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: i128 = 1 << 120;

    fn noised(mechanism: Mechanism, scale: f64, exact: &[i128]) -> Result<Vec<i128>, Error> {
        let parts = add_noise(mechanism, &[(Scale::new(scale)?, exact)])?;
        Ok(parts.into_iter().flatten().flatten().collect())
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

    #[test]
    fn columns_are_apart_and_in_order() {
        let n = 300_000; // so many that all cores work
        let (quiet, loud) = (Scale::new(2_f64.powi(-200)).unwrap(), Scale::new(1e6).unwrap());
        let (up, zero): (Vec<_>, Vec<_>) = ((0..n).collect(), (0..n).map(|_| 0).collect());
        for mechanism in [Mechanism::Laplace, Mechanism::Sliced, Mechanism::Gaussian] {
            let parts =
                add_noise(mechanism, &[(quiet, &up), (loud, &zero), (loud, &zero)]).unwrap();
            let column = |i: usize| parts.iter().flat_map(move |part| &part[i]).copied();
            assert!(column(0).eq(0..n));
            assert!(column(1).zip(column(2)).filter(|(a, b)| a == b).count() < 10);
        }
        let bad = [(quiet, &up[..1]), (quiet, &[LIMIT + 1])];
        assert_eq!(add_noise(Mechanism::Laplace, &bad), Err(Error::Exact));
    }
}
