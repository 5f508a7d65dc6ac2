//! Work on long slices, by all cores.

use std::thread;

use crate::Error;
use crate::bits::Entropy;

/// A thread is started for so many items: it takes some ten microseconds, and they about a thousand.
const WORTH_A_THREAD: usize = 1 << 16;

/// Does `work` on pieces of `items` at the same time, each with bits under its own key.
pub fn in_parallel<T: Send>(
    items: &mut [T],
    work: impl Fn(&mut [T], &mut Entropy) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let pieces = (items.len() / WORTH_A_THREAD).clamp(1, cores);
    let alone = |piece: &mut [T]| work(piece, &mut Entropy::new()?);
    if pieces == 1 {
        return alone(items);
    }
    let size = items.len().div_ceil(pieces);
    thread::scope(|scope| {
        let threads: Vec<_> =
            items.chunks_mut(size).map(|piece| scope.spawn(|| alone(piece))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
    })
}
