//! What one rank knows of a group's members and of the group's first failure.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use symmem_hal::types::{Rank, RankSet, Scope};
use symmem_hal::{Event, Fault, Health};

use crate::failure::Failure;

/// How a member ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It left the group in an orderly way.
    Left,
    /// Its process or thread ended without leaving.
    Lost,
}

type Alarm = Arc<dyn Fn() + Send + Sync>;
type InFlight = Box<dyn Fn() -> Vec<Event> + Send + Sync>;
type End = Box<dyn Fn() + Send + Sync>;
type Probe = Box<dyn Fn() -> Option<Failure> + Send + Sync>;

const OPEN: u64 = 0;
const LEFT: u64 = 1;
const RECOVERED: u64 = 2;

/// The host-side twin of a group's control page: who is gone, and the first failure.
///
/// Written by the watcher (who is gone) and by whoever finds a failure; read inside every wait.
pub struct Status {
    scope: Scope,
    /// Bits by group index. A gone member is in `left` or `lost`, and sets `any` last.
    left: Box<[AtomicU32]>,
    lost: Box<[AtomicU32]>,
    any: AtomicBool,
    /// 0 while the group takes work; 1 once it was left, 2 + the generation once it was recovered.
    closed: AtomicU64,
    failure: OnceLock<Failure>,
    alarms: Mutex<Vec<Alarm>>,
    probe: OnceLock<Probe>,
    in_flight: OnceLock<InFlight>,
    end: OnceLock<End>,
}

impl Status {
    pub(crate) fn new(scope: Scope, members: usize) -> Self {
        let words = || (0..members.div_ceil(32)).map(|_| AtomicU32::new(0)).collect();
        Status {
            scope,
            left: words(),
            lost: words(),
            any: AtomicBool::new(false),
            closed: AtomicU64::new(OPEN),
            failure: OnceLock::new(),
            alarms: Mutex::new(Vec::new()),
            probe: OnceLock::new(),
            in_flight: OnceLock::new(),
            end: OnceLock::new(),
        }
    }

    /// How the member of this index ended, if it did. One load while nobody is gone.
    ///
    /// A waiter that gets an answer looks at its data once more before it gives up: what the member
    /// wrote before it ended is visible after this call.
    #[must_use]
    pub fn gone(&self, index: usize) -> Option<Gone> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let bit = |words: &[AtomicU32]| {
            words
                .get(index / 32)
                .is_some_and(|w| w.load(Ordering::Acquire) >> (index % 32) & 1 == 1)
        };
        // Whoever left and then ended did so in an orderly way.
        if bit(&self.left) {
            Some(Gone::Left)
        } else if bit(&self.lost) {
            Some(Gone::Lost)
        } else {
            None
        }
    }

    /// Whether the member of this index ended without leaving, or did so after it had left.
    pub(crate) fn is_lost(&self, index: usize) -> bool {
        self.lost
            .get(index / 32)
            .is_some_and(|w| w.load(Ordering::Acquire) >> (index % 32) & 1 == 1)
    }

    /// All members that are gone, either way.
    #[must_use]
    pub fn all_gone(&self) -> RankSet {
        (0..self.left.len() * 32).filter(|i| self.gone(*i).is_some()).collect()
    }

    /// The failure to report of a gone member.
    #[must_use]
    pub fn peer_lost(&self, index: usize, gone: Gone) -> Failure {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        Failure::PeerLost { rank: Rank::in_scope(index, self.scope), left: gone == Gone::Left }
    }

    pub(crate) fn mark(&self, index: usize, gone: Gone) {
        let words = match gone {
            Gone::Left => &self.left,
            Gone::Lost => &self.lost,
        };
        if let Some(word) = words.get(index / 32) {
            word.fetch_or(1 << (index % 32), Ordering::AcqRel);
            self.any.store(true, Ordering::Release);
            self.alarm();
        }
    }

    /// Records a failure if it is the first; returns the first.
    #[doc(hidden)]
    pub fn fail(&self, failure: Failure) -> &Failure {
        let first = self.failure.get_or_init(|| failure);
        self.alarm();
        first
    }

    /// The first failure, or [`Failure::Left`] or [`Failure::Recovered`] once this rank has closed the
    /// group.
    ///
    /// # Errors
    ///
    /// That failure.
    pub fn check(&self) -> Result<(), Failure> {
        // What befalls the others afterwards, this rank's absence among it, is not its failure.
        match self.closed.load(Ordering::Acquire) {
            OPEN => {}
            LEFT => return Err(self.failure.get().cloned().unwrap_or(Failure::Left)),
            recovered => {
                let generation = u32::try_from(recovered - RECOVERED).unwrap_or(u32::MAX);
                return Err(Failure::Recovered { generation });
            }
        }
        if let Some(failure) = self.first() {
            return Err(failure.clone());
        }
        if super::fork::is_child() {
            return Err(Failure::Forked);
        }
        Ok(())
    }

    /// The first failure, found by this rank or told by another.
    fn first(&self) -> Option<&Failure> {
        if let Some(failure) = self.failure.get() {
            return Some(failure);
        }
        let told = self.probe.get().and_then(|probe| probe())?;
        Some(self.fail(told))
    }

    /// Lets [`check`](Self::check) look where the layer above keeps what other ranks report: the
    /// group's control page. The first call counts.
    #[doc(hidden)]
    pub fn set_probe(&self, probe: impl Fn() -> Option<Failure> + Send + Sync + 'static) {
        let _ = self.probe.set(Box::new(probe));
    }

    /// Lets the group know which operations of this rank are in flight: events of the streams that
    /// the layer above has used. The first call counts.
    #[doc(hidden)]
    pub fn set_in_flight(&self, events: impl Fn() -> Vec<Event> + Send + Sync + 'static) {
        let _ = self.in_flight.set(Box::new(events));
    }

    pub(crate) fn in_flight(&self) -> Vec<Event> {
        self.in_flight.get().map_or_else(Vec::new, |events| events())
    }

    /// Lets the layer above close what kernels look at, once this rank's last operation is done. The
    /// first call counts.
    #[doc(hidden)]
    pub fn set_end(&self, end: impl Fn() + Send + Sync + 'static) {
        let _ = self.end.set(Box::new(end));
    }

    /// No operation of this rank is in flight any more, and none comes.
    pub(crate) fn end(&self) {
        if let Some(end) = self.end.get() {
            end();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != OPEN
    }

    /// Whether this rank has left the group.
    pub(crate) fn has_left(&self) -> bool {
        self.closed.load(Ordering::Acquire) == LEFT
    }

    /// Takes no new work. Returns whether it took some before.
    pub(crate) fn close(&self) -> bool {
        self.close_as(LEFT)
    }

    /// As [`close`](Self::close), for a group of this generation.
    pub(crate) fn supersede(&self, generation: u32) -> bool {
        self.close_as(RECOVERED + u64::from(generation))
    }

    fn close_as(&self, how: u64) -> bool {
        let was_open =
            self.closed.compare_exchange(OPEN, how, Ordering::AcqRel, Ordering::Acquire).is_ok();
        self.alarm();
        was_open
    }

    /// Calls `wake` whenever a member goes or the group fails, until the group is dropped: how
    /// layers above wake what sleeps for a peer's word.
    #[doc(hidden)]
    pub fn on_change(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.alarms.lock().push(wake);
    }

    fn alarm(&self) {
        let alarms = self.alarms.lock().clone();
        alarms.iter().for_each(|wake| wake());
    }
}

impl Health for Status {
    fn failure(&self) -> Option<Arc<dyn Fault>> {
        self.first().map(|f| Arc::new(f.clone()) as Arc<dyn Fault>)
    }
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Status")
            .field("gone", &self.all_gone())
            .field("failure", &self.failure.get())
            .finish_non_exhaustive()
    }
}
