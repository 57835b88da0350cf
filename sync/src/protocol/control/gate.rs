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

/// Decides, miss by miss, whether a wait goes on. Data first: a cause ends the wait only if the
/// data is still missing when it is polled once more *after* the cause was seen, since a writer may
/// store its word and die, or just make it before the deadline.
///
/// Make one for each word awaited; poll the data before each [`miss`](Self::miss).
#[derive(Clone, Debug)]
pub struct Gate {
    period: u32,
    misses: u32,
    seen: Option<Cause>,
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

    /// Reports that a poll missed. `Some` ends the wait; `look` is called only when a look is due.
    pub fn miss(&mut self, look: impl FnOnce() -> Look) -> Option<Cause> {
        if self.seen.is_some() {
            return self.seen;
        }
        self.misses += 1;
        if self.misses >= self.period {
            self.misses = 0;
            self.seen = look().cause();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_ends_the_wait_only_after_one_more_poll() {
        let lost = Look { lost: true, ..Look::default() };
        let mut gate = Gate::every(1);
        assert_eq!(gate.miss(|| lost), None);
        assert_eq!(gate.miss(Look::default), Some(Cause::Lost));
    }

    #[test]
    fn looks_are_due_once_a_period() {
        let mut gate = Gate::spinning();
        let mut looks = 0;
        for _ in 0..3 * Gate::PERIOD {
            assert_eq!(
                gate.miss(|| {
                    looks += 1;
                    Look::default()
                }),
                None
            );
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
