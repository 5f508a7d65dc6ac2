//! Persons who are found through references: rows name something, and of that it is known whose it is.

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;

use crate::Error;
use crate::codes::{Codes, UNKNOWN, integers};
use crate::persons::Persons;

const NOBODY: u32 = u32::MAX;

/// Whose the rows are.
pub enum Whose {
    /// They say it themselves.
    Own(Persons),
    Through(Owners),
}

impl Whose {
    /// The persons of rows from the column that says it; and which rows these are, if not all in their order: a row that
    /// reaches nobody is left out, and one that reaches several persons is a row of each.
    pub fn of(&self, column: &ArrayRef) -> Result<(Vec<u32>, Option<Vec<usize>>), Error> {
        match self {
            Self::Own(persons) => Ok((persons.of(column)?, None)),
            Self::Through(owners) => owners.of(column),
        }
    }

    pub fn persons(&self) -> &Persons {
        match self {
            Self::Own(persons) => persons,
            Self::Through(owners) => &owners.persons,
        }
    }
}

/// Who owns what is referred to.
pub struct Owners {
    codes: Option<Codes>, // None: references are whole numbers that are not large, and their own numbers
    first: Vec<u32>,      // the owner of each
    more: HashMap<usize, Vec<u32>>, // the other owners of those that have several
    persons: Persons,
}

impl Owners {
    /// From references, which are whole numbers, and persons.
    pub fn new(pairs: &[RecordBatch]) -> Result<Self, Error> {
        let words = pairs.iter().map(|batch| integers(batch.column(0)).ok_or(Error::Type));
        let words = words.collect::<Result<Vec<_>, _>>()?;
        let (count, last) =
            words.iter().flatten().fold((0, 0), |(n, last), word| (n + 1, last.max(*word)));
        let codes = (last > 16 * count + (1 << 20)).then(Codes::default);
        let some = pairs.iter().max_by_key(|batch| batch.num_rows()).ok_or(Error::Columns)?;
        let persons = Persons::like(some.column(1));
        let mut owners = Self { codes, first: Vec::new(), more: HashMap::new(), persons };
        for (batch, words) in pairs.iter().zip(words) {
            let numbers = match &owners.codes {
                Some(codes) => codes.of(&batch.columns()[..1], batch.num_rows())?,
                None => words.into_iter().map(near).collect(),
            };
            let persons = owners.persons.of(batch.column(1))?;
            let known = batch.columns().iter().all(|column| column.null_count() == 0);
            for (row, (number, person)) in numbers.into_iter().zip(persons).enumerate() {
                if known || batch.columns().iter().all(|column| column.is_valid(row)) {
                    owners.enter(number as usize, person);
                }
            }
        }
        Ok(owners)
    }

    fn enter(&mut self, number: usize, person: u32) {
        if number >= self.first.len() {
            self.first.resize((number + 1).next_power_of_two(), NOBODY);
        }
        if self.first[number] == NOBODY {
            self.first[number] = person;
        } else {
            self.more.entry(number).or_default().push(person);
        }
    }

    fn of(&self, references: &ArrayRef) -> Result<(Vec<u32>, Option<Vec<usize>>), Error> {
        let numbers: Vec<u32> = match (&self.codes, references.data_type()) {
            (Some(codes), _) => codes.known(std::slice::from_ref(references), references.len())?,
            #[allow(clippy::cast_sign_loss)] // negative ones are large then
            (None, DataType::Int64) => {
                let values = references.as_primitive::<Int64Type>().values();
                values.iter().map(|x| near(*x as u64)).collect()
            }
            _ => integers(references).ok_or(Error::Type)?.into_iter().map(near).collect(),
        };
        let owner = |number: &u32| self.first.get(*number as usize).copied().unwrap_or(NOBODY);
        let found: Vec<u32> = numbers.iter().map(owner).collect();
        if self.more.is_empty() && found.iter().copied().max() != Some(NOBODY) {
            return Ok((found, None));
        }
        let there = found.into_iter().zip(numbers).enumerate().filter(|(_, (p, _))| *p != NOBODY);
        let each = there.flat_map(|(row, (person, number))| {
            let others = self.more.get(&(number as usize)).into_iter().flatten();
            std::iter::once(person).chain(others.copied()).map(move |person| (person, row))
        });
        let (persons, rows) = each.unzip();
        Ok((persons, Some(rows)))
    }
}

#[allow(clippy::cast_possible_truncation)] // the large ones are nobody's
fn near(word: u64) -> u32 {
    if word < UNKNOWN.into() { word as u32 } else { UNKNOWN }
}
