//! Rows as they come from the engine: those of persons whom nothing limits are added, the others are put into parts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use arrow_array::{Array, BooleanArray, RecordBatch, RecordBatchReader, new_empty_array};
use arrow_select::filter::filter_record_batch;

use crate::codes::Codes;
use crate::light::{self, Counts, Light};
use crate::measure::Measures;
use crate::owners::{Owners, Whose};
use crate::parts::{Inbox, Outgoing, Rows, Scratch};
use crate::persons::Persons;
use crate::rank::Noted;
use crate::{Error, Hashed, Limits, SLICE, cores, in_threads, lock, numbers};

/// Bytes of rows that are kept until all persons' rows are counted.
const KEPT: usize = 1 << 30;

pub struct Taken {
    pub whose: Whose,
    pub noted: Noted,
    pub last: u64,        // the largest number of a person within her part
    pub light: Vec<u128>, // the totals of persons whom nothing limits
}

/// Takes all rows: those of persons whom nothing limits are added, and the others are put into parts.
///
/// Threads take batches in turn. Who has few rows is known when all are there: until then they are kept. If they are too
/// many for that, all are put into parts.
pub fn take_in<const W: usize>(
    mut rows: impl RecordBatchReader + Send,
    owners: Option<&[RecordBatch]>,
    limits: &Limits,
    measures: &Measures,
    keys: &Codes,
    inbox: &Inbox<W>,
) -> Result<Taken, Error> {
    let kind = rows.schema().field(0).data_type().clone();
    let first = rows.next();
    let some = match &first {
        Some(Ok(batch)) => batch.column(0).slice(0, SLICE.min(batch.num_rows())),
        _ => new_empty_array(&kind),
    };
    let whose = match owners {
        Some(pairs) => Whose::Through(Owners::new(pairs)?),
        None => Whose::Own(Persons::like(&some)),
    };
    let noted = Noted::default();
    let (kept, bytes) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let keep = AtomicBool::new(light::most(limits, 0).is_some());
    let threads = if some.len() < SLICE { 1 } else { cores() };
    let left = Mutex::new((first, Some(rows)));
    let took = in_threads(threads, || {
        let (mut outgoing, mut scratch) = (Outgoing::new(), Scratch::new());
        let mut counts = Counts::default();
        loop {
            let next = {
                let mut left = lock(&left);
                let next = left.0.take().or_else(|| left.1.as_mut().and_then(Iterator::next));
                if !matches!(next, Some(Ok(_))) {
                    left.1 = None; // whatever there was: it is not asked again
                }
                next
            };
            let Some(batch) = next else {
                return Ok((outgoing.finish(inbox, &mut scratch), counts));
            };
            let batch = batch.map_err(|_| Error::Stream)?;
            for start in (0..batch.num_rows()).step_by(SLICE) {
                let slice = owned(batch.slice(start, SLICE.min(batch.num_rows() - start)))?;
                let (columns, count) = (slice.columns(), slice.num_rows());
                let (before, mut after) = columns.split_at(1 + limits.keys);
                let key = numbers(limits, keys, &before[1..], count)?;
                if limits.hashed == Hashed::Keys {
                    let (hashes, axes) = after.split_first().ok_or(Error::Columns)?;
                    noted.note(&key, hashes)?;
                    after = axes;
                }
                let words = measures.of(after)?;
                let unowned = Rows { persons: Vec::new(), keys: key, words };
                let mut unowned = Some(unowned);
                whose.each(&columns[0], |persons, found| {
                    let rows = match (found, &mut unowned) {
                        (Some(found), Some(rows)) => rows.of(persons, found),
                        (_, rows) => Rows { persons, ..rows.take().ok_or(Error::Columns)? },
                    };
                    let size = 8 * (1 + rows.words.len()) * rows.persons.len();
                    let before = bytes.fetch_add(size, Ordering::Relaxed);
                    if keep.load(Ordering::Relaxed) && before < KEPT && counts.add(&rows.persons) {
                        lock(&kept).push(rows);
                        return Ok(());
                    }
                    keep.store(false, Ordering::Relaxed);
                    outgoing.take(&rows, inbox, &mut scratch)
                })?;
            }
        }
    })?;
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (last, counts): (Vec<_>, Vec<_>) = took.into_iter().unzip();
    let counts = counts.into_iter().reduce(Counts::merge).unwrap_or_default();
    let total: usize = kept.iter().map(|rows: &Rows| rows.persons.len()).sum();
    let most = light::most(limits, keys.count()).filter(|_| keep.into_inner());
    let heavy = most.map(|most| counts.above(most));
    let left = Mutex::new(kept.into_iter());
    let added = in_threads(threads, || {
        let (mut outgoing, mut scratch) = (Outgoing::new(), Scratch::new());
        let new = |heavy| Light::new(limits, measures, heavy, keys.count(), total);
        let mut light = heavy.as_ref().and_then(new);
        loop {
            let next = lock(&left).next();
            let Some(rows) = next else { return Ok((outgoing.finish(inbox, &mut scratch), light)) };
            let rows = if let Some(light) = &mut light { light.add(&rows) } else { rows };
            outgoing.take(&rows, inbox, &mut scratch)?;
        }
    })?;
    let (later, light): (Vec<_>, Vec<_>) = added.into_iter().unzip();
    Ok(Taken {
        whose,
        noted,
        last: last.into_iter().chain(later).max().unwrap_or(0),
        light: Light::totals(light.into_iter().flatten().collect())?,
    })
}

/// The rows that are someone's.
fn owned(rows: RecordBatch) -> Result<RecordBatch, Error> {
    match rows.column(0).nulls().filter(|nulls| nulls.null_count() > 0) {
        None => Ok(rows),
        Some(nulls) => {
            let there = BooleanArray::new(nulls.inner().clone(), None);
            filter_record_batch(&rows, &there).map_err(|_| Error::Type)
        }
    }
}
