//! In which order a person keeps her groups: by the upper half of the engine's hash of person and keys.
//!
//! For whole numbers, dates and truth values it is computed here, and only where it is asked for. That it is the engine's own
//! matters to the tests that compare this form with SQL, and not for privacy: any order will do.

use arrow_array::{Array, ArrayRef, new_empty_array};
use arrow_schema::DataType;

use crate::Error;
use crate::codes::integers;

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
    from: u64,           // persons with numbers below this are these numbers themselves
    large: Vec<u64>,     // the others
    keys: Vec<Vec<u64>>, // hashes
}

impl Ranks {
    /// `from` and `large` as `Persons::words` says them.
    pub fn new(
        person: &DataType,
        (from, large): (u64, Vec<u64>),
        keys: &[ArrayRef],
    ) -> Result<Self, Error> {
        usable(person)?;
        let hashes = |column: &ArrayRef| {
            let (words, bits) = (integers(column)?, bits(column.data_type()));
            let words = words.into_iter().enumerate();
            Some(
                words.map(|(i, x)| if column.is_null(i) { NULL } else { hash(x & bits) }).collect(),
            )
        };
        let keys = keys.iter().map(hashes).collect::<Option<_>>().ok_or(Error::Type)?;
        Ok(Self { bits: bits(person), from, large, keys })
    }

    pub fn of(&self, person: u64, key: usize) -> u64 {
        let large =
            person.checked_sub(self.from).and_then(|i| self.large.get(usize::try_from(i).ok()?));
        let first = hash(large.unwrap_or(&person) & self.bits);
        self.keys.iter().fold(first, |hash, keys| mixed(hash) ^ keys[key]) >> 32
    }
}
