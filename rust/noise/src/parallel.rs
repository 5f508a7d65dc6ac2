//! Work on long slices, by all cores.

use std::ops::Range;
use std::thread;

use crate::Error;
use crate::bits::Entropy;

/// A thread is started for so many items: it takes some ten microseconds, and they about a thousand.
const WORTH_A_THREAD: usize = 1 << 16;

/// How many items each thread does.
fn share(n: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    n.div_ceil((n / WORTH_A_THREAD).clamp(1, cores)).max(1)
}

/// Does `work` on parts of `items` at the same time, each with bits under its own key.
pub fn in_parallel<T: Send>(
    items: &mut [T],
    work: impl Fn(&mut [T], &mut Entropy) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let share = share(items.len());
    each(items.chunks_mut(share), |part, bits| work(part, bits)).map(|_| ())
}

/// What `work` gives for parts of 0 .. n, at least one, in order; each with bits under its own key.
pub fn in_parts<R: Send>(
    n: usize,
    work: impl Fn(Range<usize>, &mut Entropy) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let share = share(n);
    let starts = (0..n.max(1)).step_by(share);
    each(starts.map(|start| start..n.min(start + share)), work)
}

fn each<P: Send, R: Send>(
    mut parts: impl ExactSizeIterator<Item = P>,
    work: impl Fn(P, &mut Entropy) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let alone = |part| work(part, &mut Entropy::new()?);
    if parts.len() <= 1 {
        return parts.next().map(alone).into_iter().collect();
    }
    thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(|| alone(part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    })
}
