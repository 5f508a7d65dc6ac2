//! Selection by noisy scores, for many vectors of scores in one call.

use crate::Error;
use crate::choice::{Rate, Urn};
use crate::noise::MAX_EXACT;
use crate::noisy_max::noisy_max;
use crate::parallel::in_parallel;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The k largest with Gumbel noise, in order: the exponential mechanism k times, without repetition.
    Gumbel(usize),
    /// The largest with exponential noise: permute-and-flip.
    Exponential,
    /// The largest with Laplace noise.
    Laplace,
}

/// For each of the vectors that `ends` cuts the scores into, the places of the candidates chosen from it.
///
/// A vector of m candidates gives the smaller of m and k places, one after the other.
///
/// # Errors
///
/// [`Error::Rate`] and [`Error::Exact`] for what is not as needed, [`Error::Entropy`].
pub fn select(
    selection: Selection,
    rate: f64,
    scores: &[i128],
    ends: &[usize],
) -> Result<Vec<u64>, Error> {
    let rate = Rate::new(rate)?;
    if scores.iter().any(|score| score.unsigned_abs() > MAX_EXACT) {
        return Err(Error::Exact);
    }
    let most = if let Selection::Gumbel(k) = selection { k } else { 1 };
    let starts = [0].into_iter().chain(ends.iter().copied());
    let vectors: Vec<_> = starts.zip(ends).map(|(start, end)| &scores[start..*end]).collect();
    let mut places = vec![0; vectors.iter().map(|vector| vector.len().min(most)).sum()];
    let mut work = Vec::with_capacity(vectors.len());
    let mut free = places.as_mut_slice();
    for vector in vectors {
        let (mine, others) = free.split_at_mut(vector.len().min(most));
        work.push((vector, mine));
        free = others;
    }
    in_parallel(&mut work, |work, bits| {
        for (vector, places) in work {
            let mut urn =
                (selection == Selection::Gumbel(most)).then(|| Urn::new(&rate, vector, &[]));
            for place in places.iter_mut() {
                let chosen = match &mut urn {
                    Some(urn) => urn.draw(bits),
                    None => noisy_max(&rate, vector, selection == Selection::Laplace, bits),
                };
                *place = chosen.ok_or(Error::Exact)? as u64;
            }
        }
        Ok(())
    })?;
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_apart() {
        let scores = [1, 9, 2, 7, 8, 5, 5];
        let ends = [3, 3, 5, 7];
        for selection in [Selection::Gumbel(1), Selection::Exponential, Selection::Laplace] {
            let places = select(selection, 1e6, &scores, &ends).unwrap();
            assert_eq!((&places[..2], places.len(), places[2] < 2), (&[1, 1][..], 3, true));
            assert_eq!(select(selection, 1.0, &[], &[]), Ok(vec![]));
            assert_eq!(select(selection, f64::NAN, &scores, &ends), Err(Error::Rate));
            assert_eq!(select(selection, 1.0, &[1 << 121], &[1]), Err(Error::Exact));
        }
        let places = select(Selection::Gumbel(2), 1e6, &scores, &ends).unwrap();
        assert_eq!((&places[..4], places[4] + places[5]), (&[1, 2, 1, 0][..], 1));
    }

    #[test]
    fn many_vectors() {
        let n = 300_000;
        let ends: Vec<_> = (1..=n).map(|i| 3 * i).collect();
        let scores: Vec<_> = [0, 1, 2].into_iter().cycle().take(3 * n).collect();
        let places = select(Selection::Gumbel(1), 1.0, &scores, &ends).unwrap();
        for (i, p) in [0.090_031, 0.244_728, 0.665_241].into_iter().enumerate() {
            let seen = places.iter().filter(|place| **place == i as u64).count();
            #[allow(clippy::cast_precision_loss)]
            let share = seen as f64 / n as f64;
            assert!((share - p).abs() < 0.006);
        }
    }
}
