//! How many persons have each key, of rows that are added as they come.
//!
//! What must hold: for each key the count is that of the different persons who were noted, or `Limits::enough` if these are more. So it
//! depends on the set of pairs alone, and not on threads or on how often a pair was noted.
//!
//! Persons are listed by key. Whoever stands in a list twice is dropped from time to time; and a key that has enough persons has no
//! list any more, since no more are counted (`Limits::enough`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kept_rows::KEYS;
use crate::{Limits, SLICE, lock};

/// Persons who are put into a list at once, and up to how many nobody looks whether they differ.
const OPEN: usize = 1 << 6;
const SHORT: usize = 1 << 12;

#[derive(Default)]
struct List {
    persons: Vec<u32>,
    differ: usize, // so many of them did, the last time
}

/// By slot: one more than the number of a key, as `Light::add` has it.
pub struct Lists {
    enough: usize,
    slots: Vec<Mutex<List>>,
    done: Vec<AtomicBool>, // whether there are enough; so it is for rows that are not added
}

impl Lists {
    /// For private keys; of others nobody asks how many persons have them.
    pub fn new(limits: &Limits) -> Self {
        let enough = limits.enough.and_then(|enough| usize::try_from(enough).ok());
        let keys = if limits.private { KEYS as usize } else { 0 };
        Self {
            enough: enough.unwrap_or(usize::MAX),
            slots: (0..keys).map(|_| Mutex::default()).collect(),
            done: (0..keys).map(|slot| AtomicBool::new(slot == 0)).collect(),
        }
    }

    fn put(&self, slot: usize, persons: &[u32], seen: &mut Seen) {
        let mut list = lock(&self.slots[slot]);
        if self.done[slot].load(Ordering::Relaxed) {
            return;
        }
        list.persons.extend_from_slice(persons);
        // Twice as many as there were, so that each is looked at few times; or as many as may be enough, if some stand there twice.
        let most = SHORT.max(2 * list.differ).min(self.enough.saturating_add(self.enough / 8));
        if list.persons.len() > most {
            self.tidy(slot, &mut list, seen);
        }
    }

    fn tidy(&self, slot: usize, list: &mut List, seen: &mut Seen) {
        seen.once(&mut list.persons);
        list.differ = list.persons.len();
        if list.differ >= self.enough {
            self.done[slot].store(true, Ordering::Relaxed);
            list.persons = Vec::new();
        }
    }

    /// How many persons have the key with this number; no more than enough.
    pub fn count(&self, key: usize, seen: &mut Seen) -> u64 {
        let (slot, mut list) = (key + 1, lock(&self.slots[key + 1]));
        self.tidy(slot, &mut list, seen);
        let done = self.done[slot].load(Ordering::Relaxed);
        (if done { self.enough } else { list.differ }) as u64
    }
}

/// What one thread has not yet put there.
pub struct Noting {
    open: Vec<[u32; OPEN]>,
    filled: Vec<usize>,
    seen: Seen,
}

impl Noting {
    pub fn new() -> Self {
        Self { open: Vec::new(), filled: Vec::new(), seen: Seen::new() }
    }

    /// Notes rows whose slots are at most `last`, and which can be kept.
    #[allow(clippy::cast_possible_truncation)] // slices are short
    pub fn note(&mut self, persons: &[u32], slots: &[u32], last: usize, lists: &Lists) {
        if last >= self.open.len() {
            let room = (last + 1).next_power_of_two().min(KEYS as usize);
            self.open.resize(room, [0; OPEN]);
            self.filled.resize(room, 0);
        }
        // Most keys have enough persons soon: to pass over them must cost little.
        let (mut asked, mut count) = ([0_u16; SLICE], 0);
        for (row, slot) in slots.iter().enumerate() {
            asked[count % SLICE] = row as u16;
            count += usize::from(!lists.done[*slot as usize].load(Ordering::Relaxed));
        }
        for row in asked[..count].iter().map(|row| usize::from(*row)) {
            let slot = slots[row] as usize;
            let (open, filled) = (&mut self.open[slot], &mut self.filled[slot]);
            open[*filled % OPEN] = persons[row];
            *filled += 1;
            if *filled == OPEN {
                *filled = 0;
                lists.put(slot, open, &mut self.seen);
            }
        }
    }

    pub fn finish(&mut self, lists: &Lists) {
        for (slot, (open, filled)) in self.open.iter().zip(&self.filled).enumerate() {
            lists.put(slot, &open[..*filled], &mut self.seen);
        }
    }
}

/// A bit for each person; all are zero.
pub struct Seen(Vec<u64>);

impl Seen {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Leaves each person once.
    fn once(&mut self, persons: &mut Vec<u32>) {
        let last = persons.iter().fold(0, |all, person| all | person) as usize;
        if last / 64 >= self.0.len() {
            self.0.resize((last / 64 + 1).next_power_of_two(), 0);
        }
        persons.retain(|person| {
            let word = &mut self.0[*person as usize / 64];
            let bit = 1 << (person % 64);
            let new = *word & bit == 0;
            *word |= bit;
            new
        });
        for person in persons {
            self.0[*person as usize / 64] = 0;
        }
    }
}
