//! Delays of one rank at one step of the protocols, for tests: compiled with the feature `stalls` alone.
//!
//! Executors say at which step they are (`at`); kernels do by `SYMMEM_STALL`, which is empty unless
//! they are compiled with `SYMMEM_STALLS`. Without the feature `at` is an empty function.

#[cfg(feature = "stalls")]
use std::time::Duration;

use crate::host::Words;

/// The enum, all its values, and what kernels call them.
macro_rules! steps {
    ($($(#[doc = $doc:literal])+ $step:ident = $kernels:literal,)+) => {
        /// A step of a protocol: a rank is about to take it, and has taken all before.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Step {
            $($(#[doc = $doc])+ $step,)+
        }

        #[cfg(feature = "stalls")]
        impl Step {
            /// Every step.
            pub const ALL: &'static [Step] = &[$(Step::$step),+];

            /// Its name in kernels.
            #[must_use]
            pub const fn in_kernels(self) -> &'static str {
                match self {
                    $(Step::$step => $kernels),+
                }
            }
        }
    };
}

steps! {
    /// Reads its epoch.
    Enter = "STALL_ENTER",
    /// Waits until it may store into its peers' words.
    AwaitReaders = "STALL_AWAIT_READERS",
    /// Shows its call.
    PublishHeader = "STALL_PUBLISH_HEADER",
    /// Stores a packet.
    PutPacket = "STALL_PUT_PACKET",
    /// Looks for a packet.
    PollPacket = "STALL_POLL_PACKET",
    /// Stores into staging.
    WriteStaging = "STALL_WRITE_STAGING",
    /// Raises a flag.
    RaiseFlag = "STALL_RAISE_FLAG",
    /// Waits for a flag.
    AwaitFlag = "STALL_AWAIT_FLAG",
    /// Reads what a peer has staged.
    ReadStaging = "STALL_READ_STAGING",
    /// Compares its call with its peers'.
    Compare = "STALL_COMPARE",
    /// Clears what is so old that its epoch comes again.
    Scrub = "STALL_SCRUB",
    /// Advances its epoch.
    Exit = "STALL_EXIT",
    /// Reports a failure.
    Report = "STALL_REPORT",
    /// Says that it has come to a barrier.
    Arrive = "STALL_ARRIVE",
    /// Waits for those who have not.
    AwaitArrivals = "STALL_AWAIT_ARRIVALS",
    /// Waits until a slot is empty.
    AwaitEmpty = "STALL_AWAIT_EMPTY",
    /// Stores the data that goes before a signal.
    PutData = "STALL_PUT_DATA",
    /// Fills an empty slot.
    FillSlot = "STALL_FILL_SLOT",
    /// Waits until a slot is full.
    AwaitFull = "STALL_AWAIT_FULL",
    /// Empties a full slot.
    EmptySlot = "STALL_EMPTY_SLOT",
    /// Begins the repair of a channel.
    Reset = "STALL_RESET",
    /// Waits for the others who repair it.
    AwaitReset = "STALL_AWAIT_RESET",
}

/// This rank is about to take a step.
#[cfg(not(feature = "stalls"))]
#[inline(always)]
pub(crate) fn at(_: &Words<'_>, _: Step) {}

#[cfg(feature = "stalls")]
pub(crate) use injector::at;
#[cfg(feature = "stalls")]
pub use injector::{Held, Stall};

#[cfg(feature = "stalls")]
mod injector {
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    use parking_lot::Mutex;
    use symmem_mem::Group;

    use super::{Duration, Step, Words};
    use crate::protocol::ControlMemory;
    use crate::shared::{PrepareError, Shared};

    /// No stall is longer: nothing waits without a bound.
    const MOST: Duration = Duration::from_secs(60);

    /// What a stall looks at, so often: whether it is over.
    const SLICE: Duration = Duration::from_millis(1);

    /// Who is delayed where.
    #[derive(Clone, Copy, Debug)]
    pub struct Stall {
        /// Which rank of its group.
        pub rank: usize,
        /// At which step.
        pub step: Step,
        /// For how long; less where the group fails meanwhile.
        pub time: Duration,
        /// At the first of so many times that it comes there; at none for 0.
        pub every: u64,
    }

    /// What is set, of the whole process.
    static STALL: Mutex<Option<Stall>> = Mutex::new(None);
    /// Whether anything is.
    static IS_SET: AtomicBool = AtomicBool::new(false);
    /// How often the rank has come to the step.
    static PASSED: AtomicU64 = AtomicU64::new(0);
    /// How often it was delayed there.
    static HELD: AtomicU64 = AtomicU64::new(0);

    /// A stall while it lasts, of all groups of this process; of a group on a GPU, of that group.
    #[derive(Debug)]
    #[must_use = "ends when dropped"]
    pub struct Held<'g> {
        group: &'g Group,
    }

    impl Stall {
        /// Begins, in place of any other.
        ///
        /// # Errors
        ///
        /// [`PrepareError`] where the group's first use fails.
        pub fn begin(self, group: &Group) -> Result<Held<'_>, PrepareError> {
            let shared = Shared::of(group)?;
            PASSED.store(0, Ordering::Relaxed);
            HELD.store(0, Ordering::Relaxed);
            *STALL.lock() = Some(self);
            IS_SET.store(true, Ordering::Release);
            if shared.executor.host().is_none() && group.rank().index() == self.rank {
                shared.control().set_stall(self.step, self.time.min(MOST), self.every);
            }
            Ok(Held { group })
        }
    }

    impl Held<'_> {
        /// How often the rank has come to the step since, and how often it was delayed.
        #[must_use]
        pub fn counts(&self) -> (u64, u64) {
            match Shared::of(self.group) {
                Ok(shared) if shared.executor.host().is_none() => shared.control().stalls(),
                _ => (PASSED.load(Ordering::Relaxed), HELD.load(Ordering::Relaxed)),
            }
        }
    }

    impl Drop for Held<'_> {
        fn drop(&mut self) {
            IS_SET.store(false, Ordering::Release);
            *STALL.lock() = None;
            if let Ok(shared) = Shared::of(self.group)
                && shared.executor.host().is_none()
            {
                shared.control().end_stall();
            }
        }
    }

    /// This rank is about to take a step.
    #[inline]
    pub(crate) fn at(memory: &Words<'_>, step: Step) {
        if IS_SET.load(Ordering::Relaxed) {
            hold(memory, step);
        }
    }

    #[cold]
    fn hold(memory: &Words<'_>, step: Step) {
        let rank = ControlMemory::rank(memory);
        let stall = *STALL.lock();
        let Some(stall) = stall.filter(|stall| stall.step == step && stall.rank == rank) else {
            return;
        };
        let passed = PASSED.fetch_add(1, Ordering::Relaxed);
        if passed.checked_rem(stall.every) != Some(0) {
            return;
        }
        HELD.fetch_add(1, Ordering::Relaxed);
        let (since, time) = (Instant::now(), stall.time.min(MOST));
        let failed = || memory.control(rank).is_some_and(|page| page.is_aborted());
        while since.elapsed() < time && !failed() {
            std::thread::sleep(SLICE.min(time));
        }
    }
}

#[cfg(all(test, feature = "stalls", feature = "cuda"))]
mod tests {
    use super::Step;

    #[test]
    fn kernels_have_the_same_steps() {
        let (_, text) = crate::gpu::SYMMEM_STALLS_CUH;
        let body = text.split_once("enum Stall : u32 {").map_or("", |(_, rest)| rest);
        let body = body.split_once('}').map_or("", |(body, _)| body);
        let theirs: Vec<_> =
            body.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let ours: Vec<_> = Step::ALL.iter().map(|step| step.in_kernels()).collect();
        assert_eq!(theirs, ours);
        for (number, step) in Step::ALL.iter().enumerate() {
            assert_eq!(*step as usize, number);
        }
    }
}
