//! What rows add to each column, in words.
//!
//! What must hold:
//! * Each value is clipped into 0 ..= grid, whatever it is. NULL and NaN are missing, and such a row adds nothing to the block.
//! * A row adds at most 2^36 to a column (`Measures::new` refuses other blocks), and at most what `Summand` in dpsql/kernel/blocks.py says
//!   of its norm.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal128Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, new_empty_array};
use arrow_schema::{DataType, FieldRef};

use crate::{Axis, Block, Error, Hashed, Limits};

/// Of a value that is not there; larger than any grid.
const MISSING: u64 = u64::MAX;
/// Grids up to here are doubles too.
const FINEST: u64 = 1 << 53;

/// Where the sum of a column is found in a record.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// It is the number of rows.
    Rows,
    /// The word with this number, counted from the first that is a measure.
    Word(usize),
    /// A word of two parts: the sum of values, in its lower bits, and how many there are.
    Above(usize),
    /// The same, and of each value what is missing to the end of the grid.
    Below(usize, u64),
}

/// A row adds at most two to the power of this to a column.
const MOST: u32 = 36;
/// How many lower bits hold the sum: a record has at most 255 rows.
const SUM: u32 = 48;

/// A value as a word of two parts.
pub fn packed_value(value: u64) -> u64 {
    1 << SUM | value
}

/// The sum and the number of values in a word of two parts.
pub fn unpacked(word: u64) -> (u64, u64) {
    (word & ((1 << SUM) - 1), word >> SUM)
}

/// A word as it is kept.
pub trait Kept: Copy + Default + Send + Sync {
    fn of(word: u64) -> Self;
    fn word(self) -> u64;
    /// Its two parts, if it has two.
    fn parts(self) -> (u64, u64);
}

impl Kept for u64 {
    fn of(word: u64) -> Self {
        word
    }
    fn word(self) -> u64 {
        self
    }
    fn parts(self) -> (u64, u64) {
        unpacked(self)
    }
}

/// Of a word of two parts: one more than the value if it is below 2^32 - 1, or zero if there is none.
impl Kept for u32 {
    #[allow(clippy::cast_possible_truncation)] // the grid is not larger
    fn of(word: u64) -> Self {
        if word == 0 { 0 } else { word as u32 + 1 }
    }
    fn word(self) -> u64 {
        if self == 0 { 0 } else { packed_value(u64::from(self - 1)) }
    }
    fn parts(self) -> (u64, u64) {
        (u64::from(self.saturating_sub(1)), u64::from(self > 0))
    }
}

/// What is missing of so many values to the end of the grid.
pub fn below((sum, values): (u64, u64), grid: u64) -> u64 {
    values * grid - sum
}

/// Whether a block has two columns, t and 1 - t, that one word can hold.
fn packed(block: &Block) -> Option<u64> {
    match (&block.axes[..], &block.columns[..]) {
        ([Axis { grid, degree: 1 }], [(above, _), (below, _)])
            if block.coarse == 1 && *above == [1] && *below == [0] =>
        {
            Some(*grid)
        }
        _ => None,
    }
}

pub struct Measures<'a> {
    limits: &'a Limits,
    words: usize,
}

impl<'a> Measures<'a> {
    pub fn new(limits: &'a Limits) -> Result<Self, Error> {
        let mut words = 0;
        for block in limits.blocks.iter().filter(|block| !block.axes.is_empty()) {
            let whole = block.axes.iter().try_fold(1_u128, |whole, axis| {
                whole.checked_mul(u128::from(axis.grid).checked_pow(axis.degree)?)
            });
            if block.coarse == 0
                || block.axes.iter().any(|axis| axis.degree > 0 && axis.grid == 0)
                || whole.is_none_or(|whole| whole.div_ceil(block.coarse) > 1 << MOST)
            {
                return Err(Error::Columns); // sums that words hold would not be of so many rows
            }
            words += packed(block).map_or(block.columns.len(), |_| 1);
        }
        Ok(Self { limits, words })
    }

    /// How many words a record has for them.
    pub fn words(&self) -> usize {
        self.words
    }

    /// How many words a row has, with a hash if there is one.
    pub fn kept(&self) -> usize {
        self.first() - 1 + self.words
    }

    /// Whether all of these are values that fit into half a word.
    pub fn narrow(&self) -> bool {
        let half = |block: &Block| packed(block).is_some_and(|grid| grid < u64::from(u32::MAX));
        self.first() == 1
            && self.limits.blocks.iter().all(|block| block.axes.is_empty() || half(block))
    }

    /// Where they begin in a record: after the head, and a hash if rows have one.
    pub fn first(&self) -> usize {
        1 + usize::from(self.limits.hashed == Hashed::Pairs)
    }

    pub fn axes(&self) -> usize {
        self.limits.blocks.iter().map(|block| block.axes.len()).sum()
    }

    pub fn sources(&self) -> Vec<Source> {
        let mut next = 0..;
        let mut word = || next.next().expect("endless");
        let mut found = Vec::new();
        for block in &self.limits.blocks {
            if block.axes.is_empty() {
                found.extend(block.columns.iter().map(|_| Source::Rows));
            } else if let Some(grid) = packed(block) {
                let word = word();
                found.extend([Source::Above(word), Source::Below(word, grid)]);
            } else {
                found.extend(block.columns.iter().map(|_| Source::Word(word())));
            }
        }
        found
    }

    /// Whether columns of these types are a hash, if there is one, and axes.
    pub fn usable(&self, fields: &[FieldRef]) -> Result<(), Error> {
        let empty = fields.iter().map(|field| new_empty_array(field.data_type()));
        self.of(&empty.collect::<Vec<_>>()).map(|_| ())
    }

    /// From the columns of a hash, if there is one, and of axes: for each word its column.
    pub fn of(&self, columns: &[ArrayRef]) -> Result<Vec<Vec<u64>>, Error> {
        let mut columns = columns.iter();
        let mut words = Vec::with_capacity(self.words + 1);
        if self.limits.hashed == Hashed::Pairs {
            let hash = columns.next().ok_or(Error::Columns)?;
            if *hash.data_type() != DataType::UInt32 || hash.null_count() != 0 {
                return Err(Error::Type);
            }
            let hash = hash.as_primitive::<UInt32Type>().values();
            words.push(hash.iter().map(|hash| u64::from(*hash)).collect());
        }
        for block in self.limits.blocks.iter().filter(|block| !block.axes.is_empty()) {
            let axes = block.axes.iter().zip(columns.by_ref());
            let mut axes =
                axes.map(|(axis, column)| on_grid(*axis, column)).collect::<Result<Vec<_>, _>>()?;
            if packed(block).is_some() {
                let mut values = axes.pop().ok_or(Error::Columns)?;
                for x in &mut values {
                    *x = if *x == MISSING { 0 } else { packed_value(*x) };
                }
                words.push(values);
            } else {
                words.extend(block.columns.iter().map(|(powers, _)| parts(block, powers, &axes)));
            }
        }
        Ok(words)
    }
}

/// The values of an axis, doubles or whole numbers (the digits of decimals): NULL and NaN are missing, all others are clipped.
fn on_grid(axis: Axis, column: &ArrayRef) -> Result<Vec<u64>, Error> {
    if axis.degree == 0 {
        let there = column.as_boolean_opt().filter(|there| there.null_count() == 0);
        let there = there.ok_or(Error::Type)?.values();
        return Ok(there.iter().map(|there| if there { 1 } else { MISSING }).collect());
    }
    if axis.grid > FINEST {
        return Err(Error::Columns);
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // it saturates at both ends
    let near = |x: f64| if x.is_nan() { MISSING } else { (x as u64).min(axis.grid) };
    let mut found = match column.data_type() {
        DataType::Float64 => clipped::<Float64Type>(column, near),
        DataType::Int8 => wholes::<Int8Type>(column, axis.grid),
        DataType::Int16 => wholes::<Int16Type>(column, axis.grid),
        DataType::Int32 => wholes::<Int32Type>(column, axis.grid),
        DataType::Int64 => wholes::<Int64Type>(column, axis.grid),
        DataType::UInt8 => wholes::<UInt8Type>(column, axis.grid),
        DataType::UInt16 => wholes::<UInt16Type>(column, axis.grid),
        DataType::UInt32 => wholes::<UInt32Type>(column, axis.grid),
        DataType::UInt64 => wholes::<UInt64Type>(column, axis.grid),
        DataType::Decimal128(..) => {
            let (end, grid) = (i128::from(axis.grid), axis.grid);
            let clip = |x: i128| u64::try_from(x.clamp(0, end)).unwrap_or(grid);
            clipped::<Decimal128Type>(column, clip)
        }
        _ => return Err(Error::Type),
    };
    if let Some(nulls) = column.nulls() {
        let absent = found.iter_mut().zip(nulls.iter()).filter(|(_, there)| !there);
        absent.for_each(|(value, _)| *value = MISSING);
    }
    Ok(found)
}

fn clipped<T: ArrowPrimitiveType>(column: &ArrayRef, clip: impl Fn(T::Native) -> u64) -> Vec<u64> {
    column.as_primitive::<T>().values().iter().map(|x| clip(*x)).collect()
}

/// Whole numbers in 0 ..= grid: what is no u64 is negative.
fn wholes<T: ArrowPrimitiveType>(column: &ArrayRef, grid: u64) -> Vec<u64>
where
    u64: TryFrom<T::Native>,
{
    clipped::<T>(column, |x| u64::try_from(x).unwrap_or(0).min(grid))
}

/// What each row adds to one column of a block: zero where a value is missing.
fn parts(block: &Block, powers: &[u32], axes: &[Vec<u64>]) -> Vec<u64> {
    match (&block.axes[..], axes) {
        ([Axis { degree: 0, .. }], [values]) => {
            values.iter().map(|x| u64::from(*x != MISSING)).collect()
        }
        _ => (0..axes[0].len()).map(|row| part(block, powers, axes, row)).collect(),
    }
}

fn part(block: &Block, powers: &[u32], axes: &[Vec<u64>], row: usize) -> u64 {
    let mut product = 1_u128;
    for ((axis, power), values) in block.axes.iter().zip(powers).zip(axes) {
        let x = values[row];
        if x == MISSING {
            return 0;
        }
        if axis.degree > 0 {
            product *=
                u128::from(x).pow(*power) * u128::from(axis.grid - x).pow(axis.degree - power);
            product *= if axis.degree == 2 && *power == 1 { 2 } else { 1 };
        }
    }
    u64::try_from(product / block.coarse).expect("`coarse` makes it small")
}
