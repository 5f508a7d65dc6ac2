//! Work on long slices, by all cores.

use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use crate::Error;
use crate::bits::Entropy;

/// Items that one thread takes at a time: about a millisecond of work, so that a slow core is not waited for long
/// and a thread, which takes some ten microseconds to start, is worth it.
const PART: usize = 1 << 15;

/// Does `work` on parts of `items` at the same time.
pub fn in_parallel<T: Send>(
    items: &mut [T],
    work: impl Fn(&mut [T], &mut Entropy) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    each(items.chunks_mut(PART), work).map(|_| ())
}

/// What `work` gives for parts of 0 .. n, at least one, in order.
pub fn in_parts<R: Send>(
    n: usize,
    work: impl Fn(Range<usize>, &mut Entropy) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let starts = (0..n.max(1)).step_by(PART);
    each(starts.map(|start| start..n.min(start + PART)), work)
}

/// Each thread takes the next part when it has done one, with bits under a key of its own.
fn each<P: Send, R: Send>(
    parts: impl ExactSizeIterator<Item = P> + Send,
    work: impl Fn(P, &mut Entropy) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(parts.len() / 2).max(1);
    let mut done: Vec<_> = (0..parts.len()).map(|_| None).collect();
    let left = Mutex::new(parts.zip(done.iter_mut()));
    let take = || {
        let mut bits = Entropy::new()?;
        loop {
            let next = left.lock().expect("nothing panics that holds it").next();
            let Some((part, place)) = next else { return Ok(()) };
            *place = Some(work(part, &mut bits)?);
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
        let own = take();
        others.into_iter().fold(own, |all, one| all.and(one.join().expect("a thread panicked")))
    })?;
    drop(left);
    Ok(done.into_iter().flatten().collect())
}
