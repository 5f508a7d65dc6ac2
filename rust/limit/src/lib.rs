//! What one person adds to a table of sums is limited, in exact integers.
//!
//! This is what `limit` proves (`dpsql/kernel/limits/limit.py`): the engine streams rows of person, keys and values. Tests hold it
//! against the same in SQL (`tests/sql_form.py`), number for number.
//!
//! 1. Rows whose keys are not among the declared ones are left out; values that are not declared count as NULL there, and rows
//!    of nobody are left out. Persons and keys get numbers (`persons`, `owners`, `numbering`), and what a row adds to each column is
//!    words (`measure`).
//! 2. Whoever has so few rows that no limit can matter is done with: their rows are added to the totals of their keys as they are
//!    (`within_limits`). Who that is, is known beforehand if the persons of all rows came in a stream of their own (`intake::Counted`); then
//!    only their pairs with private keys are noted (`persons_per_key`). Else all rows are kept until it is (`kept_rows`).
//! 3. The others' rows become records of words: person, key and how many rows it stands for, and what these add. They are put
//!    into parts by their person. A part that has grown is merged to one record for each person and key (`records`).
//! 4. Part by part, each person's pairs are limited and added to the totals of their keys (`person`).
//! 5. Values that count once take the same way as private keys do, with the keys before them; what someone keeps of these is added
//!    up, each once (`distinct`).
//!
//! Nothing depends on threads or on the order of rows: all sums are of integers, and ties are broken by the keys' values.
//!
//! Memory: a row that is kept has 4 bytes, 8 more for a hash and 4 or 8 more for each column that is not COUNT(*), or for the two
//! of a SUM or AVG. At most a gigabyte of rows is kept; if there are more, all go through parts. Of rows that were counted
//! beforehand only pairs of a person and a private key are kept, 4 bytes each, and those that stand there again are dropped
//! whenever a key has twice as many as the last time (`persons_per_key`). A record has 8 bytes, and 8 more for each of these words. A part is merged
//! when it has four times as many records as it had pairs the last time (twice from 24 bytes
//! on), or four megabytes. So there are at most 32 bytes for each pair of a person and a key in a count, 64 with a hash or
//! in a sum; one more record for each 255 rows of a pair; and a gigabyte and a quarter are always allowed. Persons and
//! references that are small whole numbers have 4 bytes each, and others some 20; while references are read, 24 more. Of values that count
//! once each different one is kept, as a private key is: about 200 bytes.
//!
//! Sizes: a row adds at most 2^36 to a column, a person has fewer than 2^50 rows, so their sums stay below 2^86, and times
//! the factor and `max_rows` below 2^127, as in SQL. A record has words: two that together would not fit are not merged,
//! and are added as u128 when the person is limited. More than 2^28 keys, and texts of more than 2^31 bytes
//! together, are an error, as memory is that ends.

mod distinct;
mod intake;
mod kept_rows;
mod measure;
mod numbering;
mod owners;
mod person;
mod persons;
mod persons_per_key;
mod rank;
mod records;
mod within_limits;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, Decimal128Array, RecordBatch, RecordBatchReader};
use arrow_schema::{DataType, Field, FieldRef, Schema};
use arrow_select::filter::filter_record_batch;

pub use distinct::{beside, values};
pub use intake::Counted;
use intake::take_in;
use measure::Measures;
use numbering::{Numbering, UNKNOWN};
pub use owners::Owners;
use person::Totals;
use rank::Ranks;
use records::{Inbox, Scratch};

/// Whether this mistake is to be made: never, but in a build whose tests are tested (`make mutants`).
#[cfg(feature = "mutants")]
pub(crate) fn mutant(name: &str) -> bool {
    std::env::var("DPSQL_MUTANT").is_ok_and(|wanted| wanted == name)
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn mutant(_: &str) -> bool {
    false
}

/// Rows that are worked on at a time: what they need stays near the processor.
const SLICE: usize = 1 << 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All rows of a person count, and for less if they are too many.
    Rows,
    /// A person counts once in each group where they have a row.
    Persons,
}

/// A value of a row: a whole number in 0 ..= grid after clipping; of degree 0, a truth value, whether there is one.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub grid: u64,
    pub degree: u32,
}

/// Columns of sums that belong together; see `Summand` in dpsql/kernel/blocks.py.
#[derive(Clone, Debug)]
pub struct Block {
    pub kind: Kind,
    pub axes: Vec<Axis>,
    /// For each column the power of each axis, and what the sum is multiplied with.
    pub columns: Vec<(Vec<u32>, u128)>,
    /// What the part of a row is divided by.
    pub coarse: u128,
    /// What a person counts in a group, and what it is in all if she is in too many, for the norm 2.
    pub weight: u128,
    pub whole: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashed {
    Nothing,
    Keys,
    /// Of person and keys: the upper half.
    Pairs,
}

#[derive(Clone, Debug)]
pub struct Limits {
    /// How many columns of keys there are, whether the groups are those that the rows have, and of what rows have a hash by
    /// which these are ranked.
    pub keys: usize,
    pub private: bool,
    pub hashed: Hashed,
    /// 1 or 2.
    pub norm: u32,
    pub max_rows: u128,
    pub max_groups: usize,
    pub in_groups: u128,
    /// Of private keys: more persons than these are not told apart, and not counted. None if it matters how many there are.
    pub enough: Option<u128>,
    pub blocks: Vec<Block>,
    /// Of the columns of sums; for private keys the number of persons comes first.
    pub names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Stream,
    Columns,
    Type,
    Null,
    Keys,
    Size,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stream => "the rows could not be read",
            Self::Columns => "the rows do not have the columns that the limits are for",
            Self::Type => "a column of the rows has a type that cannot be limited",
            Self::Null => "a person or a sum is NULL",
            Self::Keys => "the declared keys are not as they should be",
            Self::Size => "there are too many persons or keys",
        })
    }
}

impl std::error::Error for Error {}

const INTEGER: DataType = DataType::Decimal128(38, 0);

/// All keys that are shown, in order: they are public, and can be used again.
pub struct Keys {
    codes: Numbering,
    fields: Vec<FieldRef>,
}

impl Keys {
    /// # Errors
    /// If there are no columns, or one of a type that cannot be a key, or a key stands there twice.
    pub fn new(keys: &RecordBatch) -> Result<Self, Error> {
        let codes = Numbering::new(keys.num_columns(), false);
        codes.of(keys.columns(), keys.num_rows())?;
        if keys.num_columns() == 0 || codes.count() != keys.num_rows() {
            return Err(Error::Keys);
        }
        Ok(Self { codes, fields: keys.schema().fields().to_vec() })
    }
}

/// The totals of limited rows: for each declared key in order, or for each key that someone keeps.
///
/// `rows` has a person, `limits.keys` keys, a hash of what is `hashed`, and the axes of all blocks.
/// Rows of nobody are left out. With `owners` there is a reference in the place of the person; and so where the rows were
/// `counted`, of which `rows` has no more.
/// `sums` are added as they are: keys, and what the result has for them. They are of other persons, whom nothing limits.
/// `declared` are all keys that are shown; None if they are private, or if there are none. The result has the private keys and the number
/// of persons, and then the columns of all blocks.
///
/// # Errors
/// If the rows cannot be read or are not so; the texts show no value.
pub fn limit(
    limits: &Limits,
    declared: Option<&Keys>,
    sums: Option<&RecordBatch>,
    owners: Option<Owners>,
    counted: Option<Counted>,
    rows: Option<impl RecordBatchReader + Send>,
) -> Result<RecordBatch, Error> {
    let measures = Measures::new(limits)?;
    match measures.first() + measures.words() {
        1 => run::<1>(limits, declared, sums, owners, counted, rows),
        2 => run::<2>(limits, declared, sums, owners, counted, rows),
        3 => run::<3>(limits, declared, sums, owners, counted, rows),
        4 => run::<4>(limits, declared, sums, owners, counted, rows),
        5..=8 => run::<8>(limits, declared, sums, owners, counted, rows),
        9..=16 => run::<16>(limits, declared, sums, owners, counted, rows),
        17..=40 => run::<40>(limits, declared, sums, owners, counted, rows),
        _ => Err(Error::Columns),
    }
}

fn run<const W: usize>(
    limits: &Limits,
    declared: Option<&Keys>,
    sums: Option<&RecordBatch>,
    owners: Option<Owners>,
    counted: Option<Counted>,
    rows: Option<impl RecordBatchReader + Send>,
) -> Result<RecordBatch, Error> {
    let measures = Measures::new(limits)?;
    let key_fields = fields_of_keys(limits, &measures, declared, sums, rows.as_ref())?;
    let found = Numbering::new(limits.keys, limits.private);
    let keys = declared.map_or(&found, |keys| &keys.codes);
    let shown = if limits.keys > 0 { keys.count() } else { 1 };
    let others = match sums {
        Some(batch) => numbers(limits, keys, &batch.columns()[..limits.keys], batch.num_rows())?,
        None => Vec::new(),
    };
    let owned = owners.as_ref().or(counted.as_ref().and_then(Counted::owners));
    let person = match owned {
        Some(owners) => Some(owners.kind().clone()),
        None => rows.as_ref().map(|rows| rows.schema().field(0).data_type().clone()),
    };
    let inbox = Inbox::<W>::new(keys, measures.first());
    let mut taken = rows
        .map(|rows| take_in(rows, counted, owners, limits, &measures, keys, &inbox))
        .transpose()?;

    let mut columns = keys.rows()?;
    if limits.private && columns.is_empty() {
        let types = key_fields.iter().map(|field| field.data_type());
        columns = types.map(arrow_array::new_empty_array).collect();
    }
    let records: usize = inbox.parts.iter().map(|part| lock(part).records()).sum();
    let count = keys.count();
    // Each thread has totals of its own: only where there are more records than these.
    let threads = cores().min(records / count.max(1)).min(records / SLICE).max(1);
    let ranks = match (person, &mut taken) {
        (Some(person), Some(taken)) if limits.private && limits.hashed != Hashed::Pairs => {
            let keys = match limits.hashed {
                Hashed::Keys => std::mem::take(&mut taken.noted).hashes(),
                _ => rank::of_keys(&columns)?,
            };
            Some(Ranks::new(&person, taken.whose.persons().words(), keys)?)
        }
        _ => None,
    };
    let (last, light) = taken.map_or((0, Vec::new()), |taken| (taken.last, taken.light));
    let left = Mutex::new(inbox.parts.iter().enumerate());
    let totals = in_threads(threads, || {
        let mut totals = Totals::new(limits, &measures, &columns, ranks.as_ref(), count);
        let mut scratch = Scratch::new();
        loop {
            let next = lock(&left).next();
            let Some((i, part)) = next else { return Ok(totals.sums()) };
            let part = std::mem::take(&mut *lock(part)); // its memory is free afterwards
            part.by_person(last, &mut scratch, |records| totals.add(i, records));
        }
    })?;
    let mut found = totals.into_iter().reduce(|mut sums, more| {
        sums.iter_mut().zip(more).for_each(|(sum, one)| *sum += one);
        sums
    });
    let found = found.get_or_insert_default();
    for (sum, more) in found.iter_mut().zip(light) {
        *sum += i128::try_from(more).map_err(|_| Error::Size)?;
    }
    if let Some(batch) = sums {
        add(found, limits, &others, &batch.columns()[limits.keys..])?;
    }
    if let (true, Some(enough)) = (limits.private, limits.enough) {
        let enough = i128::try_from(enough).map_err(|_| Error::Size)?;
        let persons = found.iter_mut().step_by(person::width(limits));
        persons.for_each(|persons| *persons = enough.min(*persons));
    }
    let shown = if limits.private { count } else { shown };
    let batch = table(limits, &columns, &key_fields, shown, found)?;
    if !limits.private {
        return Ok(batch);
    }
    // A key that nobody has kept is none.
    let kept = (0..count).map(|key| Some(found[key * person::width(limits)] > 0)).collect();
    filter_record_batch(&batch, &kept).map_err(|_| Error::Type)
}

/// The fields of keys; checked from types alone, so that no row decides whether they can be limited.
fn fields_of_keys(
    limits: &Limits,
    measures: &Measures,
    declared: Option<&Keys>,
    sums: Option<&RecordBatch>,
    rows: Option<&(impl RecordBatchReader + Send)>,
) -> Result<Vec<FieldRef>, Error> {
    let width = person::width(limits);
    if (limits.private || limits.keys == 0) == declared.is_some() || limits.names.len() != width {
        return Err(Error::Columns);
    }
    let mut found: Vec<Vec<FieldRef>> = Vec::new();
    if let Some(rows) = rows {
        let schema = rows.schema();
        let (keys, rest) = (1..=limits.keys, 1 + limits.keys);
        let hashes = usize::from(limits.hashed != Hashed::Nothing);
        if schema.fields().len() != rest + hashes + measures.axes() {
            return Err(Error::Columns);
        }
        numbering::usable(schema.field(0).data_type())?;
        let (ranked, rest) = match limits.hashed {
            Hashed::Nothing if limits.private => (rest, rest),
            Hashed::Keys if *schema.field(rest).data_type() == DataType::UInt64 => (1, rest + 1),
            Hashed::Keys => return Err(Error::Type),
            _ => (0, rest),
        };
        schema.fields()[..ranked].iter().try_for_each(|field| rank::usable(field.data_type()))?;
        measures.usable(&schema.fields()[rest..])?;
        found.push(schema.fields()[keys].to_vec());
    }
    if let Some(sums) = sums {
        let schema = sums.schema();
        if schema.fields().len() != limits.keys + width {
            return Err(Error::Columns);
        }
        let (keys, cells) = schema.fields().split_at(limits.keys);
        if cells.iter().any(|cell| *cell.data_type() != INTEGER) {
            return Err(Error::Type);
        }
        found.push(keys.to_vec());
    }
    found.extend(declared.map(|keys| keys.fields.clone()));
    let first = found.first().cloned().ok_or(Error::Columns)?;
    let types = |fields: &[FieldRef]| -> Vec<_> {
        fields.iter().map(|field| field.data_type().clone()).collect()
    };
    if found.iter().any(|fields| types(fields) != types(&first)) {
        return Err(Error::Keys);
    }
    first.iter().try_for_each(|field| numbering::usable(field.data_type()))?;
    Ok(first)
}

/// The numbers of keys: private ones that are new get one, and others that are not declared have none.
fn numbers(
    limits: &Limits,
    keys: &Numbering,
    columns: &[ArrayRef],
    rows: usize,
) -> Result<Vec<u32>, Error> {
    if limits.private { keys.of(columns, rows) } else { keys.known(columns, rows) }
}

/// Adds sums of keys that have these numbers.
fn add(
    found: &mut [i128],
    limits: &Limits,
    numbers: &[u32],
    cells: &[ArrayRef],
) -> Result<(), Error> {
    for (column, cells) in cells.iter().enumerate() {
        if cells.null_count() != 0 {
            return Err(Error::Null);
        }
        let cells = cells.as_primitive::<Decimal128Type>().values();
        for (number, cell) in numbers.iter().zip(cells).filter(|(number, _)| **number != UNKNOWN) {
            let sum = &mut found[*number as usize * limits.names.len() + column];
            *sum = sum.checked_add(*cell).ok_or(Error::Size)?;
        }
    }
    Ok(())
}

/// Sums of the keys with numbers below `rows`, under the names of columns; with the keys before them if they are private.
fn table(
    limits: &Limits,
    keys: &[ArrayRef],
    key_fields: &[FieldRef],
    rows: usize,
    sums: &[i128],
) -> Result<RecordBatch, Error> {
    let width = limits.names.len();
    let mut fields = Vec::new();
    let mut columns = Vec::new();
    if limits.private {
        fields.extend_from_slice(key_fields);
        columns.extend_from_slice(keys);
    }
    for (column, name) in limits.names.iter().enumerate() {
        fields.push(Arc::new(Field::new(name, INTEGER, false)));
        columns.push(integers((0..rows).map(|row| sums[row * width + column])));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|_| Error::Type)
}

fn integers(cells: impl Iterator<Item = i128>) -> ArrayRef {
    Arc::new(Decimal128Array::from_iter_values(cells).with_data_type(INTEGER))
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_threads<R: Send>(
    threads: usize,
    work: impl Fn() -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&work)).collect();
        let own = work();
        let others = others.into_iter().map(|one| one.join().expect("a thread panicked"));
        std::iter::once(own).chain(others.collect::<Vec<_>>()).collect()
    })
}
