//! What can go wrong, as Python sees it. The texts are constant: they show no value.

use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pub enum Failure {
    Mechanism,
    Stream,
    Columns,
    Scores,
    Selection,
    Keys,
    Null,
    Noise(dpsql_noise::Error),
    Limit(dpsql_limit::Error),
    Interrupt(PyErr),
}

impl Failure {
    /// An exception raised by whoever gives the stream: its text may show values and is dropped.
    /// What is no error, as `KeyboardInterrupt`, goes on.
    pub fn raised(py: Python, error: PyErr) -> Self {
        if error.is_instance_of::<PyException>(py) { Self::Stream } else { Self::Interrupt(error) }
    }
}

impl From<dpsql_noise::Error> for Failure {
    fn from(error: dpsql_noise::Error) -> Self {
        Self::Noise(error)
    }
}

impl From<dpsql_limit::Error> for Failure {
    fn from(error: dpsql_limit::Error) -> Self {
        Self::Limit(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        use dpsql_noise::Error::{Entropy, Noisy};
        match failure {
            Failure::Mechanism => PyValueError::new_err(
                "the mechanism must be 'laplace', 'sliced_laplace' or 'gaussian'",
            ),
            Failure::Stream => PyValueError::new_err("the exact values could not be read"),
            Failure::Columns => PyValueError::new_err(
                "the exact values must be decimal128(38, 0), with one noise scale for each column, \
                 and keys only with a threshold",
            ),
            Failure::Scores => PyValueError::new_err(
                "the exact values must be one column of decimal128(38, 0), or of lists of it where there are many vectors",
            ),
            Failure::Selection => PyValueError::new_err(
                "the noise must be 'gumbel', 'exponential' or 'laplace', and k at least 1, or exactly 1 without Gumbel noise",
            ),
            Failure::Keys => PyValueError::new_err(
                "there must be keys and, in the last column, persons as decimal128(38, 0)",
            ),
            Failure::Null => PyValueError::new_err("an exact value is NULL"),
            Failure::Noise(error @ (Noisy | Entropy)) => PyRuntimeError::new_err(error.to_string()),
            Failure::Noise(error) => PyValueError::new_err(error.to_string()),
            Failure::Limit(error) => PyValueError::new_err(error.to_string()),
            Failure::Interrupt(error) => error,
        }
    }
}
