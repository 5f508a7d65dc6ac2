//! Records of rows, in parts by their person.
//!
//! What must hold:
//! * All records of a person are in one part, and `by_person` gives them together. The person can be told from the part and the number.
//! * Two records become one only if they are of the same person and key, and each word can hold the sum. A record is of at most 255 rows,
//!   of which each adds at most 2^36 to a word: so the two parts of a word (`measure`) do not run into each other.

use std::array::from_fn;
use std::sync::Mutex;

use crate::numbering::{Numbering, UNKNOWN};
use crate::{Error, lock};

/// Keys have numbers below this, and a record stands for so many rows at the most.
pub const KEYS: usize = 1 << 28;
const ROWS: u64 = (1 << 8) - 1;

const PARTS: usize = 1 << 6;
/// Bytes of records up to which a part is not merged.
const LEAST: usize = (1 << 28) / PARTS;

/// First the person's number within her part, the key and the number of rows: 28, 28 and 8 bits. Then what these rows
/// add: a hash if keys are private, which is the same for all of a pair, and measures.
pub type Record<const W: usize> = [u64; W];

fn number_of<const W: usize>(record: &Record<W>) -> u64 {
    record[0] >> 36
}

#[allow(clippy::cast_possible_truncation)] // 28 bits
pub fn key_of<const W: usize>(record: &Record<W>) -> usize {
    (record[0] >> 8) as usize & (KEYS - 1)
}

pub fn rows_of<const W: usize>(record: &Record<W>) -> u64 {
    record[0] & ROWS
}

/// A number whose upper bits depend on all the others. A poor choice of persons makes it slow, not wrong.
fn mix(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The part of a person and her number in it: from both the person can be told.
#[allow(clippy::cast_possible_truncation)] // few bits
fn place_of(person: u32) -> (usize, u64) {
    let number = u64::from(person) / PARTS as u64;
    ((u64::from(person) ^ (mix(number) >> 56)) as usize % PARTS, number)
}

/// Where records of a part are put together.
struct Places {
    count: usize,
    alone: bool, // each person has a place of her own
}

impl Places {
    /// For so many records of persons with numbers up to `last`. If these are sparse, few persons have the same place.
    fn new(records: usize, last: u64) -> Self {
        match usize::try_from(last) {
            Ok(last) if last < 4 * records + 256 => Self { count: last + 1, alone: true },
            _ => Self { count: 1 << (records / 8).max(1).ilog2().min(16), alone: false },
        }
    }

    #[allow(clippy::cast_possible_truncation)] // it is small
    fn of<const W: usize>(&self, record: &Record<W>) -> usize {
        let person = number_of(record);
        if self.alone { person as usize } else { (mix(person) >> 40) as usize & (self.count - 1) }
    }
}

/// The person of a record in this part.
pub fn person_of<const W: usize>(part: usize, record: &Record<W>) -> u64 {
    let number = number_of(record);
    number * PARTS as u64 + (part as u64 ^ (mix(number) >> 56)) % PARTS as u64
}

/// Rows by column: numbers of persons and keys (`UNKNOWN` without one), a hash if there is one, and what they add.
pub struct Rows {
    pub persons: Vec<u32>,
    pub keys: Vec<u32>,
    pub words: Vec<Vec<u64>>,
}

impl Rows {
    /// These of them.
    pub fn select(&self, rows: &[usize]) -> Self {
        Self { persons: picked(&self.persons, rows), ..self.of(Vec::new(), rows) }
    }

    /// These of them, which are of other persons; a row may be there several times.
    pub fn of(&self, persons: Vec<u32>, rows: &[usize]) -> Self {
        let words = self.words.iter().map(|word| picked(word, rows)).collect();
        Self { persons, keys: picked(&self.keys, rows), words }
    }
}

fn picked<T: Copy>(values: &[T], rows: &[usize]) -> Vec<T> {
    rows.iter().map(|row| values[*row]).collect()
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
    /// Records that are put into a part at once.
    const CHUNK: usize = (1 << 15) / size_of::<Record<W>>();

    pub fn records(&self) -> usize {
        self.records
    }

    fn push(&mut self, mut records: &[Record<W>]) {
        while !records.is_empty() {
            if self.chunks.last().is_none_or(|chunk| chunk.len() == Self::CHUNK) {
                self.chunks.push(Vec::with_capacity(Self::CHUNK));
            }
            let chunk = self.chunks.last_mut().expect("there is one");
            let (now, later) = records.split_at(records.len().min(Self::CHUNK - chunk.len()));
            chunk.extend_from_slice(now);
            records = later;
        }
    }

    /// Calls `each` with all records of a person, for one person after the other.
    ///
    /// No person has a number above `last`.
    pub fn by_person(
        self,
        last: u64,
        scratch: &mut Scratch<W>,
        mut each: impl FnMut(&[Record<W>]),
    ) {
        let places = Places::new(self.records, last);
        let starts = &mut scratch.starts;
        starts.clear();
        starts.resize(places.count + 1, 0);
        for record in self.chunks.iter().flatten() {
            starts[places.of(record) + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let sorted = &mut scratch.records;
        sorted.resize(self.records.max(sorted.len()), [0; W]);
        for chunk in self.chunks {
            for record in &chunk {
                let start = &mut starts[places.of(record)];
                sorted[*start as usize] = *record;
                *start += 1;
            }
        }
        let mut from = 0;
        for end in &starts[..places.count] {
            let end = *end as usize;
            let same = &mut sorted[from..end];
            from = end;
            if places.alone && !same.is_empty() {
                each(same);
            } else {
                same.sort_unstable_by_key(number_of);
                same.chunk_by(|left, right| number_of(left) == number_of(right))
                    .for_each(&mut each);
            }
        }
    }

    /// One record for each person and key, unless it could not hold the sums.
    fn merge(&mut self, keys: usize, first: usize, scratch: &mut Scratch<W>) {
        let part = std::mem::take(self);
        let last = part.chunks.iter().flatten().map(number_of).max().unwrap_or(0);
        let mut slots = std::mem::take(&mut scratch.slots);
        slots.resize(keys, 0);
        let mut pairs: Vec<Record<W>> = Vec::new();
        part.by_person(last, scratch, |records| {
            pairs.clear();
            for record in records {
                let slot = &mut slots[key_of(record)];
                if let Some(pair) = slot.checked_sub(1).map(|slot| &mut pairs[slot as usize])
                    && let Some(sum) = added(pair, record, first)
                {
                    *pair = sum;
                } else {
                    pairs.push(*record);
                    *slot = u32::try_from(pairs.len()).expect("a part has fewer records");
                }
            }
            for pair in &pairs {
                slots[key_of(pair)] = 0;
            }
            self.push(&pairs);
            self.records += pairs.len();
        });
        scratch.slots = slots;
        self.most = self.most.max((8 / W).clamp(2, 4) * self.records);
    }
}

/// Two records of the same person and key as one, if it can hold the sums; measures begin at `first`.
fn added<const W: usize>(pair: &Record<W>, more: &Record<W>, first: usize) -> Option<Record<W>> {
    if rows_of(pair) + rows_of(more) > ROWS {
        return None;
    }
    let mut sum = *pair;
    sum[0] += rows_of(more);
    for (word, more) in sum[first..].iter_mut().zip(&more[first..]) {
        *word = word.checked_add(*more)?;
    }
    Some(sum)
}

/// The records that one thread has not yet given to the parts: few, so that they stay near the processor.
pub struct Outgoing<const W: usize> {
    records: Vec<Record<W>>, // of each part `STAGE`
    filled: [usize; PARTS],
    last: u64, // the largest number of a person within her part
}

impl<const W: usize> Outgoing<W> {
    const STAGE: usize = Part::<W>::CHUNK / 8;

    pub fn new() -> Self {
        Self { records: vec![[0; W]; PARTS * Self::STAGE], filled: [0; PARTS], last: 0 }
    }

    /// Takes rows, without those that have no key.
    pub fn take(
        &mut self,
        rows: &Rows,
        inbox: &Inbox<W>,
        scratch: &mut Scratch<W>,
    ) -> Result<(), Error> {
        let last = u64::from(rows.persons.iter().copied().max().unwrap_or(0));
        if inbox.keys.count() > KEYS {
            return Err(Error::Size);
        }
        self.last = self.last.max(last / PARTS as u64);
        let zeros = vec![0_u64; rows.persons.len()];
        let words: [&[u64]; W] =
            from_fn(|i| rows.words.get(i.wrapping_sub(1)).map_or(&zeros[..], Vec::as_slice));
        for (row, (person, key)) in rows.persons.iter().zip(&rows.keys).enumerate() {
            if *key == UNKNOWN {
                continue;
            }
            let (part, number) = place_of(*person);
            let head = number << 36 | u64::from(*key) << 8 | 1;
            let start = part * Self::STAGE;
            self.records[start + self.filled[part]] =
                from_fn(|i| if i == 0 { head } else { words[i][row] });
            self.filled[part] += 1;
            if self.filled[part] == Self::STAGE {
                inbox.put(part, &self.records[start..start + Self::STAGE], scratch);
                self.filled[part] = 0;
            }
        }
        Ok(())
    }

    /// Gives away all that is left, and says the largest number of a person.
    pub fn finish(self, inbox: &Inbox<W>, scratch: &mut Scratch<W>) -> u64 {
        for (part, filled) in self.filled.iter().enumerate() {
            inbox.put(part, &self.records[part * Self::STAGE..][..*filled], scratch);
        }
        self.last
    }
}

/// The parts, as all threads give to them.
pub struct Inbox<'a, const W: usize> {
    pub parts: Vec<Mutex<Part<W>>>,
    keys: &'a Numbering,
    first: usize, // where measures begin in a record
}

impl<'a, const W: usize> Inbox<'a, W> {
    pub fn new(keys: &'a Numbering, first: usize) -> Self {
        Self { parts: (0..PARTS).map(|_| Mutex::default()).collect(), keys, first }
    }

    fn put(&self, part: usize, records: &[Record<W>], scratch: &mut Scratch<W>) {
        let mut part = lock(&self.parts[part]);
        part.records += records.len();
        part.push(records);
        if part.records > part.most {
            // Counted now, while nobody else gives: other threads may have found new keys since.
            part.merge(self.keys.count(), self.first, scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Inbox, Outgoing, Rows, Scratch, person_of, place_of};
    use crate::lock;
    use crate::numbering::Numbering;

    #[test]
    fn memory_goes_by_pairs_whatever_a_person_is_called() {
        let keys = Numbering::new(0, false);
        let inbox = Inbox::<8>::new(&keys, 1); // a record of five words has room for eight
        let (mut outgoing, mut scratch) = (Outgoing::new(), Scratch::new());
        let n = 1 << 14;
        let rows =
            Rows { persons: vec![u32::MAX; n], keys: vec![0; n], words: vec![vec![3; n]; 4] };
        for _ in 0..80 {
            assert!(outgoing.take(&rows, &inbox, &mut scratch).is_ok());
        }
        outgoing.finish(&inbox, &mut scratch);
        let records: usize = inbox.parts.iter().map(|part| lock(part).records()).sum();
        assert!(records < 1 << 17, "{records} records of 80 * 2^14 rows");
    }

    #[test]
    fn persons_can_be_told_from_their_records() {
        for person in (0..32).flat_map(|bit| [1 << bit, (1 << bit) - 1, u32::MAX - (1 << bit)]) {
            let (part, number) = place_of(person);
            assert_eq!(person_of(part, &[number << 36]), u64::from(person));
        }
    }
}
