//! Records of rows, in parts by their person.

use std::sync::Mutex;

use crate::lock;

const PARTS: usize = 1 << BITS;
const BITS: u32 = 8;
/// Bytes of records up to which a part is not merged.
const LEAST: usize = 1 << 19;
/// How many times as many records as pairs there may be.
const MORE: usize = 4;
/// Records that are allocated at once at the most.
const CHUNK: usize = 1 << 13;

/// A person, a key below and a number of rows above, and what these add: a hash if keys are private, and measures.
pub type Record<const W: usize> = [u64; W];

#[allow(clippy::cast_possible_truncation)] // the lower half
pub fn key_of<const W: usize>(record: &Record<W>) -> u32 {
    record[1] as u32
}

pub fn rows_of<const W: usize>(record: &Record<W>) -> u64 {
    record[1] >> 32
}

/// A number whose upper bits depend on all of the person. A poor choice of persons makes it slow, not wrong.
fn mix(person: u64) -> u64 {
    (person ^ person >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[allow(clippy::cast_possible_truncation)] // few bits are left
fn part_of(person: u64) -> usize {
    (mix(person) >> (64 - BITS)) as usize
}

pub struct Part<const W: usize> {
    chunks: Vec<Vec<Record<W>>>,
    records: usize,
    most: usize,
}

impl<const W: usize> Default for Part<W> {
    fn default() -> Self {
        Self { chunks: Vec::new(), records: 0, most: LEAST / size_of::<Record<W>>() }
    }
}

/// Memory that is used again and again.
pub struct Scratch<const W: usize> {
    records: Vec<Record<W>>,
    starts: Vec<u32>,
    slots: Vec<u32>,
}

impl<const W: usize> Scratch<W> {
    pub fn new() -> Self {
        Self { records: Vec::new(), starts: Vec::new(), slots: Vec::new() }
    }
}

impl<const W: usize> Part<W> {
    pub fn all() -> Vec<Mutex<Self>> {
        (0..PARTS).map(|_| Mutex::default()).collect()
    }

    pub fn records(&self) -> usize {
        self.records
    }

    fn append(&mut self, mut records: &[Record<W>]) {
        self.records += records.len();
        while !records.is_empty() {
            let room = self.chunks.last().map_or(0, |chunk| chunk.capacity() - chunk.len());
            if room == 0 {
                self.chunks.push(Vec::with_capacity(self.records.next_power_of_two().min(CHUNK)));
                continue;
            }
            let (now, later) = records.split_at(room.min(records.len()));
            self.chunks.last_mut().expect("there is room").extend_from_slice(now);
            records = later;
        }
    }

    /// Calls `each` with all records of a person, for one person after the other.
    pub fn by_person(self, scratch: &mut Scratch<W>, mut each: impl FnMut(&[Record<W>])) {
        // Counting sort by so many bits that few persons have the same, and then by person where they have.
        let bits = (self.records / 8).max(1).ilog2().min(16);
        #[allow(clippy::cast_possible_truncation)] // few bits are left
        let place = |record: &Record<W>| {
            ((mix(record[0]) << BITS).checked_shr(64 - bits).unwrap_or(0)) as usize
        };
        let starts = &mut scratch.starts;
        starts.clear();
        starts.resize((1 << bits) + 1, 0);
        for record in self.chunks.iter().flatten() {
            starts[place(record) + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let sorted = &mut scratch.records;
        sorted.resize(self.records, [0; W]);
        for chunk in self.chunks {
            for record in &chunk {
                let start = &mut starts[place(record)];
                sorted[*start as usize] = *record;
                *start += 1;
            }
        }
        let mut from = 0;
        for end in &starts[..1 << bits] {
            let same = &mut sorted[from..*end as usize];
            from = *end as usize;
            let Some(first) = same.first() else { continue };
            if same.iter().all(|record| record[0] == first[0]) {
                each(same);
            } else {
                same.sort_unstable_by_key(|record| record[0]);
                same.chunk_by(|left, right| left[0] == right[0]).for_each(&mut each);
            }
        }
    }

    /// One record for each person and key, unless its words would not hold the sums.
    fn merge(&mut self, keys: usize, first: usize, scratch: &mut Scratch<W>) {
        let part = std::mem::take(self);
        let mut slots = std::mem::take(&mut scratch.slots);
        slots.resize(keys, 0);
        let mut pairs: Vec<Record<W>> = Vec::new();
        part.by_person(scratch, |records| {
            pairs.clear();
            for record in records {
                let slot = &mut slots[key_of(record) as usize];
                if let Some(pair) = slot.checked_sub(1).map(|slot| &mut pairs[slot as usize])
                    && let Some(sum) = added(pair, record, first)
                {
                    *pair = sum;
                } else {
                    pairs.push(*record);
                    *slot = u32::try_from(pairs.len())
                        .expect("keys are fewer, and sums that large are few");
                }
            }
            for pair in &pairs {
                slots[key_of(pair) as usize] = 0;
            }
            self.append(&pairs);
        });
        scratch.slots = slots;
        self.most = (MORE * self.records).max(LEAST / size_of::<Record<W>>());
    }
}

/// Two records of the same person and key as one, if its words are large enough; measures begin at `first`.
fn added<const W: usize>(pair: &Record<W>, more: &Record<W>, first: usize) -> Option<Record<W>> {
    let mut sum = *pair;
    let rows = u32::try_from(rows_of(pair) + rows_of(more)).ok()?;
    sum[1] = u64::from(rows) << 32 | u64::from(key_of(pair));
    for (word, more) in sum[first..].iter_mut().zip(&more[first..]) {
        *word = word.checked_add(*more)?;
    }
    Some(sum)
}

/// Appends rows to the parts of their persons.
pub fn split<const W: usize>(
    persons: &[u64],
    keys: &[u32],
    words: &[Vec<u64>],
    parts: &[Mutex<Part<W>>],
    (count, first): (usize, usize), // of keys; of measures
    scratch: &mut Scratch<W>,
) {
    let mut starts = [0_usize; PARTS + 1];
    for person in persons {
        starts[part_of(*person) + 1] += 1;
    }
    for i in 0..PARTS {
        starts[i + 1] += starts[i];
    }
    let mut records = std::mem::take(&mut scratch.records);
    records.resize(persons.len().max(records.len()), [0; W]);
    let mut ends = starts;
    for (row, (person, key)) in persons.iter().zip(keys).enumerate() {
        let end = &mut ends[part_of(*person)];
        let record = &mut records[*end];
        record[0] = *person;
        record[1] = 1 << 32 | u64::from(*key);
        for (word, column) in record[2..].iter_mut().zip(words) {
            *word = column[row];
        }
        *end += 1;
    }
    for (i, part) in parts.iter().enumerate() {
        if starts[i] == starts[i + 1] {
            continue;
        }
        let mut part = lock(part);
        part.append(&records[starts[i]..starts[i + 1]]);
        if part.records > part.most {
            part.merge(count, first, scratch);
        }
    }
    scratch.records = records;
}
