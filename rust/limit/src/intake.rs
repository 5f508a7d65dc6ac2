//! Rows as they come from the engine: those of persons whom nothing limits are added, the others are put into parts.
//!
//! What must hold: each row of someone with a key is used once for each of its persons, in the sums (`within_limits`) or in a record
//! (`records`). Of a person whose rows are added, all are, but for rows with large numbers of keys, which are in records: within the
//! limits both add the same.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchReader};

use crate::kept_rows::{Clerk, KEYS, KeptRows, SETS, Sorter, unkept};
use crate::measure::{Kept, Measures};
use crate::numbering::Numbering;
use crate::owners::{Owners, Whose, known};
use crate::persons::Persons;
use crate::persons_per_key::{Lists, Noting, Seen};
use crate::rank::Noted;
use crate::records::{Inbox, Outgoing, Rows, Scratch};
use crate::within_limits::{self, Counts, Heavy, Light};
use crate::{Error, Hashed, Kind, Limits, SLICE, cores, in_threads, lock, numbers};

type Batch = Result<RecordBatch, Error>;

/// A stream whose batches threads take in turn.
pub struct Batches<R> {
    left: Mutex<(Option<Batch>, Option<R>)>, // the first one, and the others
    pub some: RecordBatch,                   // the first rows
    pub threads: usize,
}

impl<R: RecordBatchReader + Send> Batches<R> {
    pub fn new(mut rows: R) -> Self {
        let first = rows.next().map(|batch| batch.map_err(|_| Error::Stream));
        let some = match &first {
            Some(Ok(batch)) => batch.slice(0, SLICE.min(batch.num_rows())),
            _ => RecordBatch::new_empty(rows.schema()),
        };
        let threads = if some.num_rows() < SLICE { 1 } else { cores() };
        Self { left: Mutex::new((first, Some(rows))), some, threads }
    }

    fn next(&self) -> Option<Batch> {
        let mut left = lock(&self.left);
        let rows = |rows: &mut R| rows.next().map(|batch| batch.map_err(|_| Error::Stream));
        let next = left.0.take().or_else(|| left.1.as_mut().and_then(rows));
        if !matches!(next, Some(Ok(_))) {
            left.1 = None; // whatever there was: it is not asked again
        }
        next
    }

    /// Calls `act` with the rows that have no NULL in their first columns, few at a time: what they need stays near the processor.
    pub fn each(
        &self,
        columns: usize,
        mut act: impl FnMut(&RecordBatch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while let Some(batch) = self.next() {
            let batch = batch?;
            for start in (0..batch.num_rows()).step_by(SLICE) {
                act(&known(batch.slice(start, SLICE.min(batch.num_rows() - start)), columns)?)?;
            }
        }
        Ok(())
    }
}

/// Whose the rows are; and, if their persons came before them, who has many and how many rows there are.
pub struct Counted {
    whose: Whose,
    heavy: Heavy,
    rows: usize,
}

impl Counted {
    /// From a stream of the persons of all rows, or of what leads to them.
    ///
    /// # Errors
    /// If they cannot be read, or if something else than rows is counted.
    pub fn new(
        limits: &Limits,
        owners: Option<Owners>,
        persons: impl RecordBatchReader + Send,
    ) -> Result<Self, Error> {
        if limits.blocks.iter().any(|block| block.kind == Kind::Persons) {
            return Err(Error::Columns); // how many rows are few depends on how many keys there are
        }
        let batches = Batches::new(persons);
        let whose = whose(owners, batches.some.column(0));
        let found = in_threads(batches.threads, || {
            let (mut counts, mut rows) = (Counts::default(), 0);
            batches.each(1, |slice| {
                whose.each(slice.column(0), |persons, _| {
                    counts.add(&persons);
                    rows += persons.len();
                    Ok(())
                })
            })?;
            Ok((counts, rows))
        })?;
        let rows = found.iter().map(|one| one.1).sum();
        let counts = found.into_iter().map(|one| one.0).reduce(Counts::merge).unwrap_or_default();
        let most = within_limits::most(limits, usize::MAX).ok_or(Error::Columns)?; // private keys may be any number
        Ok(Self { whose, heavy: counts.above(most), rows })
    }
}

impl Counted {
    pub(crate) fn owners(&self) -> Option<&Owners> {
        match &self.whose {
            Whose::Own(_) => None,
            Whose::Through(owners) => Some(owners),
        }
    }
}

/// Who the rows are of, if they are like these.
pub fn whose(owners: Option<Owners>, some: &ArrayRef) -> Whose {
    owners.map_or_else(|| Whose::Own(Persons::like(some)), Whose::Through)
}

pub struct Taken {
    pub whose: Whose,
    pub noted: Noted,
    pub last: u64,        // the largest number of a person within her part
    pub light: Vec<u128>, // the totals of persons whom nothing limits
}

/// Takes all rows: those of persons whom nothing limits are added, and the others are put into parts.
///
/// Threads take batches in turn. If it is not known who has few rows, all are kept until it is. If they are too
/// many for that, all are put into parts.
pub fn take_in<const W: usize>(
    rows: impl RecordBatchReader + Send,
    counted: Option<Counted>,
    owners: Option<Owners>,
    limits: &Limits,
    measures: &Measures,
    keys: &Numbering,
    inbox: &Inbox<W>,
) -> Result<Taken, Error> {
    let intake = Intake {
        batches: Batches::new(rows),
        noted: Noted::default(),
        limits,
        measures,
        keys,
        inbox,
    };
    let (whose, (last, light)) = if let Some(counted) = counted {
        let found = intake.add_up(&counted)?;
        (counted.whose, found)
    } else {
        let whose = whose(owners, intake.batches.some.column(0));
        let narrow = measures.narrow();
        let found = if narrow { intake.keep::<u32>(&whose) } else { intake.keep::<u64>(&whose) };
        (whose, found?)
    };
    Ok(Taken { whose, noted: intake.noted, last, light })
}

struct Intake<'a, R, const W: usize> {
    batches: Batches<R>,
    noted: Noted,
    limits: &'a Limits,
    measures: &'a Measures<'a>,
    keys: &'a Numbering,
    inbox: &'a Inbox<'a, W>,
}

impl<R: RecordBatchReader + Send, const W: usize> Intake<'_, R, W> {
    /// Calls `take` with rows and their persons.
    fn each(
        &self,
        whose: &Whose,
        mut take: impl FnMut(Rows) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.batches.each(1, |slice| {
            let (before, mut after) = slice.columns().split_at(1 + self.limits.keys);
            let keys = numbers(self.limits, self.keys, &before[1..], slice.num_rows())?;
            if self.limits.hashed == Hashed::Keys {
                let (hashes, axes) = after.split_first().ok_or(Error::Columns)?;
                self.noted.note(&keys, hashes)?;
                after = axes;
            }
            let rows = Rows { persons: Vec::new(), keys, words: self.measures.of(after)? };
            each_person(whose, slice, rows, &mut take)
        })
    }

    /// How many keys have lists of persons.
    fn listed(&self) -> usize {
        self.keys.count().min(KEYS as usize - 1)
    }

    /// Adds rows of persons of whom it is known that nothing limits them as they come. Of these only the pairs of persons and
    /// keys are kept, if persons are counted.
    fn add_up(&self, counted: &Counted) -> Result<(u64, Vec<u128>), Error> {
        let lists = Lists::new(self.limits);
        let done = in_threads(self.batches.threads, || {
            let (mut outgoing, mut scratch) = (Outgoing::new(), Scratch::new());
            let mut light = Light::new(self.limits, self.measures);
            let mut noting = self.limits.private.then(Noting::new);
            let (mut slots, mut rows) = (Vec::new(), 0);
            self.each(&counted.whose, |found| {
                rows += found.persons.len();
                let mut left = counted.heavy.slots(&found.persons, &found.keys, &mut slots);
                if let Some(noting) = &mut noting {
                    left.extend(unkept(&found.persons, &mut slots));
                    noting.note(&found.persons, &slots, self.listed(), &lists);
                }
                light.add(&slots, |i| &found.words[i][..], self.keys.count());
                outgoing.take(&found.select(&left), self.inbox, &mut scratch)
            })?;
            if let Some(mut noting) = noting {
                noting.finish(&lists);
            }
            Ok((outgoing.finish(self.inbox, &mut scratch), light, rows))
        })?;
        if done.iter().map(|one| one.2).sum::<usize>() > counted.rows {
            return Err(Error::Stream); // there were fewer when their persons were counted
        }
        let last = done.iter().map(|one| one.0).max().unwrap_or(0);
        let persons = if self.limits.private { self.persons(&lists)? } else { Vec::new() };
        let light = done.into_iter().map(|one| one.1).chain(persons);
        Ok((last, Light::totals(light)))
    }

    /// Those who are listed.
    fn persons(&self, lists: &Lists) -> Result<Vec<Light>, Error> {
        let left = Mutex::new(0..self.listed());
        in_threads(self.batches.threads, || {
            let (mut counts, mut seen) = (vec![0; self.listed()], Seen::new());
            loop {
                let next = lock(&left).next();
                let Some(key) = next else { break };
                counts[key] = lists.count(key, &mut seen);
            }
            let mut light = Light::new(self.limits, self.measures);
            light.add_persons(&counts);
            Ok(light)
        })
    }

    /// Keeps all rows until their persons are counted.
    fn keep<T: Kept>(&self, whose: &Whose) -> Result<(u64, Vec<u128>), Error> {
        let shelves = KeptRows::<T>::new();
        let keep = AtomicBool::new(within_limits::most(self.limits, 0).is_some());
        let took = in_threads(self.batches.threads, || {
            let (mut outgoing, mut scratch) = (Outgoing::new(), Scratch::new());
            let (mut sorter, mut others) = (Sorter::new(self.measures.kept()), Counts::default());
            let mut slots = Vec::new();
            self.each(whose, |rows| {
                if !keep.load(Ordering::Relaxed) {
                    return outgoing.take(&rows, self.inbox, &mut scratch);
                }
                keep.fetch_and(!shelves.full(), Ordering::Relaxed);
                slots.clear();
                slots.extend(rows.keys.iter().map(|key| within_limits::slot_of(*key)));
                let left = sorter.take(&rows.persons, &mut slots, &rows.words, &shelves);
                let rows = rows.select(&left);
                others.add(&rows.persons);
                outgoing.take(&rows, self.inbox, &mut scratch)
            })?;
            sorter.finish(&shelves);
            Ok((outgoing.finish(self.inbox, &mut scratch), others))
        })?;
        let (last, others): (Vec<_>, Vec<_>) = took.into_iter().unzip();
        let others = others.into_iter().reduce(Counts::merge).unwrap_or_default();
        let most =
            within_limits::most(self.limits, self.keys.count()).filter(|_| keep.into_inner());
        let left = Mutex::new(0..SETS);
        let cleared = in_threads(self.batches.threads, || {
            let (mut outgoing, mut scratch) = (Outgoing::new(), Scratch::new());
            let mut light = most.map(|_| Light::new(self.limits, self.measures));
            let mut clerk =
                Clerk::new(light.as_mut(), most.unwrap_or(0), &others, self.keys.count());
            loop {
                let next = lock(&left).next();
                let Some(set) = next else { break };
                clerk.clear(&shelves, set, |rows| outgoing.take(rows, self.inbox, &mut scratch))?;
            }
            Ok((outgoing.finish(self.inbox, &mut scratch), light))
        })?;
        let (later, light): (Vec<_>, Vec<_>) = cleared.into_iter().unzip();
        let last = last.into_iter().chain(later).max().unwrap_or(0);
        Ok((last, Light::totals(light.into_iter().flatten())))
    }
}

/// Calls `take` with rows and their persons: a row that reaches several persons is a row of each.
fn each_person(
    whose: &Whose,
    slice: &RecordBatch,
    rows: Rows,
    take: &mut impl FnMut(Rows) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut unowned = Some(rows);
    whose.each(slice.column(0), |persons, found| {
        take(match (found, &mut unowned) {
            (Some(found), Some(rows)) => rows.of(persons, found),
            (_, rows) => Rows { persons, ..rows.take().ok_or(Error::Columns)? },
        })
    })
}
