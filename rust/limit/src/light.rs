//! Persons who are within all limits whatever keys their rows have: these rows are added as they are.
//!
//! With n rows a person has at most n keys, and no more than there are, and the norm of how many she has with each is at most n. So
//! if these are no more than any limit, her rows count in full, in any order and apart from each other. `Counts` says who that is, once all rows are
//! there; `Light` adds theirs.

use std::sync::Mutex;

use crate::codes::UNKNOWN;
use crate::measure::{Measures, Source, below, unpacked};
use crate::parts::Rows;
use crate::{Error, Kind, Limits, SLICE, in_threads, lock};

/// So many rows add less than a word can hold: one adds at most 2^36.
const SETTLED: usize = 1 << 26;
/// Persons with larger numbers are not counted.
const COUNTED: usize = 1 << 24;

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

/// How many rows each person has, those included that have no key.
#[derive(Default)]
pub struct Counts(Vec<u32>);

impl Counts {
    /// Counts fewer than 2^32 rows; false if persons have numbers that are too large for that.
    pub fn add(&mut self, persons: &[u32]) -> bool {
        let last = persons.iter().copied().max().map_or(0, |last| last as usize);
        if last >= COUNTED {
            return false;
        }
        if last >= self.0.len() {
            self.0.resize((last + 1).next_power_of_two(), 0);
        }
        for person in persons {
            let count = &mut self.0[*person as usize];
            *count = count.wrapping_add(1);
        }
        true
    }

    pub fn merge(mut self, mut other: Self) -> Self {
        if self.0.len() < other.0.len() {
            std::mem::swap(&mut self, &mut other);
        }
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
        self
    }

    /// Those with more rows.
    pub fn above(&self, most: u32) -> Heavy {
        let last = self.0.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let word = |counts: &[u32]| {
            counts.iter().enumerate().fold(0, |word, (i, n)| word | u64::from(*n > most) << i)
        };
        Heavy(self.0[..last].chunks(64).map(word).collect())
    }
}

/// A set of persons: a bit for each.
pub struct Heavy(Vec<u64>);

impl Heavy {
    fn has(&self, person: u32) -> bool {
        self.0[person as usize / 64] >> (person % 64) & 1 == 1
    }

    fn persons(&self) -> usize {
        64 * self.0.len()
    }
}

/// Pairs of a person and a key, each as the place of its bit in one of several sets: these stay near the processor.
struct Pairs {
    bits: u32,    // there are two to the power of this sets, and persons are dealt out to them
    width: usize, // how many persons a set has at the most, a multiple of 64
    keys: usize,
}

impl Pairs {
    /// None if there would be far more bits than rows.
    fn new(persons: usize, keys: usize, rows: usize) -> Option<Self> {
        let all = persons * keys;
        let bits = (all >> 22).next_power_of_two().ilog2().min(8);
        let width = persons.div_ceil(64 << bits) * 64;
        let fit = all <= 256 * rows && width * keys <= 1 << 32;
        fit.then_some(Self { bits, width, keys })
    }

    /// The set, and the place in it.
    #[allow(clippy::cast_possible_truncation)] // `new` has seen to it
    fn place(&self, person: u32, key: u32) -> (usize, u32) {
        let number = (person >> self.bits) as usize;
        (person as usize & ((1 << self.bits) - 1), (key as usize * self.width + number) as u32)
    }

    /// For each key how many persons have it, from lists of places in one set.
    fn count<'a>(&self, places: impl Iterator<Item = &'a Vec<u32>>) -> Vec<u64> {
        let mut seen = vec![0_u64; self.width / 64 * self.keys];
        for place in places.flatten() {
            seen[*place as usize / 64] |= 1 << (place % 64);
        }
        let persons = seen.chunks_exact((self.width / 64).max(1));
        persons.map(|seen| seen.iter().map(|word| u64::from(word.count_ones())).sum()).collect()
    }
}

struct Column {
    source: Option<Source>, // None: how many persons have the key
    factor: u128,
    sums: Vec<u64>, // for each key, before the factor; the first one is of rows that are not added
}

/// What such rows add to the totals of keys.
pub struct Light<'a> {
    heavy: &'a Heavy,
    columns: Vec<Column>,
    first: usize, // where measures begin among the words of rows
    unsettled: usize,
    totals: Vec<u128>,
    pairs: Option<Pairs>,       // if someone asks how many persons there are
    places: Vec<Vec<Vec<u32>>>, // for each set; lists as long as those of rows, so that the memory of these is used again
    slots: Vec<u32>,
}

impl<'a> Light<'a> {
    /// For so many rows; None if persons are asked for and their pairs would take too much room.
    pub fn new(
        limits: &Limits,
        measures: &Measures,
        heavy: &'a Heavy,
        keys: usize,
        rows: usize,
    ) -> Option<Self> {
        let blocks = limits.blocks.iter();
        let factors = blocks.flat_map(|block| block.columns.iter().map(move |c| (block, c.1)));
        let sources = measures.sources().into_iter().zip(factors);
        let columns = sources.map(|(source, (block, factor))| {
            if block.kind == Kind::Rows { (Some(source), factor) } else { (None, block.weight) }
        });
        let columns: Vec<_> = limits
            .private
            .then_some((None, 1))
            .into_iter()
            .chain(columns)
            .map(|(source, factor)| Column { source, factor, sums: vec![0; keys + 1] })
            .collect();
        let once = columns.iter().any(|column| column.source.is_none());
        let pairs = if once { Some(Pairs::new(heavy.persons(), keys, rows)?) } else { None };
        Some(Self {
            heavy,
            totals: vec![0; keys * columns.len()],
            columns,
            first: measures.first() - 1,
            unsettled: 0,
            places: vec![Vec::new(); pairs.as_ref().map_or(0, |pairs| 1 << pairs.bits)],
            pairs,
            slots: Vec::new(),
        })
    }

    /// Adds rows of persons who are not heavy, and gives back the others.
    pub fn add(&mut self, rows: &Rows) -> Rows {
        self.unsettled += rows.persons.len();
        if self.unsettled > SETTLED {
            self.settle();
            self.unsettled = rows.persons.len();
        }
        let mut left = Vec::new();
        self.slots.clear();
        self.slots.extend(rows.persons.iter().zip(&rows.keys).enumerate().map(
            |(i, (person, key))| {
                if self.heavy.has(*person) {
                    left.push(i);
                    return 0;
                }
                key.wrapping_add(1) // 0 for `UNKNOWN`
            },
        ));
        const { assert!(UNKNOWN == u32::MAX) }
        if let Some(pairs) = &self.pairs {
            for (slot, person) in
                self.slots.iter().zip(&rows.persons).filter(|(slot, _)| **slot > 0)
            {
                let (set, place) = pairs.place(*person, slot - 1);
                let places = &mut self.places[set];
                match places.last_mut() {
                    Some(open) if open.len() < SLICE => open.push(place),
                    _ => {
                        let mut open = Vec::with_capacity(SLICE);
                        open.push(place);
                        places.push(open);
                    }
                }
            }
        }
        for Column { source, sums, .. } in &mut self.columns {
            let word = |i: usize| rows.words[self.first + i].iter().copied();
            match *source {
                None => {}
                Some(Source::Rows) => tally(sums, &self.slots, std::iter::repeat(1)),
                Some(Source::Word(i)) => tally(sums, &self.slots, word(i)),
                Some(Source::Above(i)) => tally(sums, &self.slots, word(i).map(|x| unpacked(x).0)),
                Some(Source::Below(i, grid)) => {
                    tally(sums, &self.slots, word(i).map(|x| below(unpacked(x), grid)));
                }
            }
        }
        rows.select(&left)
    }

    fn settle(&mut self) {
        let width = self.columns.len();
        for (i, Column { factor, sums, .. }) in self.columns.iter_mut().enumerate() {
            let totals = self.totals.iter_mut().skip(i).step_by(width);
            for (sum, total) in sums[1..].iter_mut().zip(totals) {
                *total += u128::from(std::mem::take(sum)) * *factor;
            }
        }
    }

    /// What several have added; a person is counted once whoever has seen her.
    pub fn totals(mut all: Vec<Self>) -> Result<Vec<u128>, Error> {
        all.iter_mut().for_each(Self::settle);
        let Some(one) = all.first() else { return Ok(Vec::new()) };
        let mut totals = one.totals.clone();
        for more in &all[1..] {
            totals.iter_mut().zip(&more.totals).for_each(|(total, more)| *total += more);
        }
        let Some(pairs) = &one.pairs else { return Ok(totals) };
        let left = Mutex::new(0..1 << pairs.bits);
        let found = in_threads(all.len(), || {
            let mut persons = vec![0; pairs.keys];
            loop {
                let Some(set) = lock(&left).next() else { return Ok(persons) };
                let counts = pairs.count(all.iter().flat_map(|one| &one.places[set]));
                persons.iter_mut().zip(counts).for_each(|(sum, more)| *sum += more);
            }
        })?;
        for (i, column) in one.columns.iter().enumerate().filter(|(_, c)| c.source.is_none()) {
            for persons in &found {
                let totals = totals.iter_mut().skip(i).step_by(one.columns.len());
                totals.zip(persons).for_each(|(sum, n)| *sum += u128::from(*n) * column.factor);
            }
        }
        Ok(totals)
    }
}

fn tally(sums: &mut [u64], slots: &[u32], values: impl Iterator<Item = u64>) {
    for (slot, value) in slots.iter().zip(values) {
        let sum = &mut sums[*slot as usize];
        *sum = sum.wrapping_add(value); // it has room: see SETTLED
    }
}
