//! Choice of candidates, with exact probabilities.

use num_bigint::BigUint;

use crate::Error;
use crate::bits::{Bits, Entropy};
use crate::exp::{Enclosure, OFF, Ratio, exp_minus, exp_minus_fast};
use crate::lazy::Lazy;
use crate::noise::MAX_EXACT;
use crate::parallel::in_parallel;

/// Bits with which the first slow attempt computes.
const PRECISION: u32 = 192;

/// A positive rate, prepared for products with differences of scores.
pub struct Rate {
    exact: Ratio,
    /// floor(2^(57 + shift) rate), of 63 or 64 bits.
    leading: u64,
    shift: i64,
}

impl Rate {
    /// # Errors
    ///
    /// [`Error::Rate`] unless it is finite and positive.
    pub fn new(rate: f64) -> Result<Self, Error> {
        Ratio::new(rate).and_then(Self::of).ok_or(Error::Rate)
    }

    /// A positive rational.
    pub fn of(exact: Ratio) -> Option<Self> {
        let bits = |number: &BigUint| i64::try_from(number.bits()).ok();
        let shift = 6 - bits(&exact.over)? + bits(&exact.under)?;
        let (up, down) = ((57 + shift).max(0), (-57 - shift).max(0));
        let leading = u64::try_from((&exact.over << up) / (&exact.under << down)).ok()?;
        Some(Self { exact, leading, shift })
    }

    /// rate * n, exactly.
    pub fn times(&self, n: u128) -> Ratio {
        Ratio { over: &self.exact.over * n, under: self.exact.under.clone() }
    }

    /// u < 2^63 with 2^57 rate n in [u, u + 3]; None only if it is 2^63 or more.
    ///
    /// `leading` is at least 2^62 and less than one too small, so their quotient 2^-shift n is at most 2,
    /// and rounding down adds less than one.
    #[inline]
    pub fn units(&self, n: u128) -> Option<u64> {
        let units = match u64::try_from(n) {
            Ok(0) => 0,
            Ok(n) => {
                let product = u128::from(self.leading) * u128::from(n);
                product.checked_shr(u32::try_from(self.shift).ok()?).unwrap_or(0)
            }
            Err(_) => {
                let Ratio { over, under } = self.times(n);
                u128::try_from((over << 57_u32) / under).ok()?
            }
        };
        u64::try_from(units).ok().filter(|units| units >> 63 == 0)
    }
}

/// Candidates that are drawn without putting them back.
///
/// # Needs
///
/// For each candidate an integer score and, if they are not all 1, a positive weight.
///
/// # Gives
///
/// The next one is i with probability proportional to `weights[i]` * exp(rate * `scores[i]`) among those
/// left. In this order k of them are those of the k largest rate * score + ln(weight) + Gumbel noise.
///
/// # Proof
///
/// For one uniform real v, and s(i) the sum of the first i of these numbers, the i with
/// s(i) <= v s(n) < s(i + 1) has that probability. Scores are taken from the largest one, which divides
/// all by the same. [`exp_minus_fast`] encloses each number, so the sums too; where that does not prove
/// both comparisons, [`invert`] goes on with the same v. The Gumbel noises: the largest is that of i with
/// this probability, whatever its value is, and below it the others are as fresh.
///
/// # Checked
///
/// `choice::tests`, `tests/test_choice.py`.
pub struct Urn<'a> {
    rate: &'a Rate,
    scores: &'a [i128],
    weights: &'a [u64],
    gone: Vec<bool>,
    left: usize,
    /// Of each candidate 2^63 weight e^-x, rounded down; zero if it is gone.
    shares: Vec<u128>,
    sum: u128,
    /// How much the sum of all shares may be too small.
    slack: u128,
}

impl<'a> Urn<'a> {
    /// No weights stand for equal ones. There are fewer than 2^32 candidates, and the sum of their weights
    /// is below 2^50.
    pub fn new(rate: &'a Rate, scores: &'a [i128], weights: &'a [u64]) -> Self {
        let mut urn = Self {
            rate,
            scores,
            weights,
            gone: vec![false; scores.len()],
            left: scores.len(),
            shares: vec![0; scores.len()],
            sum: 0,
            slack: 0,
        };
        urn.fill();
        urn
    }

    fn fill(&mut self) {
        let present = self.scores.iter().zip(&self.gone).filter(|(_, gone)| !**gone);
        let largest = present.map(|(score, _)| *score).max().unwrap_or(0);
        (self.sum, self.slack) = (0, 0);
        for (i, (share, score)) in self.shares.iter_mut().zip(self.scores).enumerate() {
            if self.gone[i] {
                continue;
            }
            let weight = self.weights.get(i).map_or(1, |weight| u128::from(*weight));
            let power = self.rate.units(score.abs_diff(largest)).map_or(0, exp_minus_fast);
            *share = weight * u128::from(power);
            self.sum += *share;
            self.slack += weight * OFF;
        }
    }

    /// The next candidate, unless none is left.
    pub fn draw(&mut self, bits: &mut impl Bits) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        if self.sum >> 30 < self.slack {
            self.fill();
        }
        let mut v = Lazy::new(bits);
        let i = self.find(v.digit(0, bits)).unwrap_or_else(|| self.find_slowly(&mut v, bits));
        self.sum -= self.shares[i];
        self.shares[i] = 0;
        self.gone[i] = true;
        Some(i)
    }

    /// For v in [first, first + 1) 2^-64; None if that does not decide it.
    fn find(&self, first: u64) -> Option<usize> {
        let times = |sum: u128| {
            let low = (u128::from(first) * (sum & u128::from(u64::MAX))) >> 64;
            u128::from(first) * (sum >> 64) + low
        };
        let most = self.sum + self.slack;
        let (low, high) = (times(self.sum), times(most) + (most >> 64) + 2);
        let mut end = 0;
        for (i, share) in self.shares.iter().enumerate() {
            let start = end;
            end += share;
            if end >= high {
                return (i == 0 || start + self.slack <= low).then_some(i);
            }
        }
        None
    }

    #[cold]
    fn find_slowly(&self, v: &mut Lazy, bits: &mut impl Bits) -> usize {
        let left: Vec<_> = (0..self.scores.len()).filter(|i| !self.gone[*i]).collect();
        let largest = left.iter().map(|i| self.scores[*i]).max().unwrap_or(0);
        let candidates: Vec<_> = left
            .iter()
            .map(|i| {
                let weight = self.weights.get(*i).map_or(1, |weight| *weight);
                (weight.into(), self.rate.times(self.scores[*i].abs_diff(largest)))
            })
            .collect();
        left[invert(&candidates, PRECISION, v, bits)]
    }
}

/// Chooses a candidate by the exponential mechanism with a public prior.
///
/// # Needs
///
/// At least one candidate; for each an integer score of magnitude at most 2^120 and a positive weight;
/// a finite and positive rate.
///
/// # Gives
///
/// i with probability proportional to `weights[i]` * exp(rate * `scores[i]`), exactly.
///
/// # Proof
///
/// It is the first of an [`Urn`]. Where the weights are too large for one, so is [`invert`].
///
/// # Checked
///
/// `choice::tests`, `tests/test_choice.py`.
///
/// # Errors
///
/// [`Error::Rate`], [`Error::Weights`] and [`Error::Exact`] for what is not as needed,
/// [`Error::Entropy`].
pub fn choose(rate: f64, scores: &[i128], weights: &[u128]) -> Result<usize, Error> {
    choose_at(&Rate::new(rate)?, scores, weights)
}

/// The same for each list of weights and its own scores, which follow one another.
///
/// # Errors
///
/// As [`choose`], before any is chosen; [`Error::Weights`] also if there are not as many scores as weights.
pub fn choose_each(
    rate: f64,
    mut scores: &[i128],
    weights: &[Vec<u128>],
) -> Result<Vec<usize>, Error> {
    let rate = Rate::new(rate)?;
    if scores.len() != weights.iter().map(Vec::len).sum::<usize>() {
        return Err(Error::Weights);
    }
    let mut work = Vec::with_capacity(weights.len());
    for weights in weights {
        let (own, others) = scores.split_at(weights.len());
        valid(own, weights)?;
        work.push((own, weights, 0));
        scores = others;
    }
    in_parallel(&mut work, |work, bits| {
        for (scores, weights, chosen) in work {
            *chosen = choose_with(&rate, scores, weights, bits);
        }
        Ok(())
    })?;
    Ok(work.into_iter().map(|(_, _, chosen)| chosen).collect())
}

pub fn choose_at(rate: &Rate, scores: &[i128], weights: &[u128]) -> Result<usize, Error> {
    valid(scores, weights)?;
    Ok(choose_with(rate, scores, weights, &mut Entropy::new()?))
}

fn valid(scores: &[i128], weights: &[u128]) -> Result<(), Error> {
    if scores.is_empty() || scores.len() != weights.len() || weights.contains(&0) {
        return Err(Error::Weights);
    }
    if scores.iter().any(|score| score.unsigned_abs() > MAX_EXACT) {
        return Err(Error::Exact);
    }
    Ok(())
}

/// For what is [`valid`].
fn choose_with(rate: &Rate, scores: &[i128], weights: &[u128], bits: &mut impl Bits) -> usize {
    let small: Option<Vec<_>> =
        weights.iter().map(|weight| u64::try_from(*weight).ok().filter(|w| w >> 50 == 0)).collect();
    if let Some(small) = small
        && small.len() < 1 << 32
        && small.iter().map(|weight| u128::from(*weight)).sum::<u128>() >> 50 == 0
        && let Some(chosen) = Urn::new(rate, scores, &small).draw(bits)
    {
        return chosen;
    }
    let largest = scores.iter().max().copied().unwrap_or(0);
    let exponents = scores.iter().map(|score| rate.times(score.abs_diff(largest)));
    let candidates: Vec<_> =
        weights.iter().map(|weight| BigUint::from(*weight)).zip(exponents).collect();
    invert(&candidates, PRECISION, &mut Lazy::new(bits), bits)
}

/// # Needs
///
/// Pairs (w, x) of positive integers and rationals, at least one.
///
/// # Gives
///
/// i with probability proportional to w e^-x of the i-th pair.
///
/// # Proof
///
/// For one uniform real v, and s(i) the sum of the first i of these numbers, the i with
/// s(i) <= v s(n) < s(i + 1) has that probability. Enclosures of v, s(i) and s(n) prove both
/// comparisons, or are narrowed. They prove them from some width on unless v s(n) = s(i), which has
/// probability zero; 0 <= v s(n) < s(n) needs no proof.
///
/// # Checked
///
/// `choice::tests::all_first_digits`, `choice::tests::any_first_precision`.
fn invert(
    candidates: &[(BigUint, Ratio)],
    precision: u32,
    v: &mut Lazy,
    bits: &mut impl Bits,
) -> usize {
    let (mut precision, mut digits) = (precision, BigUint::ZERO);
    for count in 0.. {
        digits = (digits << 64_u32) + v.digit(count, bits);
        let mut sum = Enclosure { low: BigUint::ZERO, high: BigUint::ZERO };
        let ends: Vec<_> = candidates
            .iter()
            .map(|(weight, x)| {
                let each = exp_minus(x, precision);
                sum.low += weight * each.low;
                sum.high += weight * each.high;
                sum.clone()
            })
            .collect();
        let shift = 64 * (count + 1);
        let (low, high) = (&digits * &sum.low, (&digits + 1_u8) * &sum.high);
        // The first end that v s(n) may lie below, and whether it surely does and is not below the last.
        let last = ends.len() - 1;
        let i = ends[..last].partition_point(|end| &end.high << shift <= low);
        if i == last || high <= &ends[i].low << shift {
            return i;
        }
        precision *= 2;
    }
    unreachable!()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Tape;

    /// The ladder on (1, 3, 5, 9, 40) with rate 1/2 and prior C^-2, for C = 1, 2, 4 .. 64.
    fn ladder() -> Vec<(BigUint, Ratio)> {
        let above = [4_u32, 4, 3, 2, 1, 1, 0];
        let prior = (0..7).map(|j| BigUint::from(1_u32 << (12 - 2 * j)));
        prior.zip(above.map(|n| Ratio { over: n.into(), under: 2_u8.into() })).collect()
    }

    fn inverted(candidates: &[(BigUint, Ratio)], precision: u32, tape: &mut Tape) -> usize {
        let mut v = Lazy::new(tape);
        invert(candidates, precision, &mut v, tape)
    }

    const LADDER: [f64; 7] =
        [0.704_620, 0.176_155, 0.072_608, 0.029_927, 0.012_335, 0.003_084, 0.001_271];

    #[test]
    fn all_first_digits() {
        // Of 2^13 evenly spaced v, each candidate gets its share, to within one at either end.
        let mut seen = [0_u32; 7];
        for v in 0..1 << 13 {
            seen[inverted(&ladder(), PRECISION, &mut Tape::new(&[v << 51]))] += 1;
        }
        for (seen, share) in seen.iter().zip(LADDER) {
            assert!((f64::from(*seen) - share * 8192.0).abs() < 1.1, "{seen} for {share}");
        }
    }

    #[test]
    fn any_first_precision() {
        let slow = |v| {
            let mut tape = Tape::new(&[v, 1 << 63]);
            let chosen = inverted(&ladder(), 1, &mut tape);
            (chosen, tape.used())
        };
        let mut most = 0;
        for v in (0..1 << 8).map(|v| v << 56) {
            let fast = inverted(&ladder(), PRECISION, &mut Tape::new(&[v, 1 << 63]));
            assert_eq!(slow(v).0, fast);
            most = most.max(slow(v).1);
        }
        assert!(most > 4, "the slow path was not taken");
    }

    #[test]
    fn a_tie_draws_more_digits() {
        // Of three equal candidates the first ends at 1/3 = 0.555.. in hexadecimal.
        let third = u64::MAX / 3;
        let equal = vec![(BigUint::from(5_u8), Ratio::new(1.0).unwrap()); 3];
        for (last, chosen) in [(third - 1, 0), (third + 1, 1)] {
            let mut tape = Tape::new(&[third, third, third, last]);
            assert_eq!(inverted(&equal, PRECISION, &mut tape), chosen);
            assert_eq!(tape.used(), 4);
        }
    }

    #[test]
    fn extremes() {
        let huge = 1 << 120;
        for rate in [5e-324, 1e-300, 1.0, f64::MAX] {
            assert_eq!(choose(rate, &[-3], &[1]), Ok(0));
            assert!(choose(rate, &[5; 100], &[u128::MAX; 100]).unwrap() < 100);
        }
        for rate in [1e-30, 1.0, f64::MAX] {
            assert_eq!(choose(rate, &[-huge, huge, 0], &[u128::MAX, 1, u128::MAX]), Ok(1));
        }
        for (rate, scores, weights, error) in [
            (0.0, [0, 0], [1, 1], Error::Rate),
            (f64::NAN, [0, 0], [1, 1], Error::Rate),
            (1.0, [0, huge + 1], [1, 1], Error::Exact),
            (1.0, [0, 0], [1, 0], Error::Weights),
        ] {
            assert_eq!(choose(rate, &scores, &weights), Err(error));
        }
        assert_eq!(choose(1.0, &[], &[]), Err(Error::Weights));
        assert_eq!(choose(1.0, &[0], &[1, 1]), Err(Error::Weights));
    }

    #[test]
    fn fast_and_slow_agree() {
        let rate = Rate::new(0.37).unwrap();
        for n in [1, 2, 5, 60] {
            let scores: Vec<i128> = (0..n).map(|i| i * i * 7 % 31 - 15).collect();
            let weights: Vec<u64> = (1..).take(scores.len()).map(|i| i * i % 11 + 1).collect();
            for weights in [&[], weights.as_slice()] {
                let mut urn = Urn::new(&rate, &scores, weights);
                let mut v = 0x0123_4567_89AB_CDEF_u64;
                while urn.left > 0 {
                    v = v.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(99);
                    let tape = &mut Tape::new(&[v]);
                    let slow = urn.find_slowly(&mut Lazy::new(tape), tape);
                    assert_eq!(urn.find(v), Some(slow));
                    assert_eq!(urn.draw(&mut Tape::new(&[v])), Some(slow));
                }
                assert_eq!(urn.draw(&mut Tape::new(&[v])), None);
            }
        }
    }

    #[test]
    fn a_fast_near_tie_is_left_to_the_slow_path() {
        let rate = Rate::new(1.0).unwrap();
        let urn = Urn::new(&rate, &[3; 3], &[]);
        let third = u64::MAX / 3;
        assert_eq!(
            [0, third - 4096, third, third + 4096].map(|v| urn.find(v)),
            [Some(0), Some(0), None, Some(1)]
        );
    }

    #[test]
    fn after_the_largest_is_gone_the_others_count() {
        let rate = Rate::new(1e9).unwrap();
        let scores = [5, 1, 3, -1, 4, 0, 2];
        let mut urn = Urn::new(&rate, &scores, &[]);
        let order: Vec<_> = std::iter::from_fn(|| urn.draw(&mut Tape::new(&[]))).collect();
        assert_eq!(order, [0, 4, 2, 6, 1, 5, 3]);
    }

    #[test]
    fn units_enclose() {
        for rate in [5e-324, 1e-30, 0.3, 1.0, 7.5, 1e17, f64::MAX] {
            let rate = Rate::new(rate).unwrap();
            for n in [0, 1, 7, 1 << 40, u128::from(u64::MAX), 1 << 64, 1 << 90, (1 << 121) + 1] {
                let Ratio { over, under } = rate.times(n);
                let exact: BigUint = (over << 57_u32) / under;
                match rate.units(n) {
                    Some(units) => assert!(exact >= units.into() && exact <= (units + 2).into()),
                    None => assert!(exact >= ((1_u64 << 63) - 2).into()),
                }
            }
        }
    }

    #[test]
    fn many_lists() {
        let n = 200_000; // so many that all cores work
        let scores: Vec<_> = (0..3 * n).map(|i| i % 3).collect();
        let weights = vec![vec![3, 1, 1 << 60]; 2];
        assert_eq!(choose_each(1e9, &scores[..6], &weights), Ok(vec![2, 2])); // too large for an urn
        let lists = vec![vec![1, 1, 1]; usize::try_from(n).unwrap()];
        let chosen = choose_each(1.0, &scores, &lists).unwrap();
        for (i, p) in [0.090_031, 0.244_728, 0.665_241].into_iter().enumerate() {
            let seen = chosen.iter().filter(|place| **place == i).count();
            #[allow(clippy::cast_precision_loss)]
            let share = seen as f64 / n as f64;
            assert!((share - p).abs() < 0.0075);
        }
        assert_eq!(choose_each(1.0, &[], &[]), Ok(vec![]));
        assert_eq!(choose_each(1.0, &[1], &[vec![1], vec![]]), Err(Error::Weights));
        assert_eq!(choose_each(1.0, &[1, 2], &[vec![1]]), Err(Error::Weights));
        assert_eq!(choose_each(1.0, &[1, 1 << 121], &[vec![1], vec![1]]), Err(Error::Exact));
        assert_eq!(choose_each(f64::NAN, &[], &[]), Err(Error::Rate));
    }
}
