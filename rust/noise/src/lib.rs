//! Exact samplers of integer noise: what is drawn has the stated distribution, not one near it.
//!
//! No floating-point number decides anything. Uniform reals are drawn digit by digit until every
//! comparison is settled, so each branch is the one that the algorithm on real numbers takes.

#![forbid(unsafe_code)]

mod bits;
mod gaussian;
mod laplace;
mod lazy;
mod run;
mod scale;
#[cfg(test)]
mod tape;

use std::fmt;

use bits::Entropy;
pub use scale::Scale;

/// The largest exact value that may be noised.
const MAX_EXACT: u128 = 1 << 120;

/// Noisy values are below this: they have at most 38 decimal digits.
const NOISY_END: u128 = 10_u128.pow(38);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// P(k) proportional to exp(-|k| / scale).
    Laplace,
    /// N(0, scale^2), rounded to the nearest integer.
    Gaussian,
}

/// Why no noise was added. The texts are constant: they show no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Scale,
    Exact,
    Noisy,
    Entropy,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scale => "a noise scale must lie between 2^-200 and 2^100",
            Self::Exact => "an exact value is larger than 2^120",
            Self::Noisy => "a noisy value has more than 38 digits",
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
pub fn add_noise(mechanism: Mechanism, scale: Scale, exact: Vec<i128>) -> Result<Vec<i128>, Error> {
    if exact.iter().any(|value| value.unsigned_abs() > MAX_EXACT) {
        return Err(Error::Exact);
    }
    let draw = match mechanism {
        Mechanism::Laplace => laplace::laplace,
        Mechanism::Gaussian => gaussian::gaussian,
    };
    let mut bits = Entropy::new()?;
    exact.into_iter().map(|value| add(value, draw(scale, &mut bits))).collect()
}

fn add(value: i128, noise: Option<i128>) -> Result<i128, Error> {
    noise
        .and_then(|noise| value.checked_add(noise))
        .filter(|noisy| noisy.unsigned_abs() < NOISY_END)
        .ok_or(Error::Noisy)
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
        let end = 10_i128.pow(38);
        assert_eq!(add(LIMIT, Some(end - LIMIT - 1)), Ok(end - 1));
        assert_eq!(add(LIMIT, Some(end - LIMIT)), Err(Error::Noisy));
        assert_eq!(add(-LIMIT, Some(LIMIT - end)), Err(Error::Noisy));
        assert_eq!(add(LIMIT, Some(i128::MAX)), Err(Error::Noisy));
        assert_eq!(add(-LIMIT, Some(i128::MAX)), Err(Error::Noisy)); // so must None be, for any value
        assert_eq!(add(-LIMIT, None), Err(Error::Noisy));
    }
}
