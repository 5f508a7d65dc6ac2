//! Numbers for values: equal values have the same one, different ones have different ones.
//!
//! What must hold:
//! * Rows have the same number if and only if the engine takes them for equal in all columns: -0 is 0, every NaN is the same, and NULL
//!   is a value. Values are compared themselves; a hash only says where to look.
//! * Numbers are 0, 1, 2 ... below 2^31, without gaps. `UNKNOWN` is none of them.
//! * Which value has which number depends on the order of rows. So no sum and no limit may depend on it: whoever needs an order of
//!   keys asks `compare`, which looks at their values.

use std::cmp::Ordering;
use std::sync::{PoisonError, RwLock};

use ahash::RandomState;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, UInt32Array};
use arrow_schema::{DataType, TimeUnit};
use arrow_select::concat::concat;
use arrow_select::take::take;
use hashbrown::HashTable;

use crate::Error;

pub const UNKNOWN: u32 = u32::MAX;
const MOST: u32 = 1 << 31;
/// Whole numbers below this are looked up in a list rather than in a hash table.
const SMALL: u64 = 1 << 20;

/// The values of a column, as what they are told apart by.
enum Values<'a> {
    Words(Vec<u64>),
    Bytes(Vec<&'a [u8]>),
}

/// One representation for all values that the engine takes for equal: -0 is 0, and every NaN is the same.
fn bits(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { (value + 0.0).to_bits() }
}

fn words<T: ArrowPrimitiveType, R>(
    column: &ArrayRef,
    word: impl Fn(T::Native) -> u64,
    made: impl Fn(u64) -> R,
) -> Vec<R> {
    column.as_primitive::<T>().values().iter().map(|value| made(word(*value))).collect()
}

/// What is made of whole numbers, dates and truth values as words; None for other types. What stands for NULL is anything.
#[allow(clippy::cast_sign_loss)] // within one column two's complement keeps all values apart
pub fn of_integers<R>(column: &ArrayRef, made: impl Fn(u64) -> R) -> Option<Vec<R>> {
    Some(match column.data_type() {
        DataType::Int8 => words::<Int8Type, _>(column, |x| i64::from(x) as u64, made),
        DataType::Int16 => words::<Int16Type, _>(column, |x| i64::from(x) as u64, made),
        DataType::Int32 => words::<Int32Type, _>(column, |x| i64::from(x) as u64, made),
        DataType::Int64 => words::<Int64Type, _>(column, |x| x as u64, made),
        DataType::UInt8 => words::<UInt8Type, _>(column, u64::from, made),
        DataType::UInt16 => words::<UInt16Type, _>(column, u64::from, made),
        DataType::UInt32 => words::<UInt32Type, _>(column, u64::from, made),
        DataType::UInt64 => words::<UInt64Type, _>(column, |x| x, made),
        DataType::Date32 => words::<Date32Type, _>(column, |x| i64::from(x) as u64, made),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => words::<TimestampSecondType, _>(column, |x| x as u64, made),
            TimeUnit::Millisecond => {
                words::<TimestampMillisecondType, _>(column, |x| x as u64, made)
            }
            TimeUnit::Microsecond => {
                words::<TimestampMicrosecondType, _>(column, |x| x as u64, made)
            }
            TimeUnit::Nanosecond => words::<TimestampNanosecondType, _>(column, |x| x as u64, made),
        },
        DataType::Boolean => column.as_boolean().values().iter().map(|x| made(x.into())).collect(),
        _ => return None,
    })
}

/// Whole numbers, dates and truth values as words; None for other types. What stands for NULL is anything.
pub fn integers(column: &ArrayRef) -> Option<Vec<u64>> {
    of_integers(column, |word| word)
}

/// What is made of texts; None for other types. What stands for NULL is anything.
fn of_texts<R>(column: &ArrayRef, made: impl Fn(&[u8]) -> R) -> Option<Vec<R>> {
    Some(match column.data_type() {
        DataType::Utf8 => {
            let texts = column.as_string::<i32>();
            (0..texts.len()).map(|i| made(texts.value(i).as_bytes())).collect()
        }
        DataType::LargeUtf8 => {
            let texts = column.as_string::<i64>();
            (0..texts.len()).map(|i| made(texts.value(i).as_bytes())).collect()
        }
        DataType::Utf8View => {
            let texts = column.as_string_view();
            (0..texts.len()).map(|i| made(texts.value(i).as_bytes())).collect()
        }
        _ => return None,
    })
}

/// A short text as a word, of which no other text has the same: a small one if it has no more than two bytes.
#[inline]
fn packed(text: &[u8]) -> Option<u64> {
    match *text {
        [] => Some(0),
        [a] => Some(1 + u64::from(a)),
        [a, b] => Some((1 << 9) + u64::from(u16::from_be_bytes([a, b]))),
        _ if text.len() < 8 => {
            let word = text.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            Some((text.len() as u64) << 56 | word)
        }
        _ => None,
    }
}

/// Whether values of this type can have numbers.
pub fn usable(kind: &DataType) -> Result<(), Error> {
    values(&arrow_array::new_empty_array(kind)).map(|_| ())
}

fn values(column: &ArrayRef) -> Result<Values<'_>, Error> {
    if let Some(words) = integers(column) {
        return Ok(Values::Words(words));
    }
    Ok(match column.data_type() {
        DataType::Float64 => Values::Words(words::<Float64Type, _>(column, bits, |word| word)),
        DataType::Decimal128(_, _) => {
            let bytes = column.as_primitive::<Decimal128Type>().values().inner().as_slice();
            Values::Bytes(bytes.chunks_exact(size_of::<i128>()).collect())
        }
        DataType::Utf8 => {
            let texts = column.as_string::<i32>();
            Values::Bytes((0..texts.len()).map(|i| texts.value(i).as_bytes()).collect())
        }
        DataType::LargeUtf8 => {
            let texts = column.as_string::<i64>();
            Values::Bytes((0..texts.len()).map(|i| texts.value(i).as_bytes()).collect())
        }
        DataType::Utf8View => {
            let texts = column.as_string_view();
            Values::Bytes((0..texts.len()).map(|i| texts.value(i).as_bytes()).collect())
        }
        _ => return Err(Error::Type),
    })
}

#[derive(Clone, Copy)]
enum Value<'a> {
    Null,
    Word(u64),
    Bytes(&'a [u8]),
}

impl<'a> Values<'a> {
    fn at(&self, row: usize, column: &ArrayRef) -> Value<'a> {
        match self {
            _ if column.is_null(row) => Value::Null,
            Self::Words(words) => Value::Word(words[row]),
            Self::Bytes(texts) => Value::Bytes(texts[row]),
        }
    }
}

/// The numbers of the values of one column: 0, 1, 2 ... in the order in which they came.
struct Book {
    hasher: RandomState, // seeded anew each time, so that nobody can choose values that collide
    null: u32,
    small: Vec<u32>,
    words: HashTable<(u64, u32)>,
    bytes: HashTable<(u64, u32, u32)>, // the hash of each, its number, and the number of its text
    texts: Vec<u8>,
    ends: Vec<usize>, // where each ends among `texts`
    next: u32,
}

impl Book {
    fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            null: UNKNOWN,
            small: Vec::new(),
            words: HashTable::new(),
            bytes: HashTable::new(),
            texts: Vec::new(),
            ends: Vec::new(),
            next: 0,
        }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // it is small
    fn word(&self, word: u64) -> u32 {
        if word < self.small.len() as u64 { self.small[word as usize] } else { self.large(word) }
    }

    #[cold] // so that what most words need is not a call
    #[inline(never)]
    fn large(&self, word: u64) -> u32 {
        let found = self.words.find(self.hasher.hash_one(word), |entry| entry.0 == word);
        found.map_or(UNKNOWN, |entry| entry.1)
    }

    #[inline]
    fn text(&self, text: &[u8]) -> u32 {
        packed(text).map_or_else(|| self.long(text), |word| self.word(word))
    }

    fn long(&self, text: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(text);
        let same = |entry: &(u64, u32, u32)| {
            let number = entry.2 as usize;
            let start = if number == 0 { 0 } else { self.ends[number - 1] };
            entry.0 == hash && &self.texts[start..self.ends[number]] == text
        };
        self.bytes.find(hash, same).map_or(UNKNOWN, |entry| entry.1)
    }

    fn look_up(&self, column: &ArrayRef, instead: u32) -> Result<Vec<u32>, Error> {
        let found = of_integers(column, |word| self.word(word));
        let mut found = match found.or_else(|| of_texts(column, |text| self.text(text))) {
            Some(found) => found,
            None => match values(column)? {
                Values::Words(words) => words.iter().map(|word| self.word(*word)).collect(),
                Values::Bytes(texts) => texts.iter().map(|text| self.text(text)).collect(),
            },
        };
        if let Some(nulls) = column.nulls() {
            let absent = found.iter_mut().zip(nulls.iter()).filter(|(_, there)| !there);
            absent.for_each(|(number, _)| *number = self.null);
        }
        if instead != UNKNOWN {
            let new = found.iter_mut().filter(|number| **number == UNKNOWN);
            new.for_each(|number| *number = instead);
        }
        Ok(found)
    }

    /// The number of a value, a new one if need be.
    fn number(&mut self, value: Value) -> Result<u32, Error> {
        let value = match value {
            Value::Bytes(text) => packed(text).map_or(value, Value::Word),
            _ => value,
        };
        let known = match value {
            Value::Null => self.null,
            Value::Word(word) => self.word(word),
            Value::Bytes(text) => self.long(text),
        };
        if known != UNKNOWN {
            return Ok(known);
        }
        let number = self.next;
        self.next = Some(number + 1).filter(|next| *next < MOST).ok_or(Error::Size)?;
        let hasher = &self.hasher;
        match value {
            Value::Null => self.null = number,
            Value::Word(word) if word < SMALL => {
                let place = usize::try_from(word).map_err(|_| Error::Size)?;
                if self.small.len() <= place {
                    self.small.resize((place + 1).next_power_of_two(), UNKNOWN);
                }
                self.small[place] = number;
            }
            Value::Word(word) => {
                let hash = hasher.hash_one(word);
                self.words.insert_unique(hash, (word, number), |entry| hasher.hash_one(entry.0));
            }
            Value::Bytes(text) => {
                let hash = hasher.hash_one(text);
                let place = u32::try_from(self.ends.len()).map_err(|_| Error::Size)?;
                self.texts.extend_from_slice(text);
                self.ends.push(self.texts.len());
                self.bytes.insert_unique(hash, (hash, number, place), |entry| entry.0);
            }
        }
        Ok(number)
    }
}

/// Two numbers below 2^31 as one word: a small one if both are small.
fn both(left: u32, right: u32) -> u64 {
    if left | right < 1 << 8 {
        u64::from(left << 8 | right)
    } else {
        1 << 63 | u64::from(left) << 32 | u64::from(right)
    }
}

struct Books {
    columns: Vec<Book>,
    joined: Vec<Book>, // of the numbers of all columns up to one, and of the next
    first: Vec<Vec<ArrayRef>>, // the rows in which new ones came
}

impl Books {
    fn count(&self) -> u32 {
        self.joined.last().or(self.columns.last()).map_or(1, |book| book.next)
    }

    /// The numbers of rows, `UNKNOWN` for new ones; new values of one column have the number that `instead` says.
    fn look_up(
        &self,
        columns: &[ArrayRef],
        instead: impl Fn(&Book) -> u32,
    ) -> Result<Vec<u32>, Error> {
        let mut all = self
            .columns
            .iter()
            .zip(columns)
            .map(|(book, column)| book.look_up(column, instead(book)));
        let mut found = all.next().transpose()?.unwrap_or_default();
        for (book, next) in self.joined.iter().zip(all) {
            for (number, right) in found.iter_mut().zip(next?) {
                let known = *number != UNKNOWN && right != UNKNOWN;
                *number = if known { book.word(both(*number, right)) } else { UNKNOWN };
            }
        }
        Ok(found)
    }
}

/// The numbers of rows: the same for rows that are equal in all columns. All threads share it.
pub struct Numbering {
    books: RwLock<Books>,
    kept: bool,
}

impl Default for Numbering {
    /// For one column.
    fn default() -> Self {
        Self::new(1, false)
    }
}

impl Numbering {
    /// With `kept` the rows can be had back.
    pub fn new(columns: usize, kept: bool) -> Self {
        let books = |n: usize| (0..n).map(|_| Book::new()).collect();
        let books = Books {
            columns: books(columns),
            joined: books(columns.saturating_sub(1)),
            first: Vec::new(),
        };
        Self { books: RwLock::new(books), kept }
    }

    pub fn count(&self) -> usize {
        self.books.read().unwrap_or_else(PoisonError::into_inner).count() as usize
    }

    /// The number of each row.
    ///
    /// Most are known: they are looked up by all threads at once, and only new ones are entered by one at a time.
    pub fn of(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<u32>, Error> {
        if columns.is_empty() {
            return Ok(vec![0; rows]);
        }
        let books = self.books.read().map_err(|_| Error::Size)?;
        let mut found = books.look_up(columns, |_| UNKNOWN)?;
        drop(books);
        if found.iter().fold(0, |all, number| all | number) < MOST {
            return Ok(found); // numbers are below that, and `UNKNOWN` is not
        }
        let mut missing = found.iter_mut().enumerate().filter(|(_, number)| **number == UNKNOWN);
        let Some(first) = missing.next() else { return Ok(found) };
        let read = columns.iter().map(values).collect::<Result<Vec<_>, _>>()?;
        let mut books = self.books.write().map_err(|_| Error::Size)?;
        let mut new = Vec::new();
        for (row, place) in std::iter::once(first).chain(missing) {
            let count = books.count();
            let mut number = books.columns[0].number(read[0].at(row, &columns[0]))?;
            for i in 1..columns.len() {
                let right = books.columns[i].number(read[i].at(row, &columns[i]))?;
                number = books.joined[i - 1].number(Value::Word(both(number, right)))?;
            }
            *place = number;
            if number == count {
                new.push(u32::try_from(row).map_err(|_| Error::Size)?);
            }
        }
        if self.kept && !new.is_empty() {
            let rows = UInt32Array::from(new);
            let taken = columns.iter().map(|column| take(column, &rows, None));
            let taken = taken.collect::<Result<Vec<_>, _>>().map_err(|_| Error::Type)?;
            books.first.push(taken);
        }
        drop(books);
        Ok(found)
    }

    /// The number of each row among those that are there, or `UNKNOWN`. A value that is not there counts as NULL.
    pub fn known(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<u32>, Error> {
        if columns.is_empty() {
            return Ok(vec![0; rows]);
        }
        let books = self.books.read().map_err(|_| Error::Size)?;
        books.look_up(columns, |book| book.null)
    }

    /// The words of the only column, in the order of their numbers, if it has only words.
    pub fn words(&self) -> Vec<u64> {
        let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
        let book = &books.columns[0];
        let mut found = vec![0; book.next as usize];
        for (word, number) in (0..).zip(&book.small).filter(|(_, number)| **number != UNKNOWN) {
            found[*number as usize] = word;
        }
        for (word, number) in &book.words {
            found[*number as usize] = *word;
        }
        found
    }

    /// The columns of the rows in the order of their numbers.
    pub fn rows(&self) -> Result<Vec<ArrayRef>, Error> {
        let books = self.books.read().map_err(|_| Error::Size)?;
        (0..if books.first.is_empty() { 0 } else { books.columns.len() })
            .map(|i| {
                let parts: Vec<_> = books.first.iter().map(|part| &*part[i]).collect();
                concat(&parts).map_err(|_| Error::Type)
            })
            .collect()
    }
}

/// The engine's order of two rows, with NULL last.
pub fn compare(columns: &[ArrayRef], left: usize, right: usize) -> Ordering {
    let order = columns.iter().map(|column| match (column.is_null(left), column.is_null(right)) {
        (false, false) => compare_values(column, left, right),
        (left, right) => left.cmp(&right),
    });
    order.fold(Ordering::Equal, Ordering::then)
}

fn compare_values(column: &ArrayRef, left: usize, right: usize) -> Ordering {
    match column.data_type() {
        DataType::UInt64 => {
            let values = column.as_primitive::<UInt64Type>().values();
            values[left].cmp(&values[right])
        }
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>().values();
            let [left, right] = [left, right].map(|row| f64::from_bits(bits(values[row])));
            left.total_cmp(&right) // the one NaN is positive, hence above infinity
        }
        DataType::Decimal128(_, _) => {
            let values = column.as_primitive::<Decimal128Type>().values();
            values[left].cmp(&values[right])
        }
        _ => match (values(&column.slice(left, 1)), values(&column.slice(right, 1))) {
            #[allow(clippy::cast_possible_wrap)] // as it was before
            (Ok(Values::Words(left)), Ok(Values::Words(right))) => {
                (left[0] as i64).cmp(&(right[0] as i64))
            }
            (Ok(Values::Bytes(left)), Ok(Values::Bytes(right))) => left[0].cmp(right[0]),
            _ => unreachable!("they have numbers, so their type is known"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, StringArray};

    use super::{Numbering, packed};

    #[test]
    fn short_texts_are_words_of_their_own() {
        let bytes = [0, 1, 2, 9, 65, 127, 128, 254, 255];
        let mut texts: Vec<Vec<u8>> = vec![Vec::new()];
        for from in 0..texts.len() + 90 {
            for byte in bytes {
                let mut longer = texts[from].clone();
                longer.push(byte);
                texts.push(longer);
            }
        }
        texts.extend((3..8).flat_map(|n| bytes.map(|byte| vec![byte; n])));
        let texts: HashSet<_> = texts.into_iter().collect();
        let words: HashSet<_> = texts.iter().map(|text| packed(text)).collect();
        assert_eq!(words.len(), texts.len());
        assert!(packed(&[255; 2]) < Some(super::SMALL) && packed(&[0; 8]).is_none());
    }

    #[test]
    fn texts_of_all_lengths_have_numbers() {
        let texts: Vec<String> = (0..40).map(|n| "ab".repeat(n)).collect();
        let column: ArrayRef = Arc::new(StringArray::from(texts));
        let codes = Numbering::new(1, true);
        let first = codes.of(std::slice::from_ref(&column), 40).unwrap_or_default();
        assert_eq!(first, (0..40).collect::<Vec<u32>>());
        assert_eq!(codes.known(std::slice::from_ref(&column), 40).unwrap_or_default(), first);
    }
}
