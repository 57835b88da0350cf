//! Delays of a rank at one step of a meeting, for tests: compiled with the feature `stalls` alone.
//!
//! Who makes a group or meets for a rendezvous says at which step it is (`at`), in the thread of the
//! call. Without the feature `at` is an empty function.

/// The enum, and all its values.
macro_rules! steps {
    ($($(#[doc = $doc:literal])+ $step:ident,)+) => {
        /// A step of a meeting: a rank is about to take it, and has taken all before.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $($(#[doc = $doc])+ $step,)+
        }

        #[cfg(feature = "stalls")]
        impl Step {
            /// Every step.
            pub const ALL: &'static [Step] = &[$(Step::$step),+];
        }
    };
}

steps! {
    /// Allocates what it gives to a new group.
    Allocate,
    /// Makes handles of its memory.
    Export,
    /// Goes to the meeting point, for a round: between processes.
    Connect,
    /// Proves there that it knows the run's token: between processes.
    Prove,
    /// Gives its part of the round.
    Come,
    /// Takes the others' parts: between processes.
    Take,
    /// Compares all records.
    Compare,
    /// Maps a peer's memory.
    Map,
    /// Makes what it needs of all that is mapped.
    Finish,
    /// Votes for what it has mapped, or against.
    Vote,
    /// Keeps it: nobody was against.
    Keep,
}

/// This rank is about to take a step.
#[cfg(not(feature = "stalls"))]
#[inline(always)]
pub(crate) fn at(_: Step) {}

#[cfg(feature = "stalls")]
pub(crate) use injector::at;
#[cfg(feature = "stalls")]
pub use injector::{Held, Stall};

#[cfg(feature = "stalls")]
mod injector {
    use core::cell::RefCell;
    use core::marker::PhantomData;
    use std::time::{Duration, Instant};

    use symmem_hal::CancelToken;

    use super::Step;

    /// No stall is longer: nothing waits without a bound.
    const MOST: Duration = Duration::from_secs(60);

    /// What a stall looks at, so often: whether it is over.
    const SLICE: Duration = Duration::from_millis(1);

    /// Where the calls of a thread, which is a rank's, are delayed.
    #[derive(Clone, Debug)]
    pub struct Stall {
        /// At which step.
        pub step: Step,
        /// Once: after it has come there so often.
        pub after: u64,
        /// For how long.
        pub time: Duration,
        /// What ends it before.
        pub end: CancelToken,
    }

    /// What is set in a thread, and what came of it.
    struct Set {
        stall: Stall,
        /// How often it has come to each step.
        passed: [u64; Step::ALL.len()],
        was_held: bool,
    }

    thread_local! {
        static SET: RefCell<Option<Set>> = const { RefCell::new(None) };
    }

    /// A stall while it lasts, of the thread that began it.
    #[derive(Debug)]
    #[must_use = "ends when dropped"]
    pub struct Held {
        not_send: PhantomData<*const ()>,
    }

    impl Stall {
        /// Begins, in place of any other of this thread.
        pub fn begin(self) -> Held {
            let set = Set { stall: self, passed: [0; Step::ALL.len()], was_held: false };
            SET.set(Some(set));
            Held { not_send: PhantomData }
        }
    }

    impl Held {
        /// How often the thread has come to a step since.
        #[must_use]
        pub fn passed(&self, step: Step) -> u64 {
            SET.with_borrow(|set| set.as_ref().map_or(0, |set| set.passed[step as usize]))
        }

        /// Whether it was delayed.
        #[must_use]
        pub fn was_held(&self) -> bool {
            SET.with_borrow(|set| set.as_ref().is_some_and(|set| set.was_held))
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            SET.set(None);
        }
    }

    /// This rank is about to take a step.
    pub(crate) fn at(step: Step) {
        let held = SET.with_borrow_mut(|set| {
            let set = set.as_mut()?;
            let passed = &mut set.passed[step as usize];
            let is_here = set.stall.step == step && set.stall.after == *passed;
            *passed += 1;
            set.was_held |= is_here;
            is_here.then(|| set.stall.clone())
        });
        let Some(Stall { time, end, .. }) = held else { return };
        let (since, time) = (Instant::now(), time.min(MOST));
        while since.elapsed() < time && !end.is_cancelled() {
            std::thread::sleep(SLICE.min(time));
        }
    }
}
