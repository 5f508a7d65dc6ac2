//! For tests: words that are written down, and enumeration of all of them.

use std::collections::BTreeMap;

use crate::bits::Bits;

/// Gives the words of a list, and from there on those of a fixed sequence.
pub struct Tape {
    words: Vec<u64>,
    used: usize,
    beyond: u64,
}

impl Tape {
    pub fn new(words: &[u64]) -> Self {
        Self { words: words.to_vec(), used: 0, beyond: 0x9E37_79B9_7F4A_7C15 }
    }

    pub fn used(&self) -> usize {
        self.used
    }
}

impl Bits for Tape {
    fn word(&mut self) -> u64 {
        self.used += 1;
        self.words.get(self.used - 1).copied().unwrap_or_else(|| {
            self.beyond ^= self.beyond << 13;
            self.beyond ^= self.beyond >> 7;
            self.beyond ^= self.beyond << 17;
            self.beyond
        })
    }
}

/// The probability of each outcome of `draw` that is settled within `depth` words, and the
/// probability that none is.
///
/// Words have only their `width` leading bits set. A comparison of lazy uniforms goes digit by
/// digit, so digits in base 2^width give it the same probabilities as digits in base 2^64.
pub fn masses<T: Ord>(
    width: u32,
    depth: usize,
    draw: impl Fn(&mut Tape) -> T,
) -> (BTreeMap<T, f64>, f64) {
    let (mut settled, mut open) = (BTreeMap::new(), 0.0);
    let mut prefixes = vec![Vec::new()];
    while let Some(prefix) = prefixes.pop() {
        let mut tape = Tape::new(&prefix);
        let outcome = draw(&mut tape);
        let mass = 0.5_f64.powi(width.cast_signed()).powi(i32::try_from(prefix.len()).unwrap());
        if tape.used() <= prefix.len() {
            *settled.entry(outcome).or_insert(0.0) += mass;
        } else if prefix.len() == depth {
            open += mass;
        } else {
            let digits = (0..1 << width).map(|digit: u64| digit << (64 - width));
            prefixes.extend(digits.map(|word| [prefix.as_slice(), &[word]].concat()));
        }
    }
    (settled, open)
}

/// Asserts that `event` has the given probability, to within what `depth` words leave open, at most
/// `most_open`.
pub fn assert_encloses(
    width: u32,
    depth: usize,
    most_open: f64,
    probability: f64,
    event: impl Fn(&mut Tape) -> bool,
) {
    let (mass, open) = masses(width, depth, event);
    let low = mass.get(&true).copied().unwrap_or(0.0);
    assert!(open <= most_open, "{open} is left open");
    assert!(low <= probability && probability <= low + open, "{low} + {open}: not {probability}");
}
