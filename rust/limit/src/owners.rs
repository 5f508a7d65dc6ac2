//! Persons who are found through references: rows name something, and of that it is known whose it is.
//!
//! What must hold: a row becomes one row for each different person to whom its reference leads, as in a join with the different pairs of
//! reference and person; none if it is NULL or leads to nobody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arrow_array::{
    Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchReader, UInt64Array, new_empty_array,
};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use arrow_select::filter::filter_record_batch;

use crate::intake::{Batches, whose};
use crate::numbering::{Numbering, UNKNOWN, integers, of_integers};
use crate::persons::Persons;
use crate::{Error, SLICE, in_threads, lock};

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
    codes: Option<Numbering>, // None: references are whole numbers that are not large, and their own numbers
    first: Vec<u32>, // one more than the owner of each, and 0 where there is none: such memory costs nothing before it is used
    more: HashMap<usize, Vec<u32>>, // the other owners of those that have several
    persons: Persons,
    kind: DataType, // of persons
}

impl Owners {
    /// From references, which are whole numbers, and persons; or, with `through`, what refers to these in turn. A pair may stand
    /// there several times, and where one side is NULL there is none.
    ///
    /// # Errors
    /// If references are no whole numbers, or if they cannot be read.
    pub fn new(pairs: impl RecordBatchReader + Send, through: Option<Self>) -> Result<Self, Error> {
        let schema = pairs.schema();
        let [key, owner] = schema.fields().as_ref() else { return Err(Error::Columns) };
        integers(&new_empty_array(key.data_type())).ok_or(Error::Type)?;
        let batches = Batches::new(pairs);
        let whose = whose(through, batches.some.column(1));
        whose.each(&new_empty_array(owner.data_type()), |_, _| Ok(()))?; // no row decides whether it can be
        let found = in_threads(batches.threads, || {
            let mut found = Vec::new();
            batches.each(2, |slice| {
                let references = integers(slice.column(0)).ok_or(Error::Type)?;
                found.push((references, slice.column(1).clone()));
                Ok(())
            })?;
            Ok(found)
        })?;
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        let count: usize = found.iter().map(|one| one.0.len()).sum();
        let last = found.iter().flat_map(|one| &one.0).copied().max().unwrap_or(0);
        let dense = last < (DENSE * count + (1 << 20)).min(UNKNOWN as usize) as u64;
        let codes = (!dense).then(Numbering::default);
        if let Some(codes) = &codes {
            for (words, _) in &mut found {
                let column: ArrayRef = Arc::new(UInt64Array::from(std::mem::take(words)));
                let numbers = codes.of(&[column], 0)?;
                *words = numbers.into_iter().map(u64::from).collect();
            }
        }
        let size = match &codes {
            Some(codes) => codes.count(),
            None => usize::try_from(last).map_err(|_| Error::Size)? + 1,
        };
        let mut first = vec![0; size];
        let each = first.len().div_ceil(batches.threads).max(1);
        let left = Mutex::new(first.chunks_mut(each).enumerate());
        let more = in_threads(batches.threads, || {
            let next = lock(&left).next();
            next.map(|(i, first)| enter(first, i * each, &found, &whose)).transpose()
        })?;
        let (persons, kind) = match whose {
            Whose::Own(persons) => (persons, owner.data_type().clone()),
            Whose::Through(Self { persons, kind, .. }) => (persons, kind),
        };
        let more = more.into_iter().flatten().flatten().collect();
        Ok(Self { codes, first, more, persons, kind })
    }

    pub fn kind(&self) -> &DataType {
        &self.kind
    }

    fn each(
        &self,
        references: &ArrayRef,
        mut take: impl FnMut(Vec<u32>, Option<&[usize]>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let owner = |number: u32| {
            self.first.get(number as usize).copied().unwrap_or(0).wrapping_sub(1) // which is NOBODY
        };
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

/// Enters the owners of what has numbers from `start` on, and gives those that are not the first. As they are found: if several rows
/// refer to what has several owners, these are far more pairs than differ.
fn enter(
    first: &mut [u32],
    start: usize,
    pairs: &[(Vec<u64>, ArrayRef)],
    whose: &Whose,
) -> Result<HashMap<usize, Vec<u32>>, Error> {
    let (mut more, from) = (HashMap::<usize, Vec<u32>>::new(), start as u64);
    let range = from..from + first.len() as u64;
    for (words, owners) in pairs {
        if !words.iter().any(|word| range.contains(word)) {
            continue;
        }
        whose.each(owners, |persons, rows| {
            for (i, person) in persons.into_iter().enumerate() {
                let word = words[rows.map_or(i, |rows| rows[i])];
                if !range.contains(&word) {
                    continue;
                }
                let place = usize::try_from(word - from).map_err(|_| Error::Size)?;
                if first[place] == 0 {
                    first[place] = person + 1;
                } else if first[place] != person + 1 {
                    let others = more.entry(start + place).or_default();
                    if others.len() == others.capacity() {
                        others.sort_unstable(); // the same pair may come again and again
                        others.dedup();
                        others.reserve(others.len() + 1);
                    }
                    others.push(person);
                }
            }
            Ok(())
        })?;
    }
    for others in more.values_mut() {
        others.sort_unstable();
        others.dedup();
    }
    Ok(more)
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
