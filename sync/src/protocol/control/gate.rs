//! When a wait that misses its data may end.

/// Why a wait ends without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The group failed.
    Aborted,
    /// The writer of the word is gone.
    Lost,
    /// The caller cancelled.
    Cancelled,
    /// The deadline is over.
    Overdue,
}

/// What a look at everything but the data found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The abort word of this rank's page is set.
    pub aborted: bool,
    /// The awaited writer's lost bit is set.
    pub lost: bool,
    /// The caller's token was cancelled.
    pub cancelled: bool,
    /// The deadline is over.
    pub overdue: bool,
}

impl Look {
    /// The most specific cause found.
    #[must_use]
    pub fn cause(self) -> Option<Cause> {
        if self.aborted {
            Some(Cause::Aborted)
        } else if self.lost {
            Some(Cause::Lost)
        } else if self.cancelled {
            Some(Cause::Cancelled)
        } else if self.overdue {
            Some(Cause::Overdue)
        } else {
            None
        }
    }
}

/// Decides, miss by miss, whether a wait goes on. Data first: a cause ends the wait only if data is
/// still missing when it is polled once more *after* the cause was seen, since a writer may store
/// its word and die, or just make it before the deadline.
///
/// One gate serves an operation from its entry to its exit: poll the data before each
/// [`miss`](Self::miss), and tell it whose word is missing.
#[derive(Clone, Debug)]
pub struct Gate {
    period: u32,
    misses: u32,
    seen: Option<(Cause, usize)>,
}

impl Gate {
    /// Misses between two looks of a wait that spins.
    pub const PERIOD: u32 = 1024;

    /// For a wait that spins: looks every [`PERIOD`](Self::PERIOD) misses.
    #[must_use]
    pub const fn spinning() -> Self {
        Gate::every(Self::PERIOD)
    }

    /// Looks every `period` misses. 1 is for a wait that yields or sleeps between polls.
    #[must_use]
    pub const fn every(period: u32) -> Self {
        Gate { period, misses: 0, seen: None }
    }

    /// Reports that a poll missed a word of `writer`. `Some` ends the wait; `look` is called only
    /// when a look is due.
    pub fn miss(&mut self, writer: usize, look: impl FnOnce() -> Look) -> Option<Cause> {
        match self.seen {
            // That writer's word did arrive; who is missing now may well be alive.
            Some((Cause::Lost, lost)) if lost != writer => self.seen = None,
            Some((cause, _)) => return Some(cause),
            None => {}
        }
        self.misses += 1;
        if self.misses >= self.period {
            self.misses = 0;
            self.seen = look().cause().map(|cause| (cause, writer));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Look = Look { aborted: false, lost: true, cancelled: false, overdue: false };

    #[test]
    fn a_cause_ends_the_wait_only_after_one_more_poll() {
        let mut gate = Gate::every(1);
        assert_eq!(gate.miss(3, || LOST), None);
        assert_eq!(gate.miss(3, Look::default), Some(Cause::Lost));
    }

    #[test]
    fn a_lost_rank_whose_word_arrived_does_not_end_the_wait_for_another() {
        let mut gate = Gate::every(1);
        assert_eq!(gate.miss(3, || LOST), None);
        assert_eq!(gate.miss(4, Look::default), None);
        assert_eq!(gate.miss(4, Look::default), None);
        assert_eq!(gate.miss(4, || Look { overdue: true, ..LOST }), None);
        assert_eq!(gate.miss(4, Look::default), Some(Cause::Lost));
    }

    #[test]
    fn looks_are_due_once_a_period() {
        let mut gate = Gate::spinning();
        let mut looks = 0;
        for _ in 0..3 * Gate::PERIOD {
            let look = || {
                looks += 1;
                Look::default()
            };
            assert_eq!(gate.miss(0, look), None);
        }
        assert_eq!(looks, 3);
    }

    #[test]
    fn the_failure_of_the_group_comes_first() {
        let all = Look { aborted: true, lost: true, cancelled: true, overdue: true };
        assert_eq!(all.cause(), Some(Cause::Aborted));
        assert_eq!(Look { aborted: false, ..all }.cause(), Some(Cause::Lost));
        assert_eq!(Look { overdue: true, ..Look::default() }.cause(), Some(Cause::Overdue));
        assert_eq!(Look::default().cause(), None);
    }
}
