//! Exact draws from a table of weights that are known by enclosures only.

use num_bigint::BigUint;

use crate::bernoulli::bernoulli;
use crate::bits::Bits;
use crate::exp::Enclosure;
use crate::lazy::{below, coin};

/// Weights of 0, 1, 2 .. that need not sum to one. From some entry on they are log-concave.
pub trait Law {
    /// The weight of `j`, in units of 2^-precision, to within a constant.
    fn weight(&self, j: u64, precision: u32) -> Enclosure;

    /// Those of 0 .. entries - 1.
    fn weights(&self, entries: u32, precision: u32) -> Vec<Enclosure> {
        (0..entries).map(|j| self.weight(j.into(), precision)).collect()
    }
}

/// Weights as whole numbers of 2^width values, and what is left of them.
///
/// # Needs
///
/// A law, and so many entries that the weights beyond them are small and fall fast ([`Shares::new`]
/// asserts it).
///
/// # Gives
///
/// Draws of j with probability proportional to its weight, exactly: a uniform value that is one of the
/// `floors[j]` of j gives j, one of the `rest` gives what [`Shares::escape`] does.
///
/// # Proof
///
/// With f the factor, w the weight and a(j) an integer with 0 <= f w(j) - a(j) < 2, one attempt takes a
/// uniform integer below 2^width. It gives j on a(j) of these values; on 2 values it asks j's rest and
/// gives j with probability (f w(j) - a(j)) / 2; on 1 value it takes the tail. There a block b has
/// probability 2^-(b + 1), an entry in it 2^-block, and it is given with probability f w(j) times the
/// inverse of both. So each j has f w(j) values of 2^width. An attempt that gives nothing is repeated.
///
/// # Checked
///
/// `table::tests::every_word`, `table::tests::rests_and_tail_are_exact`.
pub struct Shares<L> {
    law: L,
    width: u32,
    pub floors: Vec<u64>,
    factor: BigUint,
    pub rest: u64,
    block: u32,
}

impl<L: Law> Shares<L> {
    pub fn new(law: L, entries: u32, width: u32) -> Self {
        let precision = width + 48; // the entry after the last is far above 2^-precision
        let weights = law.weights(entries, precision);
        let total: BigUint = weights.iter().map(|weight| &weight.high).sum();
        let room = (1_u64 << width) - 2 * u64::from(entries) - 1;
        let factor = (BigUint::from(room) << precision) / total;
        let floor = |end: &BigUint| u64::try_from((end * &factor) >> precision).unwrap();
        let floors: Vec<_> = weights.iter().map(|weight| floor(&weight.low)).collect();
        let rest = (1 << width) - floors.iter().sum::<u64>();
        let block = entries.ilog2().saturating_sub(3);
        let tail = [0, 1 << block].map(|j| law.weight(u64::from(entries) + j, precision));
        assert!(weights.iter().all(|weight| floor(&(&weight.high - &weight.low)) == 0));
        assert!((&tail[0].high * &factor) << (block + 1) <= BigUint::from(1_u8) << precision);
        assert!(2_u8 * &tail[1].high <= tail[0].low);
        Self { law, width, floors, factor, rest, block }
    }

    /// What one of the rest gives; None if the attempt gives nothing.
    pub fn escape(&self, bits: &mut impl Bits) -> Option<u64> {
        let entries = self.floors.len() as u64;
        let slot = below(self.rest, bits);
        // The value was reached with probability 2^-up, and is kept with 2^up (f w - floor).
        let (j, floor, up) = match slot / 2 {
            _ if slot > 2 * entries => return None,
            j if j < entries => (j, self.floors[usize::try_from(j).ok()?], -1),
            _ => {
                let mut up = i64::from(self.block) + 1;
                let mut first = entries;
                while coin(bits) {
                    first += 1 << self.block;
                    up += 1;
                }
                (first + (bits.word() >> 1 >> (63 - self.block)), 0, up)
            }
        };
        let more = self.width + 1 + u32::try_from(up.max(0)).ok()?;
        let p = |precision| {
            let weight = self.law.weight(j, precision + more);
            let floor: BigUint = BigUint::from(floor) << (precision + more);
            let keep = |end: BigUint| {
                ((end * &self.factor).max(floor.clone()) - &floor) >> (i64::from(more) - up)
            };
            Enclosure { low: keep(weight.low), high: keep(weight.high) + 1_u8 }
        };
        bernoulli(bits, p).then_some(j)
    }
}

/// An alias table (Walker 1977) in integers, of `width` bits per draw.
pub struct Table<L> {
    pub shares: Shares<L>,
    columns: Columns,
}

impl<L: Law> Table<L> {
    pub fn new(law: L, entries: u32, width: u32) -> Self {
        let shares = Shares::new(law, entries, width);
        let columns = Columns::new(&[shares.floors.as_slice(), &[shares.rest]].concat(), width);
        Self { shares, columns }
    }

    /// The entry of a uniform word, of which the first `width` bits are looked at; None for the rest.
    #[inline]
    pub fn fast(&self, word: u64) -> Option<u64> {
        Some(self.columns.owner(word)).filter(|j| *j < self.shares.floors.len() as u64)
    }

    /// The same; None if the attempt gives nothing.
    pub fn slow(&self, word: u64, bits: &mut impl Bits) -> Option<u64> {
        self.fast(word).or_else(|| self.shares.escape(bits))
    }
}

/// Cuts masses into as many columns of one capacity: what is in column i of its own, less than all of it, and
/// whose the rest is.
pub fn columns(mut masses: Vec<u64>, capacity: u64) -> Vec<(u64, usize)> {
    let mut made: Vec<_> = (0..masses.len()).map(|i| (0, i)).collect(); // one owner's in either part
    let (mut poor, mut rich): (Vec<_>, Vec<_>) =
        (0..masses.len()).partition(|i| masses[*i] < capacity);
    while let (Some(i), Some(&j)) = (poor.pop(), rich.last()) {
        made[i] = (masses[i], j);
        masses[j] -= capacity - masses[i];
        if masses[j] < capacity {
            rich.pop();
            poor.push(j);
        }
    }
    made
}

/// 2^index columns of equal capacity, each of at most two owners, that give each entry its mass.
///
/// A column's number is that of its first owner. Its leading bits say what is his, its last `index` bits
/// whose the rest is.
struct Columns {
    packed: Vec<u64>,
    index: u32,
    last: u64,
    ignored: u64,
}

impl Columns {
    /// The masses sum to 2^width.
    fn new(masses: &[u64], width: u32) -> Self {
        let index = masses.len().next_power_of_two().trailing_zeros();
        let mut masses = masses.to_vec();
        masses.resize(1 << index, 0);
        let made = columns(masses, 1 << (width - index));
        let pack = |(own, other)| own << (64 - width + index) | other as u64;
        let ones = |count| (1_u64 << count) - 1;
        Self {
            packed: made.into_iter().map(pack).collect(),
            index,
            last: ones(index),
            ignored: ones(64 - width + index),
        }
    }

    /// The entry that owns the value in the first `width` bits of the word.
    ///
    /// The first `index` bits choose a column. The others, moved to the front, are the first owner's if
    /// they are less than what is his; with ones in all further places they are less than his whole
    /// column then, and only then.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // a column's number fits: it has `index` bits
    fn owner(&self, word: u64) -> u64 {
        let number = word.wrapping_shr(64 - self.index);
        let column = self.packed[number as usize];
        let his = word.wrapping_shl(self.index) | self.ignored < column;
        if his { number } else { column & self.last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exp::{Ratio, exp_minus};
    use crate::tape::Tape;

    /// e^-j/2, of which 2^9 values leave large rests and a likely tail.
    struct Halves;

    impl Law for Halves {
        fn weight(&self, j: u64, precision: u32) -> Enclosure {
            exp_minus(&Ratio { over: j.into(), under: 2_u8.into() }, precision)
        }
    }

    fn table() -> Table<Halves> {
        Table::new(Halves, 16, 9)
    }

    fn factor(table: &Table<Halves>) -> f64 {
        f64::from(u32::try_from(&table.shares.factor).unwrap())
    }

    #[test]
    fn every_word() {
        let table = table();
        let mut seen = [0; 17];
        for value in 0..1 << 9 {
            seen[usize::try_from(table.columns.owner(value << 55)).unwrap()] += 1;
        }
        assert_eq!(seen[..16], table.shares.floors);
        assert_eq!((seen[16], seen[16] > 32), (table.shares.rest, true));
        for (j, floor) in (0..).zip(&table.shares.floors) {
            let whole = factor(&table) * (-f64::from(j) / 2.0).exp();
            #[allow(clippy::cast_precision_loss)]
            let rest = whole - *floor as f64;
            assert!((-1e-9..2.0).contains(&rest));
        }
    }

    #[test]
    fn rests_and_tail_are_exact() {
        // 2^14 evenly spaced v for each rest; for the tail, in each of its first entries.
        let (table, n) = (table(), 1 << 14);
        let slot_word = |slot: u64| slot << (table.shares.rest - 1).leading_zeros();
        let given = |words: &[u64]| {
            let kept = |v: &u64| table.shares.escape(&mut Tape::new(&[words, &[v << 50]].concat()));
            let all: Vec<_> = (0..n).filter_map(|v| kept(&v)).collect();
            assert!(all.iter().all(|j| *j == all[0]));
            #[allow(clippy::cast_precision_loss)]
            let share = all.len() as f64 / n as f64;
            (all.first().copied(), share)
        };
        for (j, floor) in (0_u32..).zip(&table.shares.floors) {
            #[allow(clippy::cast_precision_loss)]
            let rest = factor(&table) * (-f64::from(j) / 2.0).exp() - *floor as f64;
            for slot in [2 * j, 2 * j + 1] {
                let (got, share) = given(&[slot_word(slot.into())]);
                assert!((share - rest / 2.0).abs() < 1e-4 && got.is_none_or(|got| got == j.into()));
            }
        }
        for (heads, within, j) in [(0, 0, 16_u32), (0, 1, 17), (1, 0, 18), (2, 1, 21)] {
            let coins = [vec![u64::MAX; heads], vec![0]].concat();
            let words = [&[slot_word(32)], coins.as_slice(), &[within << 63]].concat();
            let weight = factor(&table) * (-f64::from(j) / 2.0).exp();
            let (got, share) = given(&words);
            let reached = 0.5_f64.powi(i32::try_from(heads).unwrap() + 1) / 2.0;
            assert!((share * reached - weight).abs() < 1e-4 && got == Some(j.into()));
        }
        assert_eq!(table.shares.escape(&mut Tape::new(&[slot_word(33)])), None);
    }

    #[test]
    fn a_full_column_is_its_own() {
        let full = Columns::new(&[4, 4, 4, 4], 4);
        assert!((0..16).all(|value| full.owner(value << 60) == value / 4));
    }
}
