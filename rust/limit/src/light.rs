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
pub struct Light<'a> {
    heavy: &'a Heavy,
    columns: Vec<Column>,
    first: usize, // where measures begin among the words of rows
    unsettled: usize,
    totals: Vec<u128>,
    pairs: Option<Pairs>,       // if someone asks how many persons there are
    open: Vec<Vec<u32>>,        // places in each set: lists that are being filled
    places: Vec<Vec<Vec<u32>>>, // and full ones, as long as those of rows, so that the memory of these is used again
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
        for column in &mut columns {
            column.sums = vec![0; (keys + 1) * column.factors.len()];
        }
        let once = columns.iter().any(|column| matches!(column.of, Of::Persons));
        let pairs = if once { Some(Pairs::new(heavy.persons(), keys, rows)?) } else { None };
        let sets = pairs.as_ref().map_or(0, |pairs| 1 << pairs.bits);
        Some(Self {
            heavy,
            totals: vec![0; keys * width],
            columns,
            first: measures.first() - 1,
            unsettled: 0,
            open: (0..sets).map(|_| Vec::with_capacity(SLICE)).collect(),
            places: vec![Vec::new(); sets],
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
                let open = &mut self.open[set];
                open.push(place);
                if open.len() == SLICE {
                    self.places[set].push(std::mem::replace(open, Vec::with_capacity(SLICE)));
                }
            }
        }
        for Column { of, sums, .. } in &mut self.columns {
            let word = |i: usize| rows.words[self.first + i].iter().copied();
            match *of {
                Of::Persons => {}
                Of::Rows => tally(sums, &self.slots, std::iter::repeat(1)),
                Of::Word(i) => tally(sums, &self.slots, word(i)),
                Of::Value(i, _) => {
                    for (slot, word) in self.slots.iter().zip(word(i)) {
                        let (sum, values) = unpacked(word);
                        let sums = &mut sums[2 * *slot as usize..][..2];
                        sums[0] = sums[0].wrapping_add(sum);
                        sums[1] = sums[1].wrapping_add(values);
                    }
                }
            }
        }
        rows.select(&left)
    }

    fn settle(&mut self) {
        let width: usize = self.columns.iter().map(|column| column.factors.len()).sum();
        for Column { of, first, factors, sums } in &mut self.columns {
            let totals = self.totals.chunks_exact_mut(width).map(|totals| &mut totals[*first..]);
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

    /// What several have added; a person is counted once whoever has seen her.
    pub fn totals(mut all: Vec<Self>) -> Result<Vec<u128>, Error> {
        for one in &mut all {
            one.settle();
            let open = std::mem::take(&mut one.open);
            one.places.iter_mut().zip(open).for_each(|(places, open)| places.push(open));
        }
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
        let width = totals.len() / pairs.keys.max(1);
        for column in one.columns.iter().filter(|column| matches!(column.of, Of::Persons)) {
            for persons in &found {
                let totals = totals.iter_mut().skip(column.first).step_by(width.max(1));
                totals.zip(persons).for_each(|(sum, n)| *sum += u128::from(*n) * column.factors[0]);
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
