//! Quantiles from the cells of a histogram.

use crate::Error;
use crate::choice::{Rate, choose_at};
use crate::exp::Ratio;
use crate::noise::MAX_EXACT;

/// Chooses the cell of a quantile by the exponential mechanism.
///
/// # Needs
///
/// For each cell in order its exact weight of rows, to which a person adds at most 1 in all, and its public
/// width; the quantile `over / under` in [0, 1].
///
/// # Gives
///
/// Cell i with probability proportional to width(i) exp(epsilon u(i) / (2 max(q, 1 - q))), exactly, where
/// -u(i) is the distance of the rank q n from the ranks in the cell. This is epsilon-bounded-range.
///
/// # Proof
///
/// A person moves left(i) - q n by one of 1 - q and -q, and q n - right(i) too, so u(i) by at most
/// max(q, 1 - q). In units of 1 / under all is an integer, and the rate is a rational.
///
/// # Checked
///
/// `quantile::tests`, `tests/test_choice.py`.
///
/// # Errors
///
/// [`Error::Rate`], [`Error::Chance`], [`Error::Weights`], [`Error::Exact`], [`Error::Entropy`].
pub fn quantile(
    epsilon: f64,
    over: u64,
    under: u64,
    widths: &[u128],
    rows: &[i128],
) -> Result<usize, Error> {
    let Ratio { over: top, under: bottom } = Ratio::new(epsilon).ok_or(Error::Rate)?;
    if under == 0 || over > under {
        return Err(Error::Chance);
    }
    let most = over.max(under - over);
    let rate = Rate::of(Ratio { over: top, under: bottom * 2_u8 * most }).ok_or(Error::Rate)?;
    choose_at(&rate, &utilities(over, under, rows).ok_or(Error::Exact)?, widths)
}

/// u(i) in units of 1 / under; None if one is too large.
fn utilities(over: u64, under: u64, rows: &[i128]) -> Option<Vec<i128>> {
    let fits = |value: &i128| value.unsigned_abs() <= MAX_EXACT;
    let total = rows.iter().try_fold(0_i128, |sum, rows| {
        sum.checked_add(*rows).filter(|_| *rows >= 0 && fits(rows))
    })?;
    let target = total.checked_mul(over.into()).filter(fits)?;
    let mut left = 0;
    rows.iter()
        .map(|rows| {
            let right =
                rows.checked_mul(under.into()).filter(fits)?.checked_add(left).filter(fits)?;
            let outside = 0.max(left - target).max(target - right);
            left = right;
            Some(-outside)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilities_are_distances_of_ranks() {
        // Of 10 rows the median's rank is 5: in the third cell; in halves of a row.
        assert_eq!(utilities(1, 2, &[2, 0, 4, 4]), Some(vec![-6, -6, 0, -2]));
        assert_eq!(utilities(3, 4, &[2, 0, 4, 4]), Some(vec![-22, -22, -6, 0]));
        assert_eq!(utilities(0, 1, &[0, 3]), Some(vec![0, 0]));
        assert_eq!(utilities(1, 2, &[1, -1]), None);
        assert_eq!(utilities(1, u64::MAX, &[1 << 60]), None);
    }

    #[test]
    fn extremes() {
        assert_eq!(quantile(1e9, 1, 2, &[1, 1, 1], &[10, 5, 20]), Ok(2));
        assert_eq!(quantile(1e9, 1, 4, &[1, 1, 1], &[1, 10, 1]), Ok(1));
        assert_eq!(quantile(1.0, 1, 2, &[7], &[0]), Ok(0));
        assert_eq!(quantile(f64::NAN, 1, 2, &[7], &[0]), Err(Error::Rate));
        assert_eq!(quantile(1.0, 3, 2, &[7], &[0]), Err(Error::Chance));
        assert_eq!(quantile(1.0, 1, 2, &[7, 0], &[0, 0]), Err(Error::Weights));
        assert_eq!(quantile(1.0, 1, 2, &[], &[]), Err(Error::Weights));
    }
}
