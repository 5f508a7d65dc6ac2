//! Persons who are found through references: rows name something, and of that it is known whose it is.

use std::collections::HashMap;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use arrow_select::filter::filter_record_batch;

use crate::codes::{Codes, UNKNOWN, integers, of_integers};
use crate::persons::Persons;
use crate::{Error, SLICE};

const NOBODY: u32 = u32::MAX;
/// Up to so many times as many numbers as there are references have a place in a list.
const DENSE: usize = 5;

/// Whose the rows are.
pub enum Whose {
    /// They say it themselves.
    Own(Persons),
    Through(Owners),
}

impl Whose {
    /// Calls `take` with the persons of rows, from the column that says it; and with which rows these are, if not all in their order:
    /// a row that reaches nobody is left out, and one that reaches several persons is a row of each. Few at a time, however many
    /// that are.
    pub fn each(
        &self,
        column: &ArrayRef,
        mut take: impl FnMut(Vec<u32>, Option<&[usize]>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self {
            Self::Own(persons) => take(persons.of(column)?, None),
            Self::Through(owners) => owners.each(column, take),
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
    kind: DataType, // of persons
}

impl Owners {
    /// From references, which are whole numbers, and persons; or, with `through`, what refers to these in turn. A pair may stand
    /// there several times, and where one side is NULL there is none.
    ///
    /// # Errors
    /// If references are no whole numbers.
    pub fn new(pairs: Vec<RecordBatch>, through: Option<Self>) -> Result<Self, Error> {
        let pairs =
            pairs.into_iter().map(|batch| known(batch, 2)).collect::<Result<Vec<_>, _>>()?;
        let words = pairs.iter().map(|batch| integers(batch.column(0)).ok_or(Error::Type));
        let words = words.collect::<Result<Vec<_>, _>>()?;
        let count: usize = words.iter().map(Vec::len).sum();
        let last = words.iter().flatten().copied().max().unwrap_or(0);
        let last = usize::try_from(last).ok().filter(|last| *last < DENSE * count + (1 << 20));
        let last = last.filter(|last| *last < UNKNOWN as usize);
        let some = pairs.iter().max_by_key(|batch| batch.num_rows()).ok_or(Error::Columns)?;
        let mut made = Self {
            codes: last.is_none().then(Codes::default),
            first: vec![NOBODY; last.map_or(count, |last| last + 1)],
            more: HashMap::new(),
            persons: Persons::like(some.column(1)),
            kind: some.column(1).data_type().clone(),
        };
        for (batch, words) in pairs.iter().zip(words) {
            let numbers = match &made.codes {
                Some(codes) => codes.of(&batch.columns()[..1], batch.num_rows())?,
                None => words.into_iter().map(near).collect(),
            };
            let Some(through) = &through else {
                let persons = made.persons.of(batch.column(1))?;
                for (number, person) in numbers.into_iter().zip(persons) {
                    made.enter(number, person);
                }
                continue;
            };
            through.each(batch.column(1), |persons, rows| {
                for (i, person) in persons.into_iter().enumerate() {
                    made.enter(numbers[rows.map_or(i, |rows| rows[i])], person);
                }
                Ok(())
            })?;
        }
        for others in made.more.values_mut() {
            others.sort_unstable();
            others.dedup();
        }
        if let Some(Self { persons, kind, .. }) = through {
            (made.persons, made.kind) = (persons, kind);
        }
        Ok(made)
    }

    pub fn kind(&self) -> &DataType {
        &self.kind
    }

    fn enter(&mut self, number: u32, person: u32) {
        let first = &mut self.first[number as usize];
        if *first == NOBODY {
            *first = person;
        } else if *first != person {
            let others = self.more.entry(number as usize).or_default();
            if others.len() == others.capacity() {
                others.sort_unstable(); // the same pair may come again and again
                others.dedup();
                others.reserve(others.len() + 1);
            }
            others.push(person);
        }
    }

    fn each(
        &self,
        references: &ArrayRef,
        mut take: impl FnMut(Vec<u32>, Option<&[usize]>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let owner = |number: u32| self.first.get(number as usize).copied().unwrap_or(NOBODY);
        let numbers = || match &self.codes {
            Some(codes) => codes.known(std::slice::from_ref(references), references.len()),
            None => of_integers(references, near).ok_or(Error::Type),
        };
        let found = match &self.codes {
            Some(_) => numbers()?.into_iter().map(owner).collect(),
            None => of_integers(references, |word| owner(near(word))).ok_or(Error::Type)?,
        };
        if self.more.is_empty() && found.iter().copied().max() != Some(NOBODY) {
            return take(found, None);
        }
        let (mut persons, mut rows) = (Vec::new(), Vec::new());
        for (row, (person, number)) in found.into_iter().zip(numbers()?).enumerate() {
            let others = self.more.get(&(number as usize)).into_iter().flatten();
            let all = std::iter::once(person).filter(|person| *person != NOBODY);
            for person in all.chain(others.copied()) {
                persons.push(person);
                rows.push(row);
                if rows.len() == SLICE {
                    take(std::mem::take(&mut persons), Some(&rows))?;
                    rows.clear();
                }
            }
        }
        take(persons, Some(&rows))
    }
}

/// The rows that have no NULL in their first columns: those that are someone's.
pub fn known(rows: RecordBatch, columns: usize) -> Result<RecordBatch, Error> {
    let nulls = rows.columns()[..columns].iter().map(|column| column.nulls());
    let nulls = nulls.fold(None, |all, one| NullBuffer::union(all.as_ref(), one));
    match nulls.filter(|nulls| nulls.null_count() > 0) {
        None => Ok(rows),
        Some(nulls) => {
            let there = BooleanArray::new(nulls.into_inner(), None);
            filter_record_batch(&rows, &there).map_err(|_| Error::Type)
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // the large ones are nobody's
fn near(word: u64) -> u32 {
    if word < UNKNOWN.into() { word as u32 } else { UNKNOWN }
}
