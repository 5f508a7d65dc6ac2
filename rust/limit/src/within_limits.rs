//! Persons who are within all limits whatever keys their rows have: these rows are added as they are.
//!
//! What must hold:
//! * Only rows of a person who has at most `most` rows in all are added here. Rows without a key count for that too.
//! * A sum of words is settled before 2^26 rows of at most 2^36 are in it, so it does not wrap. What is skipped (slot 0) may.
//!
//! With n rows a person has at most n keys, and no more than there are, and the norm of how many they have with each is at most n. So
//! if these are no more than any limit, their rows count in full, in any order and apart from each other. `Counts` says who that is, once all
//! rows are there; `Light` adds theirs.

use crate::measure::{Kept, Measures, Source, below};
use crate::numbering::UNKNOWN;
use crate::{Kind, Limits};

/// So many rows add less than a word can hold: one adds at most 2^36.
const SETTLED: usize = 1 << 26;
/// Persons with larger numbers are not counted, and nobody knows that they have few rows.
pub const COUNTED: u32 = 1 << 24;

/// How many rows are within all limits where there are so many keys. None if some rows do not count for persons.
pub fn most(limits: &Limits, keys: usize) -> Option<u32> {
    let groups = |most: u128| if keys as u128 <= most { u128::MAX } else { most };
    let mut most = if limits.private { groups(limits.max_groups as u128) } else { u128::MAX };
    for block in &limits.blocks {
        match block.kind {
            Kind::Rows => most = most.min(limits.max_rows),
            Kind::Persons if block.axes.is_empty() => most = most.min(groups(limits.in_groups)),
            Kind::Persons => return None,
        }
    }
    Some(u32::try_from(most).unwrap_or(u32::MAX))
}

/// How many rows each person has, those included that have no key; of more than can be counted, as many as can.
#[derive(Default)]
pub struct Counts(Vec<u32>);

impl Counts {
    pub fn add(&mut self, persons: &[u32]) {
        // No number is above the bits of all; and this is quicker than to find the largest.
        let last = persons.iter().fold(0, |all, person| all | person);
        if last >= COUNTED {
            let counted: Vec<_> = persons.iter().copied().filter(|one| *one < COUNTED).collect();
            return self.add(&counted);
        }
        if last as usize >= self.0.len() {
            self.0.resize((last as usize + 1).next_power_of_two(), 0);
        }
        for person in persons {
            let count = &mut self.0[*person as usize];
            *count = count.saturating_add(1);
        }
    }

    pub fn merge(mut self, mut other: Self) -> Self {
        if self.0.len() < other.0.len() {
            std::mem::swap(&mut self, &mut other);
        }
        let counts = self.0.iter_mut().zip(other.0);
        counts.for_each(|(count, more)| *count = count.saturating_add(more));
        self
    }

    pub fn of(&self, person: usize) -> u32 {
        self.0.get(person).copied().unwrap_or(0)
    }

    /// Those with more rows, and those who were not counted.
    pub fn above(&self, most: u32) -> Heavy {
        let word = |counts: &[u32]| {
            counts.iter().enumerate().fold(0, |word, (i, n)| word | u64::from(*n > most) << i)
        };
        Heavy(self.0.chunks(64).map(word).collect())
    }
}

/// A set of persons: a bit for each. Whoever was not seen at all is not in it, so it is asked only about rows whose persons were.
pub struct Heavy(Vec<u64>);

impl Heavy {
    /// The slots of rows (see `Light::add`), and which of them are of these persons.
    pub fn slots(&self, persons: &[u32], keys: &[u32], slots: &mut Vec<u32>) -> Vec<usize> {
        let mut left = Vec::new();
        slots.clear();
        slots.extend(persons.iter().zip(keys).enumerate().map(|(i, (person, key))| {
            let word = self.0.get(*person as usize / 64).copied().unwrap_or(u64::MAX);
            if word >> (person % 64) & 1 == 1 {
                left.push(i);
                return 0;
            }
            slot_of(*key)
        }));
        left
    }
}

/// One more than the number of a key, and 0 for `UNKNOWN`.
pub fn slot_of(key: u32) -> u32 {
    const { assert!(UNKNOWN == u32::MAX) }
    key.wrapping_add(1)
}

/// What is added up for one column, or for the two of a value.
struct Column {
    of: Of,
    first: usize,       // of these columns
    factors: Vec<u128>, // of each
    sums: Vec<u64>, // for each key, before factors; those of the first one are of rows that are not added
}

#[derive(Clone, Copy)]
enum Of {
    Persons,
    Rows,
    Word(usize),
    /// A word of two parts, whose sums are side by side, and the grid.
    Value(usize, u64),
}

/// What such rows add to the totals of keys.
pub struct Light {
    columns: Vec<Column>,
    width: usize, // how many totals a key has
    first: usize, // where measures begin among the words of rows
    unsettled: usize,
    totals: Vec<u128>,
    keys: usize, // that have sums
}

impl Light {
    pub fn new(limits: &Limits, measures: &Measures) -> Self {
        let persons = limits.private.then_some((Of::Persons, 1));
        let blocks = limits.blocks.iter();
        let factors = blocks.flat_map(|block| block.columns.iter().map(move |c| (block, c.1)));
        let sources = measures.sources().into_iter().zip(factors);
        let asked = sources.map(|(source, (block, factor))| match source {
            _ if block.kind == Kind::Persons => (Of::Persons, block.weight),
            Source::Rows => (Of::Rows, factor),
            Source::Word(i) => (Of::Word(i), factor),
            Source::Above(i) => (Of::Value(i, 0), factor),
            Source::Below(i, grid) => (Of::Value(i, grid), factor),
        });
        let mut columns: Vec<Column> = Vec::new();
        let mut width = 0;
        for (of, factor) in persons.into_iter().chain(asked) {
            width += 1;
            match (of, columns.last_mut()) {
                (Of::Value(_, 1..), Some(above)) => {
                    above.of = of; // now that its grid is known
                    above.factors.push(factor);
                }
                _ => columns.push(Column {
                    of,
                    first: width - 1,
                    factors: vec![factor],
                    sums: Vec::new(),
                }),
            }
        }
        let first = measures.first() - 1;
        Self { columns, width, first, unsettled: 0, totals: Vec::new(), keys: 0 }
    }

    /// Whether someone asks how many persons there are.
    pub fn counts_persons(&self) -> bool {
        self.columns.iter().any(|column| matches!(column.of, Of::Persons))
    }

    /// Adds rows: each has one more than the number of its key as its slot, or 0 if it is not added. So many keys there are so far.
    pub fn add<'a, T: Kept + 'a>(
        &mut self,
        slots: &[u32],
        word: impl Fn(usize) -> &'a [T],
        keys: usize,
    ) {
        self.unsettled += slots.len();
        if self.unsettled > SETTLED {
            self.settle();
            self.unsettled = slots.len();
        }
        self.widen(keys);
        for Column { of, sums, .. } in &mut self.columns {
            match *of {
                Of::Persons => {}
                Of::Rows => tally(sums, slots, std::iter::repeat(1)),
                Of::Word(i) => {
                    tally(sums, slots, word(self.first + i).iter().map(|word| word.word()));
                }
                Of::Value(i, _) => {
                    for (slot, word) in slots.iter().zip(word(self.first + i)) {
                        let (sum, values) = word.parts();
                        let sums = &mut sums[2 * *slot as usize..][..2];
                        sums[0] = sums[0].wrapping_add(sum);
                        sums[1] = sums[1].wrapping_add(values);
                    }
                }
            }
        }
    }

    fn widen(&mut self, keys: usize) {
        if self.keys < keys {
            self.keys = keys;
            for column in &mut self.columns {
                column.sums.resize((keys + 1) * column.factors.len(), 0);
            }
        }
    }

    /// Adds persons: for each key how many have it.
    pub fn add_persons(&mut self, persons: &[u64]) {
        self.widen(persons.len());
        self.settle();
        let asked = self.columns.iter().filter(|column| matches!(column.of, Of::Persons));
        for Column { first, factors, .. } in asked {
            let totals = self.totals.iter_mut().skip(*first).step_by(self.width);
            totals.zip(persons).for_each(|(sum, n)| *sum += u128::from(*n) * factors[0]);
        }
    }

    fn settle(&mut self) {
        self.totals.resize(self.keys * self.width, 0);
        for Column { of, first, factors, sums } in &mut self.columns {
            let totals = self.totals.chunks_exact_mut(self.width).map(|one| &mut one[*first..]);
            for (sums, totals) in sums.chunks_exact_mut(factors.len()).skip(1).zip(totals) {
                if let Of::Value(_, grid) = of {
                    sums[1] = below((sums[0], sums[1]), *grid);
                }
                for ((sum, total), factor) in sums.iter_mut().zip(totals).zip(&*factors) {
                    *total += u128::from(std::mem::take(sum)) * factor;
                }
            }
        }
    }

    /// What several have added to the totals of keys.
    pub fn totals(all: impl Iterator<Item = Self>) -> Vec<u128> {
        let settled = all.map(|mut one| {
            one.settle();
            one.totals
        });
        let longer = |left: Vec<u128>, right: Vec<u128>| {
            let (mut long, short) =
                if left.len() < right.len() { (right, left) } else { (left, right) };
            long.iter_mut().zip(short).for_each(|(sum, more)| *sum += more);
            long
        };
        settled.reduce(longer).unwrap_or_default()
    }
}

fn tally(sums: &mut [u64], slots: &[u32], values: impl Iterator<Item = u64>) {
    for (slot, value) in slots.iter().zip(values) {
        let sum = &mut sums[*slot as usize];
        *sum = sum.wrapping_add(value); // it has room: see SETTLED
    }
}
