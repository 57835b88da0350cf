//! When a wait that misses its data may end.

/// Why a wait ends without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The group failed.
    Aborted,
    /// This rank, whose word is missing, is gone.
    Lost(usize),
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
    /// A rank whose word is missing and whose lost bit is set.
    pub lost: Option<usize>,
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
            return Some(Cause::Aborted);
        }
        self.lost
            .map(Cause::Lost)
            .or(self.cancelled.then_some(Cause::Cancelled))
            .or(self.overdue.then_some(Cause::Overdue))
    }
}

/// Decides, miss by miss, whether a wait goes on. Data first: a cause ends the wait only if two
/// looks find it with a poll between them that missed, since a writer may store its word and die,
/// or just make it before the deadline.
///
/// One gate serves an operation from its entry to its exit. Poll the data before each
/// [`miss`](Self::miss).
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
    ///
    /// # Errors
    ///
    /// That of `look`.
    pub fn miss<E>(&mut self, look: impl FnOnce() -> Result<Look, E>) -> Result<Option<Cause>, E> {
        self.misses += 1;
        if self.misses < self.period && self.seen.is_none() {
            return Ok(None);
        }
        self.misses = 0;
        let before = self.seen;
        self.seen = look()?.cause();
        Ok(self.seen.filter(|_| self.seen == before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::convert::Infallible;

    fn lost(rank: usize) -> Look {
        Look { lost: Some(rank), ..Look::default() }
    }

    fn miss(gate: &mut Gate, look: Look) -> Option<Cause> {
        let Ok(cause) = gate.miss(|| Ok::<_, Infallible>(look));
        cause
    }

    #[test]
    fn a_cause_ends_the_wait_only_after_one_more_poll() {
        let mut gate = Gate::every(3);
        assert_eq!(miss(&mut gate, lost(3)), None);
        assert_eq!(miss(&mut gate, lost(3)), None);
        assert_eq!(miss(&mut gate, lost(3)), None);
        assert_eq!(miss(&mut gate, lost(3)), Some(Cause::Lost(3)));
    }

    #[test]
    fn a_lost_rank_whose_word_arrived_does_not_end_the_wait_for_another() {
        let mut gate = Gate::every(1);
        assert_eq!(miss(&mut gate, lost(3)), None);
        assert_eq!(miss(&mut gate, Look::default()), None);
        assert_eq!(miss(&mut gate, lost(4)), None);
        assert_eq!(miss(&mut gate, lost(4)), Some(Cause::Lost(4)));
    }

    #[test]
    fn looks_are_due_once_a_period() {
        let mut gate = Gate::spinning();
        let mut looks = 0;
        for _ in 0..3 * Gate::PERIOD {
            let look = || {
                looks += 1;
                Ok::<_, Infallible>(Look::default())
            };
            assert_eq!(gate.miss(look), Ok(None));
        }
        assert_eq!(looks, 3);
    }

    #[test]
    fn the_failure_of_the_group_comes_first() {
        let all = Look { aborted: true, lost: Some(1), cancelled: true, overdue: true };
        assert_eq!(all.cause(), Some(Cause::Aborted));
        assert_eq!(Look { aborted: false, ..all }.cause(), Some(Cause::Lost(1)));
        assert_eq!(Look { overdue: true, ..Look::default() }.cause(), Some(Cause::Overdue));
        assert_eq!(Look::default().cause(), None);
    }
}
