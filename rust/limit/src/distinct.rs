//! Values of which each counts once in each group, whoever has it; and the columns of several passes as one table.
//!
//! What must hold for `values`: a person keeps at most `max_rows` of their claims (a key and a value), the first in the order of the
//! rows' hash and then of the claim. Both are functions of the person and the claim alone. Each claim that someone keeps is added
//! once. So one more person adds at most `max_rows` claims to these, and takes none away.
//!
//! What must hold for `beside`: each table has each key once, and a cell stays with its key.

use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchReader};
use arrow_schema::{Field, Schema};

use std::sync::Arc;

use crate::measure::{Measures, Source, below, unpacked};
use crate::numbering::{Numbering, UNKNOWN};
use crate::{Error, Hashed, INTEGER, Keys, Kind, Limits, integers, numbers, run, table};

/// The totals of what claims add: for each declared key in order, or for each key of which someone keeps a claim.
///
/// `rows` has a person, `limits.keys` keys, a value, what it adds if that is not one, and the hash of person, keys and value. Each
/// person keeps `max_rows` claims, over all keys together. The result has the private keys, and then the columns of the only block.
///
/// # Errors
/// If the rows cannot be read or are not so; the texts show no value.
pub fn values(
    limits: &Limits,
    declared: Option<&Keys>,
    rows: impl RecordBatchReader + Send,
) -> Result<RecordBatch, Error> {
    let limits = &Limits { hashed: Hashed::Nothing, ..limits.clone() };
    let measures = Measures::new(limits)?;
    let sources = measures.sources();
    let alone = limits.blocks.len() == 1 && limits.blocks[0].kind == Kind::Rows;
    let keyed = (limits.private || limits.keys == 0) != declared.is_some();
    if !alone || !keyed || limits.names.len() != sources.len() {
        return Err(Error::Columns);
    }
    let (schema, claim) = (rows.schema(), limits.keys + 1 + measures.axes());
    if schema.fields().len() != claim + 2 {
        return Err(Error::Columns);
    }
    let key_fields = schema.fields()[1..=limits.keys].to_vec();
    let declared_fields = declared.map_or(&key_fields[..], |keys| &keys.fields);
    if !key_fields.iter().map(|f| f.data_type()).eq(declared_fields.iter().map(|f| f.data_type())) {
        return Err(Error::Keys);
    }
    measures.usable(&schema.fields()[limits.keys + 2..=claim])?;

    let claims = Limits {
        keys: claim,
        private: true,
        hashed: Hashed::Pairs,
        norm: 1,
        max_rows: u128::MAX, // what a person keeps is limited, and nothing is scaled
        max_groups: usize::try_from(limits.max_rows).unwrap_or(usize::MAX),
        in_groups: 1,
        enough: Some(1),
        blocks: Vec::new(),
        names: vec!["persons".to_owned()],
    };
    let kept = run::<2>(&claims, None, None, None, None, Some(rows))?;
    let (keys, rest) = kept.columns().split_at(limits.keys);
    let found = Numbering::new(limits.keys, true);
    let codes = declared.map_or(&found, |keys| &keys.codes);
    let numbers = numbers(limits, codes, keys, kept.num_rows())?;
    let words = measures.of(&rest[1..=measures.axes()])?;
    let count = if limits.keys > 0 { codes.count() } else { 1 };
    let mut sums = vec![0_i128; count * sources.len()];
    for (row, number) in numbers.iter().enumerate().filter(|(_, number)| **number != UNKNOWN) {
        let cells = &mut sums[*number as usize * sources.len()..][..sources.len()];
        for ((source, (_, factor)), cell) in
            sources.iter().zip(&limits.blocks[0].columns).zip(cells)
        {
            let value = match *source {
                Source::Rows => 1,
                Source::Word(i) => words[i][row],
                Source::Above(i) => unpacked(words[i][row]).0,
                Source::Below(i, grid) => below(unpacked(words[i][row]), grid),
            };
            let more = u128::from(value).checked_mul(*factor).and_then(|x| i128::try_from(x).ok());
            *cell = more.and_then(|more| cell.checked_add(more)).ok_or(Error::Size)?;
        }
    }
    let mut columns = codes.rows()?;
    if limits.private && columns.is_empty() {
        columns = key_fields.iter().map(|f| arrow_array::new_empty_array(f.data_type())).collect();
    }
    table(limits, &columns, &key_fields, count, &sums)
}

/// One table of the columns with these names: the keys of the first one, if they are private, and what all have for these. Without
/// keys, all have the same rows in the same order.
///
/// # Errors
/// If a column is missing, or if the tables are not so.
pub fn beside(tables: &[RecordBatch], keys: usize, names: &[String]) -> Result<RecordBatch, Error> {
    let first = tables.first().filter(|first| first.num_columns() >= keys).ok_or(Error::Columns)?;
    let rows = first.num_rows();
    let places = tables.iter().map(|_| Vec::new());
    let mut places: Vec<Vec<u32>> = places.collect();
    if keys > 0 {
        let codes = Numbering::new(keys, false);
        for (table, places) in tables.iter().zip(&mut places) {
            let columns = table.columns().get(..keys).ok_or(Error::Columns)?;
            *places = codes.of(columns, table.num_rows())?;
        }
    } else if tables.iter().any(|table| table.num_rows() != rows) {
        return Err(Error::Columns);
    }
    let mut fields = first.schema().fields()[..keys].to_vec();
    let mut columns = first.columns()[..keys].to_vec();
    for name in names {
        let found = tables.iter().zip(&places);
        let mut found = found.filter_map(|(t, places)| Some((t.column_by_name(name)?, places)));
        let (cells, places) = found.next().ok_or(Error::Columns)?;
        fields.push(Arc::new(Field::new(name, INTEGER, false)));
        columns.push(if keys > 0 { placed(cells, places, rows)? } else { cells.clone() });
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|_| Error::Type)
}

/// Cells in the places of their keys; 0 where there is none. Keys that the first table does not have are left out.
fn placed(cells: &ArrayRef, places: &[u32], rows: usize) -> Result<ArrayRef, Error> {
    let cells = cells.as_primitive_opt::<Decimal128Type>().filter(|cells| cells.null_count() == 0);
    let mut found = vec![0; rows];
    for (cell, place) in cells.ok_or(Error::Type)?.values().iter().zip(places) {
        if let Some(sum) = found.get_mut(*place as usize) {
            *sum = *cell;
        }
    }
    Ok(integers(found.into_iter()))
}
