//! Many independent jobs on the cores there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Does every job once; the results are in the jobs' order.
pub fn in_parallel<J: Sync, R: Send>(jobs: &[J], act: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, job)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(index).map(|job| (index, job))
        } {
            done.push((index, act(job)));
        }
        done
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.min(jobs.len())).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.flatten().collect()
    });
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once_and_in_its_place() {
        for count in [0, 1, 2, 1000] {
            let jobs: Vec<usize> = (0..count).collect();
            let squares: Vec<usize> = jobs.iter().map(|n| n * n).collect();
            assert_eq!(in_parallel(&jobs, |n| n * n), squares);
        }
    }
}
