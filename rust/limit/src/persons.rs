//! Numbers for persons.
//!
//! What must hold: two persons have the same number only if they are the same. Numbers are own ones below `DIRECT`, or counted from there
//! (from 0 if no person has an own one).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, UInt64Array};
use arrow_schema::DataType;

use crate::Error;
use crate::numbering::{Numbering, integers};

/// Whole numbers from here on are not a person's own number.
pub const DIRECT: u32 = 1 << 31;

/// Whole numbers that are not large are their own, and all others get those above; if most are large, or are no
/// whole numbers, all get one.
pub struct Persons {
    codes: Numbering,
    own: bool,
}

impl Persons {
    /// As is best for persons who are like these.
    pub fn like(some: &ArrayRef) -> Self {
        let large = |words: &Vec<u64>| words.iter().filter(|x| **x >= DIRECT.into()).count();
        let own = integers(some).is_some_and(|words| 2 * large(&words) <= words.len());
        Self { codes: Numbering::default(), own }
    }

    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)] // the large ones are looked at again
    pub fn of(&self, column: &ArrayRef) -> Result<Vec<u32>, Error> {
        if !self.own {
            return self.codes.of(std::slice::from_ref(column), column.len());
        }
        let near = |x: u64| if x < DIRECT.into() { x as u32 } else { u32::MAX };
        let mut found: Vec<u32> = match column.data_type() {
            DataType::Int32 => {
                column.as_primitive::<Int32Type>().values().iter().map(|x| *x as u32).collect()
            }
            DataType::Int64 => {
                let values = column.as_primitive::<Int64Type>().values();
                values.iter().map(|x| near(*x as u64)).collect()
            }
            _ => integers(column).ok_or(Error::Type)?.into_iter().map(near).collect(),
        };
        if found.iter().fold(0, |all, number| all | number) >= DIRECT {
            let words = integers(column).ok_or(Error::Type)?.into_iter();
            let large = UInt64Array::from_iter_values(words.filter(|x| *x >= DIRECT.into()));
            let mut numbers = self.codes.of(&[Arc::new(large)], 0)?.into_iter();
            for number in found.iter_mut().filter(|number| **number >= DIRECT) {
                let next = numbers.next().expect("there is one for each");
                *number = DIRECT.checked_add(next).ok_or(Error::Size)?;
            }
        }
        Ok(found)
    }

    /// The first number that is not a person's own, and the words of the persons who have those.
    pub fn words(&self) -> (u64, Vec<u64>) {
        (if self.own { DIRECT.into() } else { 0 }, self.codes.words())
    }
}
