//! What a stream's work keeps alive, in batches.
//!
//! A launch adds what it uses to the open batch, each object once. A full batch is closed with a mark
//! of the stream's work, and goes when that mark is reached: one event for many launches.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::KeepAlive;

/// Objects after which a batch is full.
const OBJECTS: usize = 64;

/// Launches after which it is, so that a stream that always uses the same few lets go of those that
/// it has ceased to use.
const LAUNCHES: usize = 256;

/// Kept objects; `M` marks a place in the stream's work.
#[derive(Debug)]
pub(super) struct Keeper<M> {
    open: Vec<KeepAlive>,
    launches: usize,
    closed: VecDeque<(M, Vec<KeepAlive>)>,
}

impl<M> Default for Keeper<M> {
    fn default() -> Self {
        Keeper { open: Vec::new(), launches: 0, closed: VecDeque::new() }
    }
}

impl<M> Keeper<M> {
    /// Keeps an object of the launch that was made last.
    pub(super) fn add(&mut self, object: &KeepAlive) {
        // Most launches use what the last one used.
        let known = self.open.iter().rev().any(|kept| Arc::ptr_eq(kept, object));
        if !known {
            self.open.push(object.clone());
        }
    }

    /// A launch has added all it uses; whether the batch is full now.
    pub(super) fn launched(&mut self) -> bool {
        self.launches += 1;
        self.open.len() >= OBJECTS || (self.launches >= LAUNCHES && !self.open.is_empty())
    }

    /// Whether the open batch holds anything.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Closes the open batch: `mark` comes after every launch that added to it.
    pub(super) fn close(&mut self, mark: M) {
        self.launches = 0;
        if !self.open.is_empty() {
            self.closed.push_back((mark, core::mem::take(&mut self.open)));
        }
    }

    /// The batches whose marks are reached, in order; to be dropped where no lock is held.
    #[must_use]
    pub(super) fn reap(&mut self, reached: impl Fn(&M) -> bool) -> Vec<Vec<KeepAlive>> {
        let mut done = Vec::new();
        while self.closed.front().is_some_and(|(mark, _)| reached(mark)) {
            done.extend(self.closed.pop_front().map(|(_, batch)| batch));
        }
        done
    }

    /// Everything, the open batch last and without a mark.
    pub(super) fn take(&mut self) -> (Vec<(M, Vec<KeepAlive>)>, Vec<KeepAlive>) {
        self.launches = 0;
        (self.closed.drain(..).collect(), core::mem::take(&mut self.open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(n: usize) -> Vec<KeepAlive> {
        (0..n).map(|i| Arc::new(i) as KeepAlive).collect()
    }

    fn counts(objects: &[KeepAlive]) -> Vec<usize> {
        objects.iter().map(|o| Arc::strong_count(o) - 1).collect()
    }

    #[test]
    fn an_object_is_kept_once_however_often_it_is_used() {
        let (mut keeper, used) = (Keeper::<u32>::default(), objects(2));
        for launch in 1..LAUNCHES {
            used.iter().for_each(|o| keeper.add(o));
            assert!(!keeper.launched(), "full after {launch}");
        }
        assert_eq!(counts(&used), [1, 1]);
        assert!(keeper.launched(), "the batch never ends");
    }

    #[test]
    fn a_batch_is_full_of_objects() {
        for n in [OBJECTS - 1, OBJECTS, OBJECTS + 1] {
            let (mut keeper, used) = (Keeper::<u32>::default(), objects(n));
            used.iter().for_each(|o| keeper.add(o));
            assert_eq!(keeper.launched(), n >= OBJECTS, "{n}");
        }
    }

    #[test]
    fn launches_that_keep_nothing_need_no_mark() {
        let mut keeper = Keeper::<u32>::default();
        assert!((0..=LAUNCHES).all(|_| !keeper.launched()));
        assert!(!keeper.is_open());
        keeper.close(1);
        assert!(keeper.reap(|_| true).is_empty());
    }

    #[test]
    fn batches_go_in_order_and_only_when_reached() {
        let (mut keeper, used) = (Keeper::default(), objects(3));
        for (mark, object) in (1..).zip(&used) {
            keeper.add(object);
            keeper.close(mark);
        }
        // The second alone: not before the first.
        assert!(keeper.reap(|mark| *mark == 2).is_empty());
        assert_eq!(counts(&used), [1, 1, 1]);
        drop(keeper.reap(|mark| *mark <= 2));
        assert_eq!(counts(&used), [0, 0, 1]);
        // Used again, in a later batch.
        keeper.add(&used[0]);
        let (closed, open) = keeper.take();
        assert_eq!((closed.len(), open.len()), (1, 1));
        assert_eq!(counts(&used), [1, 0, 1]);
        drop((closed, open));
        assert_eq!(counts(&used), [0, 0, 0]);
    }
}
