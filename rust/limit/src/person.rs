//! One person's pairs of a key and what their rows add there: limited, and added to the totals of the keys.
//!
//! What must hold, for all records of one person together:
//! * Of private keys at most `max_groups` count, the first by rank and then by the key itself.
//! * Let n be how many rows they have with each of these. If the norm of n is above `max_rows`, each sum is multiplied with `max_rows` and
//!   divided by an integer that is not below the norm, rounded down.
//! * In blocks of persons each key where they count gets `weight`, or less if these are more than `in_groups`.

use std::cmp::Ordering;

use arrow_array::ArrayRef;

use crate::measure::{Measures, Source, below, unpacked};
use crate::numbering::compare;
use crate::rank::Ranks;
use crate::records::{Record, key_of, person_of, rows_of};
use crate::{Kind, Limits};

/// How many totals a key has.
pub fn width(limits: &Limits) -> usize {
    let columns: usize = limits.blocks.iter().map(|block| block.columns.len()).sum();
    columns + usize::from(limits.private)
}

pub struct Totals<'a> {
    limits: &'a Limits,
    keys: &'a [ArrayRef],
    ranks: Option<&'a Ranks>,
    first: usize, // where measures begin in a record
    columns: Vec<Column>,
    packed: Vec<bool>, // for each word, whether it has two parts
    within: u128,      // the size up to which nothing is scaled
    once: bool,        // whether there are blocks of persons
    sums: Vec<i128>,
    linear: bool, // whether someone within all limits adds the same with each of her rows
    plain: Vec<u128>, // what those add to each column of each key, before factors
    rows: Vec<u32>, // of the person at hand, for each key; zero again when she is done
    kept: Vec<(u64, u32)>, // the hashes of her groups, and their keys
    // Of a person who is not within the limits: for each key one more than the place of her pair, and zero if there is none.
    slots: Vec<u32>,
    pairs: Vec<Pair>,
    cells: Vec<(u128, u128)>, // the measures of all pairs, one pair after the other: sums, and numbers of values
    groups: Vec<u128>,
}

struct Column {
    source: Source,
    block: usize,
    factor: u128,
    most: u128, // times `max_rows`
}

#[derive(Clone, Copy)]
struct Pair {
    key: u32,
    place: u32, // of its cells
    rows: u64,
    hash: u64,
}

impl<'a> Totals<'a> {
    pub fn new(
        limits: &'a Limits,
        measures: &Measures,
        keys: &'a [ArrayRef],
        ranks: Option<&'a Ranks>,
        count: usize,
    ) -> Self {
        let blocks = limits.blocks.iter().enumerate();
        let factors = blocks.flat_map(|(i, block)| block.columns.iter().map(move |c| (i, c.1)));
        let mut packed = vec![false; measures.words()];
        for source in measures.sources() {
            if let Source::Above(i) = source {
                packed[i] = true;
            }
        }
        let columns = measures.sources().into_iter().zip(factors);
        let columns: Vec<_> = columns
            .map(|(source, (block, factor))| Column {
                source,
                block,
                factor,
                most: factor * limits.max_rows,
            })
            .collect();
        Self {
            limits,
            keys,
            ranks,
            first: measures.first(),
            plain: vec![0; count * columns.len()],
            columns,
            packed,
            within: (limits.max_rows + u128::from(crate::mutant("rust_limit_off_by_one")))
                .pow(limits.norm),
            once: limits.blocks.iter().any(|block| block.kind == Kind::Persons),
            linear: limits.blocks.iter().all(|block| block.kind == Kind::Rows),
            rows: vec![0; count],
            kept: Vec::new(),
            sums: vec![0; width(limits) * count],
            slots: vec![0; count],
            pairs: Vec::new(),
            cells: Vec::new(),
            groups: Vec::new(),
        }
    }

    pub fn sums(mut self) -> Vec<i128> {
        let (width, columns) = (width(self.limits), self.columns.len());
        let first = usize::from(self.limits.private);
        for (key, plain) in self.plain.chunks_exact(columns.max(1)).enumerate() {
            let sums = &mut self.sums[key * width + first..];
            for ((column, plain), sum) in self.columns.iter().zip(plain).zip(sums) {
                *sum += i128::try_from(plain * column.factor).expect("it is far below 2^127");
            }
        }
        self.sums
    }

    /// Adds all records of one person, who is in this part.
    pub fn add<const W: usize>(&mut self, part: usize, records: &[Record<W>]) {
        if !(self.linear && self.add_plain(part, records)) {
            self.add_limited(part, records);
        }
    }

    /// By what her groups are ranked.
    fn rank<const W: usize>(&self, part: usize, record: &Record<W>) -> u64 {
        match self.ranks {
            Some(ranks) => ranks.of(person_of(part, record), key_of(record)),
            None => record[W.min(2) - 1],
        }
    }

    /// If what she keeps of her groups is within the limits, its rows are added as they are, one by one; else nothing.
    fn add_plain<const W: usize>(&mut self, part: usize, records: &[Record<W>]) -> bool {
        if records.len() >= 1 << 24 {
            return false; // below that she has fewer than 2^32 rows, and the square of that is a word
        }
        let private = self.limits.private;
        let size = if private { self.keep(part, records) } else { self.count(records) };
        let within = u128::from(size) <= self.within;
        let columns = self.columns.len();
        for record in records {
            let key = key_of(record);
            // What she does not keep has no rows any more; and what she has is zero again for the next one.
            let rows = if private { self.rows[key] } else { std::mem::take(&mut self.rows[key]) };
            if !within || (private && rows == 0) {
                continue;
            }
            let sums = &mut self.plain[key * columns..(key + 1) * columns];
            for (column, sum) in self.columns.iter().zip(sums) {
                let word = |i: usize| record[(self.first + i).min(W - 1)];
                let value = match column.source {
                    Source::Rows => rows_of(record),
                    Source::Word(i) => word(i),
                    Source::Above(i) => unpacked(word(i)).0,
                    Source::Below(i, grid) => below(unpacked(word(i)), grid),
                };
                *sum += u128::from(value);
            }
        }
        for (_, key) in self.kept.drain(..) {
            self.rows[key as usize] = 0;
            if within {
                self.sums[key as usize * width(self.limits)] +=
                    1 + i128::from(crate::mutant("rust_person_counts_twice"));
            }
        }
        within
    }

    /// Counts her rows for each key, and gives the power of their norm.
    fn count<const W: usize>(&mut self, records: &[Record<W>]) -> u64 {
        let mut size = 0;
        for record in records {
            let (rows, before) = (rows_of(record), &mut self.rows[key_of(record)]);
            // (n + r)^2 = n^2 + r (2 n + r)
            size +=
                if self.limits.norm == 2 { rows * (2 * u64::from(*before) + rows) } else { rows };
            *before += u32::try_from(rows).expect("it has 8 bits");
        }
        size
    }

    /// The same for the private keys that she keeps, which are in `kept`; those that she does not keep have no rows then.
    fn keep<const W: usize>(&mut self, part: usize, records: &[Record<W>]) -> u64 {
        for record in records {
            let key = key_of(record);
            if self.rows[key] == 0 {
                let rank = self.rank(part, record);
                self.kept.push((rank, u32::try_from(key).expect("it has 28 bits")));
            }
            self.rows[key] += u32::try_from(rows_of(record)).expect("it has 8 bits");
        }
        let most = self.limits.max_groups + usize::from(crate::mutant("rust_one_group_more"));
        if self.kept.len() > most {
            self.kept.select_nth_unstable_by(most, first_of(self.keys));
            for (_, key) in self.kept.drain(most..) {
                self.rows[key as usize] = 0;
            }
        }
        let power = |rows: u32| u64::from(rows).pow(self.limits.norm);
        self.kept.iter().map(|(_, key)| power(self.rows[*key as usize])).sum()
    }

    fn add_limited<const W: usize>(&mut self, part: usize, records: &[Record<W>]) {
        self.gather(part, records);
        if self.limits.private && self.pairs.len() > self.limits.max_groups {
            let (order, most) = (first_of(self.keys), self.limits.max_groups);
            self.pairs.select_nth_unstable_by(most, |left, right| {
                order(&(left.hash, left.key), &(right.hash, right.key))
            });
            self.pairs.truncate(most);
        }
        let power = |rows: u128| if self.limits.norm == 2 { rows * rows } else { rows };
        let size: u128 = self.pairs.iter().map(|pair| power(u128::from(pair.rows))).sum();
        if self.once {
            self.count_groups();
        }
        let (width, within) = (width(self.limits), size <= self.within);
        let norm = if crate::mutant("rust_norm_with_another_root") { 2 } else { self.limits.norm };
        let loose = u128::from(crate::mutant("rust_root_too_small"));
        let root = Divisor::new(if within { 1 } else { root(size, norm) - loose });
        for pair in &self.pairs {
            let mut place = pair.key as usize * width;
            if self.limits.private {
                self.sums[place] += 1;
                place += 1;
            }
            for (column, sum) in self.columns.iter().zip(&mut self.sums[place..]) {
                let value = value(column.source, pair, &self.cells);
                let block = &self.limits.blocks[column.block];
                let cell = match block.kind {
                    Kind::Rows if within => value * column.factor,
                    Kind::Rows => root.scaled(value, column.most),
                    Kind::Persons if value == 0 => 0,
                    Kind::Persons => once(
                        self.groups[column.block],
                        self.limits.in_groups
                            + u128::from(crate::mutant("rust_counts_in_one_group_more")),
                        self.limits.norm,
                        block.weight,
                        block.whole,
                    ),
                };
                *sum += i128::try_from(cell).expect("it is far below 2^127");
            }
        }
    }

    /// Puts records of the same key together.
    fn gather<const W: usize>(&mut self, part: usize, records: &[Record<W>]) {
        self.pairs.clear();
        self.cells.clear();
        for record in records {
            let slot = self.slots[key_of(record)];
            let words = record[self.first.min(W)..].iter().zip(&self.packed);
            let measures = words.map(|(word, packed)| {
                let (sum, values) = if *packed { unpacked(*word) } else { (*word, 0) };
                (u128::from(sum), u128::from(values))
            });
            if slot == 0 {
                let place = u32::try_from(self.cells.len()).expect("pairs and columns are few");
                let hash = if self.limits.private { self.rank(part, record) } else { 0 };
                let key = u32::try_from(key_of(record)).expect("it has 28 bits");
                self.pairs.push(Pair { key, place, rows: rows_of(record), hash });
                self.cells.extend(measures);
                self.slots[key as usize] =
                    u32::try_from(self.pairs.len()).expect("there are fewer than 2^32 keys");
            } else {
                let pair = &mut self.pairs[slot as usize - 1];
                pair.rows += rows_of(record);
                let cells = &mut self.cells[pair.place as usize..];
                for (cell, more) in cells.iter_mut().zip(measures) {
                    *cell = (cell.0 + more.0, cell.1 + more.1);
                }
            }
        }
        for pair in &self.pairs {
            self.slots[pair.key as usize] = 0;
        }
    }

    /// In how many groups she counts, for each block of persons.
    fn count_groups(&mut self) {
        self.groups.clear();
        self.groups.resize(self.limits.blocks.len(), 0);
        for column in &self.columns {
            if self.limits.blocks[column.block].kind == Kind::Persons {
                let there = self.pairs.iter().filter(|p| value(column.source, p, &self.cells) > 0);
                self.groups[column.block] = there.count() as u128;
            }
        }
    }
}

/// The order in which groups are kept: by hash, then by key.
fn first_of(keys: &[ArrayRef]) -> impl Fn(&(u64, u32), &(u64, u32)) -> Ordering + '_ {
    move |left, right| {
        let order = left.0.cmp(&right.0);
        order.then_with(|| compare(keys, left.1 as usize, right.1 as usize))
    }
}

fn value(source: Source, pair: &Pair, cells: &[(u128, u128)]) -> u128 {
    let cell = |i: usize| cells[pair.place as usize + i];
    match source {
        Source::Rows => u128::from(pair.rows),
        Source::Word(i) | Source::Above(i) => cell(i).0,
        Source::Below(i, grid) => cell(i).1 * u128::from(grid) - cell(i).0,
    }
}

/// A number by which many are divided.
struct Divisor {
    by: u128,
    inverse: Option<(u64, u64)>, // the number, and 2^64 over it rounded down
}

impl Divisor {
    fn new(by: u128) -> Self {
        Self { by, inverse: u64::try_from(by).ok().map(|by| (by, u64::MAX / by)) }
    }

    /// value * over / by, rounded down.
    fn scaled(&self, value: u128, over: u128) -> u128 {
        if let (Some((by, inverse)), Ok(value), Ok(over)) =
            (self.inverse, u64::try_from(value), u64::try_from(over))
            && let Some(product) = value.checked_mul(over)
        {
            // Below by less than 2: both roundings lose less than one.
            let mut quotient = ((u128::from(product) * u128::from(inverse)) >> 64) as u64;
            while product - quotient * by >= by {
                quotient += 1;
            }
            return u128::from(quotient);
        }
        value * over / self.by
    }
}

/// An integer that is not below the norm: its square is checked against `size`, so rounding cannot hurt.
///
/// The very expression of the reference in SQL, also where it could be a better one.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn root(size: u128, norm: u32) -> u128 {
    if norm == 1 {
        return size;
    }
    let (upper, lower) = ((size >> 64) as u64, size as u64); // as the engine makes a DOUBLE of a HUGEINT
    let double = upper as f64 * 2_f64.powi(64) + lower as f64;
    let guess = double.sqrt().ceil() as u128;
    if guess * guess >= size {
        guess
    } else if (guess + 1) * (guess + 1) >= size {
        guess + 1
    } else {
        size
    }
}

/// What a person counts in each of `groups` groups.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn once(groups: u128, most: u128, norm: u32, weight: u128, whole: f64) -> u128 {
    match norm {
        _ if groups <= most => weight,
        1 => weight * most / groups,
        _ => (whole / (groups as f64).sqrt()).floor() as u128,
    }
}

#[cfg(test)]
mod tests {
    use super::{Divisor, once, root};

    #[test]
    fn quotients_are_rounded_down() {
        let ends = [0, 1, 2, 3, 16, 255, 1 << 20, (1 << 32) - 1, 1 << 32, u64::MAX - 1, u64::MAX];
        let mut numbers: Vec<u128> = ends.into_iter().map(u128::from).collect();
        numbers.extend([1 << 64, (1 << 80) + 7]);
        for by in numbers.iter().filter(|by| **by > 0) {
            let divisor = Divisor::new(*by);
            for value in &numbers {
                for over in numbers.iter().filter(|over| **over < 1 << 40) {
                    assert_eq!(divisor.scaled(*value, *over), value * over / by);
                }
            }
        }
    }

    #[test]
    fn roots_are_not_below_the_norm() {
        for bits in 0..126 {
            let near = (1_u128 << bits).isqrt();
            for size in [near * near, near * near + 1, (1 << bits) - 1, 1 << bits] {
                let found = root(size, 2);
                assert!(found * found >= size && (bits > 100 || found <= size.isqrt() + 2));
                assert_eq!(root(size, 1), size);
            }
        }
    }

    #[test]
    fn a_person_in_many_groups_counts_for_less() {
        assert_eq!(once(3, 3, 1, 100, 0.0), 100);
        assert_eq!(once(7, 3, 1, 100, 0.0), 42);
        assert_eq!(once(16, 4, 2, 100, 199.999), 49);
    }
}
