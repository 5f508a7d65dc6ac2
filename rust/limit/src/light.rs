//! Persons who are within all limits whatever keys their rows have: these rows are added as they are.
//!
//! With n rows a person has at most n keys, and the norm of how many she has with each is at most n. So if n is no more
//! than any limit, her rows count in full, in any order and apart from each other.

use crate::measure::{Measures, Source, below, unpacked};
use crate::parts::{Record, key_of, rows_of};
use crate::{Kind, Limits};

/// So many records add less than a word can hold: one adds less than 2^44.
const SETTLED: usize = 1 << 19;

/// How many rows are within all limits, and whether the first of a person's rows with a key adds more than others.
///
/// None if some rows do not count for persons.
pub fn most(limits: &Limits) -> Option<(u32, bool)> {
    let mut most = if limits.private { limits.max_groups as u128 } else { u128::MAX };
    let mut once = limits.private;
    for block in &limits.blocks {
        match block.kind {
            Kind::Rows => most = most.min(limits.max_rows),
            Kind::Persons if block.axes.is_empty() => {
                (most, once) = (most.min(limits.in_groups), true);
            }
            Kind::Persons => return None,
        }
    }
    Some((u32::try_from(most).unwrap_or(u32::MAX), once))
}

struct Column {
    source: Option<Source>, // None: how many persons have the key
    factor: u128,
    sums: Vec<u64>, // for each key, before the factor
}

/// What such rows add to the totals of keys.
pub struct Light {
    columns: Vec<Column>,
    first: usize, // where measures begin in a record
    unsettled: usize,
    totals: Vec<i128>,
}

impl Light {
    pub fn new(limits: &Limits, measures: &Measures, keys: usize) -> Self {
        let blocks = limits.blocks.iter();
        let factors = blocks.flat_map(|block| block.columns.iter().map(move |c| (block, c.1)));
        let columns =
            measures.sources().into_iter().zip(factors).map(|(source, (block, factor))| {
                if block.kind == Kind::Rows { (Some(source), factor) } else { (None, block.weight) }
            });
        let columns: Vec<_> = limits
            .private
            .then_some((None, 1))
            .into_iter()
            .chain(columns)
            .map(|(source, factor)| Column { source, factor, sums: vec![0; keys] })
            .collect();
        Self {
            totals: vec![0; keys * columns.len()],
            columns,
            first: measures.first(),
            unsettled: 0,
        }
    }

    /// Adds records; where it matters, `first` says of each whether it is the first one of its person and key.
    pub fn add<const W: usize>(&mut self, records: &[Record<W>], first: &[bool]) {
        self.unsettled += records.len();
        if self.unsettled > SETTLED {
            self.settle();
            self.unsettled = records.len();
        }
        let start = self.first;
        for Column { source, sums, .. } in &mut self.columns {
            match *source {
                None => tally(sums, records, |row, _| u64::from(first[row])),
                Some(Source::Rows) => tally(sums, records, |_, record| rows_of(record)),
                Some(Source::Word(i)) => tally(sums, records, |_, record| record[start + i]),
                Some(Source::Above(i)) => {
                    tally(sums, records, |_, record| unpacked(record[start + i]).0);
                }
                Some(Source::Below(i, grid)) => {
                    tally(sums, records, |_, record| below(unpacked(record[start + i]), grid));
                }
            }
        }
    }

    fn settle(&mut self) {
        let width = self.columns.len();
        for (i, Column { factor, sums, .. }) in self.columns.iter_mut().enumerate() {
            for (sum, total) in sums.iter_mut().zip(self.totals.iter_mut().skip(i).step_by(width)) {
                let more = u128::from(std::mem::take(sum)) * *factor;
                *total += i128::try_from(more).expect("it is far below 2^127");
            }
        }
    }

    pub fn totals(mut self) -> Vec<i128> {
        self.settle();
        self.totals
    }
}

fn tally<const W: usize>(
    sums: &mut [u64],
    records: &[Record<W>],
    of: impl Fn(usize, &Record<W>) -> u64,
) {
    for (i, record) in records.iter().enumerate() {
        let sum = &mut sums[key_of(record)];
        *sum = sum.wrapping_add(of(i, record)); // it has room: see SETTLED
    }
}
