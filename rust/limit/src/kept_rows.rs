//! Rows that are kept until it is known how many each person has: by person, and in few bytes.
//!
//! What must hold: each row is kept or given back at once (`Sorter::take`), and each that is kept comes out again once: it is added only if
//! its person has no more rows than are within all limits, kept ones and others together, and else goes to `outgoing`.
//!
//! Persons are dealt out to sets. Once all rows are there, all that is asked of a set stays near the processor: how many rows each
//! of its persons has, and which keys.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::measure::Kept;
use crate::records::Rows;
use crate::within_limits::{COUNTED, Counts, Light};
use crate::{Error, SLICE, lock};

/// Bytes of rows that are kept.
const KEPT: usize = 1 << 30;
pub const SETS: usize = 1 << 6;
/// Keys with larger slots are not kept here: a person's number in her set and the slot of a key are one word.
pub const KEYS: u32 = 1 << 14;
const CHUNK: usize = 1 << 13;

struct Chunk<T> {
    heads: Vec<u32>, // the person's number within her set, and the slot: 18 and 14 bits
    words: Vec<Vec<T>>,
}

impl<T> Chunk<T> {
    fn new(words: usize) -> Self {
        let words = (0..words).map(|_| Vec::with_capacity(CHUNK)).collect();
        Self { heads: Vec::with_capacity(CHUNK), words }
    }
}

fn number_of(head: u32) -> usize {
    (head / KEYS) as usize
}

/// One more than the number of the key, as `Light::add` has it.
fn slot_of(head: u32) -> u32 {
    head % KEYS
}

pub struct KeptRows<T> {
    sets: Vec<Mutex<Vec<Chunk<T>>>>,
    bytes: AtomicUsize,
    last: AtomicU32, // no person has a number above this
}

impl<T: Kept> KeptRows<T> {
    pub fn new() -> Self {
        let sets = (0..SETS).map(|_| Mutex::default()).collect();
        Self { sets, bytes: 0.into(), last: 0.into() }
    }

    /// Whether there is no room for more.
    pub fn full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > KEPT
    }

    fn put(&self, set: usize, chunk: Chunk<T>) {
        let size = size_of::<u32>() + chunk.words.len() * size_of::<T>();
        self.bytes.fetch_add(chunk.heads.len() * size, Ordering::Relaxed);
        lock(&self.sets[set]).push(chunk);
    }
}

fn all(numbers: &[u32]) -> u32 {
    numbers.iter().fold(0, |all, number| all | number)
}

/// Rows with slots that cannot be kept, which have none then: all with some keys, or of some persons.
/// To limit these alone is right for whoever has few rows in all, since then nothing of hers is limited anywhere.
pub fn unkept(persons: &[u32], slots: &mut [u32]) -> Vec<usize> {
    let mut left = Vec::new();
    if all(persons) >= COUNTED || all(slots) >= KEYS {
        for (i, (slot, person)) in slots.iter_mut().zip(persons).enumerate() {
            if *slot > 0 && (*person >= COUNTED || *slot >= KEYS) {
                left.push(i);
                *slot = 0;
            }
        }
    }
    left
}

/// What one thread has not yet put there.
pub struct Sorter<T> {
    open: Vec<Chunk<T>>,
    heads: Vec<u32>,
    order: Vec<u32>,
}

impl<T: Kept> Sorter<T> {
    pub fn new(words: usize) -> Self {
        let open = (0..SETS).map(|_| Chunk::new(words)).collect();
        Self { open, heads: Vec::new(), order: Vec::new() }
    }

    /// Takes rows that have slots, and gives those that cannot be kept.
    pub fn take(
        &mut self,
        persons: &[u32],
        slots: &mut [u32],
        words: &[Vec<u64>],
        shelves: &KeptRows<T>,
    ) -> Vec<usize> {
        let left = unkept(persons, slots);
        shelves.last.fetch_or(all(persons).min(COUNTED - 1), Ordering::Relaxed);
        self.sort(persons, slots, words, shelves);
        left
    }

    #[allow(clippy::cast_possible_truncation)] // slices are short
    fn sort(&mut self, persons: &[u32], slots: &[u32], words: &[Vec<u64>], shelves: &KeptRows<T>) {
        let set_of = |person: &u32| *person as usize % SETS;
        let mut ends = [0_u32; SETS];
        for (person, slot) in persons.iter().zip(slots) {
            ends[set_of(person)] += u32::from(*slot > 0);
        }
        let mut start = 0;
        for end in &mut ends {
            start += *end;
            *end = start - *end;
        }
        let head = |(person, slot): (&u32, &u32)| (person / SETS as u32).wrapping_mul(KEYS) | slot;
        self.heads.clear();
        self.heads.extend(persons.iter().zip(slots).map(head));
        self.order.clear();
        self.order.resize(persons.len(), 0);
        for (row, (person, slot)) in persons.iter().zip(slots).enumerate() {
            if *slot > 0 {
                let end = &mut ends[set_of(person)];
                self.order[*end as usize] = row as u32;
                *end += 1;
            }
        }
        let mut start = 0;
        for (set, end) in ends.into_iter().enumerate() {
            let mut these = &self.order[start..end as usize];
            start = end as usize;
            while !these.is_empty() {
                let open = &mut self.open[set];
                let (now, later) = these.split_at(these.len().min(CHUNK - open.heads.len()));
                open.heads.extend(now.iter().map(|row| self.heads[*row as usize]));
                for (kept, word) in open.words.iter_mut().zip(words) {
                    kept.extend(now.iter().map(|row| T::of(word[*row as usize])));
                }
                if open.heads.len() == CHUNK {
                    let new = Chunk::new(open.words.len());
                    shelves.put(set, std::mem::replace(open, new));
                }
                these = later;
            }
        }
    }

    pub fn finish(self, shelves: &KeptRows<T>) {
        for (set, chunk) in self.open.into_iter().enumerate() {
            shelves.put(set, chunk);
        }
    }
}

/// Takes rows out of the shelves again, set by set.
pub struct Clerk<'a> {
    light: Option<&'a mut Light>, // None: there are too many rows, and all are limited
    most: u32,
    others: &'a Counts, // rows that were not kept
    keys: usize,
}

impl<'a> Clerk<'a> {
    pub fn new(light: Option<&'a mut Light>, most: u32, others: &'a Counts, keys: usize) -> Self {
        Self { light, most, others, keys }
    }

    /// Adds the rows of a set whose persons have few, and gives the others to `outgoing`.
    #[allow(clippy::cast_possible_truncation)] // persons who are kept have small numbers
    pub fn clear<T: Kept>(
        &mut self,
        shelves: &KeptRows<T>,
        set: usize,
        mut outgoing: impl FnMut(&Rows) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let chunks = std::mem::take(&mut *lock(&shelves.sets[set]));
        let heads = || chunks.iter().flat_map(|chunk| &chunk.heads);
        let rows: usize = chunks.iter().map(|chunk| chunk.heads.len()).sum();
        let mut counts = vec![0_u32; shelves.last.load(Ordering::Relaxed) as usize / SETS + 1];
        if self.most < u32::MAX {
            for head in heads() {
                counts[number_of(*head)] += 1;
            }
            let last = counts.iter().rposition(|count| *count > 0);
            counts.truncate(last.map_or(1, |last| last + 1));
            for (number, count) in counts.iter_mut().enumerate() {
                *count = count.saturating_add(self.others.of(number * SETS + set));
            }
        }
        let once = self.light.as_ref().is_some_and(|light| light.counts_persons());
        let mut pairs = Pairs::new(once, counts.len(), self.keys, rows);
        let (mut slots, mut left) = (Vec::new(), Vec::new());
        for chunk in chunks {
            for start in (0..chunk.heads.len()).step_by(SLICE) {
                let range = start..chunk.heads.len().min(start + SLICE);
                let heads = &chunk.heads[range.clone()];
                let words = |i: usize| &chunk.words[i][range.clone()];
                left.clear();
                if let Some(light) = &mut self.light {
                    slots.clear();
                    slots.extend(heads.iter().enumerate().map(|(i, head)| {
                        if counts[number_of(*head)] > self.most {
                            left.push(i);
                            return 0;
                        }
                        slot_of(*head)
                    }));
                    pairs.note(heads.iter().zip(&slots).map(|(head, slot)| (*head, *slot > 0)));
                    light.add(&slots, words, self.keys);
                } else {
                    left.extend(0..heads.len());
                }
                if !left.is_empty() {
                    let person = |i: &usize| number_of(heads[*i]) * SETS + set;
                    let rows = Rows {
                        persons: left.iter().map(|i| person(i) as u32).collect(),
                        keys: left.iter().map(|i| slot_of(heads[*i]) - 1).collect(),
                        words: (0..chunk.words.len())
                            .map(|word| left.iter().map(|i| words(word)[*i].word()).collect())
                            .collect(),
                    };
                    outgoing(&rows)?;
                }
            }
        }
        if let Some(light) = &mut self.light {
            light.add_persons(&pairs.count());
        }
        Ok(())
    }
}

/// Which persons of a set have which keys: a bit for each pair, or a list where most bits would be zero.
enum Pairs {
    Unasked,
    Bits { seen: Vec<u64>, width: usize },
    Listed { heads: Vec<u32>, keys: usize },
}

impl Pairs {
    fn new(asked: bool, persons: usize, keys: usize, rows: usize) -> Self {
        let (width, keys) = (persons.next_multiple_of(64), keys.min(KEYS as usize));
        match asked {
            false => Self::Unasked,
            true if width * keys <= 256 * rows => {
                Self::Bits { seen: vec![0; width / 64 * keys], width }
            }
            true => Self::Listed { heads: Vec::with_capacity(rows), keys },
        }
    }

    /// Notes the pairs of rows, if they are to be.
    fn note(&mut self, rows: impl Iterator<Item = (u32, bool)>) {
        match self {
            Self::Unasked => {}
            Self::Bits { seen, width } => {
                for (head, there) in rows {
                    let place = (slot_of(head) as usize - 1) * *width + number_of(head);
                    seen[place / 64] |= u64::from(there) << (place % 64);
                }
            }
            Self::Listed { heads, .. } => {
                heads.extend(rows.filter(|(_, there)| *there).map(|(head, _)| head));
            }
        }
    }

    /// For each key how many persons have it.
    fn count(self) -> Vec<u64> {
        match self {
            Self::Unasked => Vec::new(),
            Self::Bits { seen, width } => {
                let keys = seen.chunks_exact(width / 64);
                keys.map(|seen| seen.iter().map(|word| u64::from(word.count_ones())).sum())
                    .collect()
            }
            Self::Listed { mut heads, keys } => {
                let mut counts = vec![0; keys];
                heads.sort_unstable();
                heads.dedup();
                for head in heads {
                    counts[slot_of(head) as usize - 1] += 1;
                }
                counts
            }
        }
    }
}
