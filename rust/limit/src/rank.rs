//! In which order a person keeps groups: by the upper half of the engine's hash of the person and of the hash of the keys.
//!
//! What must hold: a rank depends on the person and the key alone, not on numbers that they have here, nor on other rows.
//!
//! It is computed here, and only where it is asked for, if persons are whole numbers, dates or truth values; keys are the same, or
//! rows have the hash of theirs. That it is the engine's own matters to the tests that compare this form with SQL, and
//! not for privacy: any order will do that depends on person and keys alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, new_empty_array};
use arrow_schema::DataType;

use crate::numbering::integers;
use crate::{Error, lock};

const NULL: u64 = 0xbf58_476d_1ce4_e5b9;

fn mixed(word: u64) -> u64 {
    (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn hash(word: u64) -> u64 {
    let word = mixed(mixed(word));
    word ^ word >> 32
}

/// What is hashed of a number: numbers of up to 32 bits have so many.
fn bits(kind: &DataType) -> u64 {
    let long = matches!(kind, DataType::Int64 | DataType::UInt64 | DataType::Timestamp(_, _));
    if long { u64::MAX } else { u32::MAX.into() }
}

/// Whether values of this type are hashed here. Others are known by numbers, which depend on who else is there.
pub fn usable(kind: &DataType) -> Result<(), Error> {
    integers(&new_empty_array(kind)).map(|_| ()).ok_or(Error::Type)
}

pub struct Ranks {
    bits: u64,
    from: u64,       // persons with numbers below this are these numbers themselves
    large: Vec<u64>, // the others
    keys: Vec<u64>,  // hashes of hashes
}

/// The hashes of keys that rows have: for each number of a key.
#[derive(Default)]
pub struct Noted {
    known: AtomicUsize, // keys below this have one
    hashes: Mutex<Vec<Option<u64>>>,
}

impl Noted {
    /// Of rows with these keys. All threads share it, and most keys are known.
    pub fn note(&self, keys: &[u32], column: &ArrayRef) -> Result<(), Error> {
        let found = column.as_primitive_opt::<UInt64Type>().filter(|c| c.null_count() == 0);
        let found = found.ok_or(Error::Type)?.values();
        let Some(last) = keys.iter().copied().max() else { return Ok(()) };
        if (last as usize) < self.known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut hashes = lock(&self.hashes);
        let size = hashes.len().max(last as usize + 1);
        hashes.resize(size, None);
        for (key, hash) in keys.iter().zip(found) {
            hashes[*key as usize] = Some(*hash);
        }
        let mut known = self.known.load(Ordering::Relaxed);
        while hashes.get(known).is_some_and(Option::is_some) {
            known += 1;
        }
        self.known.store(known, Ordering::Relaxed);
        Ok(())
    }

    pub fn hashes(self) -> Vec<u64> {
        let hashes = self.hashes.into_inner().unwrap_or_else(PoisonError::into_inner);
        hashes.into_iter().map(Option::unwrap_or_default).collect()
    }
}

/// The hashes of keys that are whole numbers, dates or truth values, as the engine has them for several columns.
pub fn of_keys(keys: &[ArrayRef]) -> Result<Vec<u64>, Error> {
    let hashes = |column: &ArrayRef| -> Option<Vec<u64>> {
        let (words, bits) = (integers(column)?, bits(column.data_type()));
        let words = words.into_iter().enumerate();
        Some(words.map(|(i, x)| if column.is_null(i) { NULL } else { hash(x & bits) }).collect())
    };
    let columns = keys.iter().map(hashes).collect::<Option<Vec<_>>>().ok_or(Error::Type)?;
    let whole = columns.into_iter().reduce(|left, right| {
        left.into_iter().zip(right).map(|(left, right)| mixed(left) ^ right).collect()
    });
    whole.ok_or(Error::Columns)
}

impl Ranks {
    /// `from` and `large` as `Persons::words` says them.
    pub fn new(
        person: &DataType,
        (from, large): (u64, Vec<u64>),
        keys: Vec<u64>,
    ) -> Result<Self, Error> {
        usable(person)?;
        let keys = keys.into_iter().map(hash).collect();
        Ok(Self { bits: bits(person), from, large, keys })
    }

    pub fn of(&self, person: u64, key: usize) -> u64 {
        let large =
            person.checked_sub(self.from).and_then(|i| self.large.get(usize::try_from(i).ok()?));
        let first = hash(large.unwrap_or(&person) & self.bits);
        (mixed(first) ^ self.keys[key]) >> 32
    }
}
