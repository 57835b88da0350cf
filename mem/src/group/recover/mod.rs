//! Recovery: the ranks that are left make a new group.

pub(crate) mod roll;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symmem_hal::types::RankSet;
use symmem_hal::{Fault, Kind, Memory, SyncError, Wait};

use super::{Group, Plan, quarantine};
use crate::failure::Failure;
use crate::liveness::{Gone, Status};
use crate::memory::retire;
use crate::rendezvous::RendezvousError;
use crate::rendezvous::record::Step as Call;
use crate::store::{Store, StoreError};
use roll::{Roll, Step, View};

/// How long a rank waits between two looks at the roll, at most.
const LOOK: Duration = Duration::from_millis(10);

/// Why a group could not be recovered. But for [`Failure::Recovered`] and where this rank has no place
/// in the new group, it can be tried again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// This rank has no place in the new group: [`Failure::Excluded`] where the others went on without
    /// it, [`Failure::Left`], [`Failure::Recovered`]; or [`Failure::StoreLost`].
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Another thread of this rank is at it.
    #[error("another thread of this rank recovers the group: take the group that it gets")]
    InProgress,
    /// Operations of this rank on the group did not end in time.
    #[error("this rank's operations on the group have not ended: {0}; recover once they have")]
    Stream(#[from] SyncError),
    /// The store did not answer as it should.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Those who agreed to go on did not meet.
    #[error("in a group of ranks {members:?} of this one: {source}")]
    Rendezvous {
        /// The new group's ranks, as ranks of this one.
        members: Vec<usize>,
        /// What went wrong; it counts ranks in the new group.
        source: RendezvousError,
    },
}

impl Fault for RecoverError {
    fn kind(&self) -> Kind {
        match self {
            RecoverError::Failed(e) => e.kind(),
            RecoverError::InProgress => Kind::InvalidArgument,
            RecoverError::Stream(e) => e.kind(),
            RecoverError::Store(e) => e.kind(),
            RecoverError::Rendezvous { source, .. } => source.kind(),
        }
    }

    /// As ranks of the old group.
    fn ranks(&self) -> RankSet {
        match self {
            RecoverError::Failed(e) => e.ranks(),
            RecoverError::Rendezvous { members, source } => {
                source.ranks().iter().filter_map(|rank| members.get(rank).copied()).collect()
            }
            _ => RankSet::new(),
        }
    }
}

/// What has been tried of a group's recovery on this rank.
#[derive(Debug)]
pub(super) struct Attempts {
    /// The last generation that this rank stood for.
    generation: u32,
    /// Who was in it: global ranks.
    members: Vec<u32>,
    /// All memory of this rank that the old group's members may have mapped, from the first attempt on.
    own: Vec<Memory>,
    /// Whether the others were told that this rank takes no further part in the old group.
    told: bool,
    /// Whether that is over, for better or worse.
    over: Option<Failure>,
}

impl Attempts {
    pub(super) fn new(generation: u32, members: &[u32]) -> Self {
        let members = members.to_vec();
        Attempts { generation, members, own: Vec::new(), told: false, over: None }
    }
}

/// What this rank knows of the old group's members, by global rank.
struct Members<'a> {
    status: &'a Status,
    ranks: &'a [u32],
    /// Whether they stood for an earlier generation, for which they left the old group.
    stood: bool,
}

impl Members<'_> {
    fn index(&self, rank: u32) -> Option<usize> {
        self.ranks.iter().position(|member| *member == rank)
    }
}

impl View for Members<'_> {
    fn is_expected(&self, rank: u32) -> bool {
        let is_gone = |index| match self.status.gone(index) {
            Some(Gone::Left) => !self.stood || self.status.is_lost(index),
            Some(Gone::Lost) => true,
            None => false,
        };
        self.index(rank).is_some_and(|index| !is_gone(index))
    }

    fn is_lost(&self, rank: u32) -> bool {
        self.index(rank).is_none_or(|index| self.status.is_lost(index))
    }
}

/// A bound on several calls together.
struct Bound<'a> {
    wait: &'a Wait,
    deadline: Instant,
}

impl Bound<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What is left of it, for one call.
    fn rest(&self) -> Wait {
        self.part(self.left())
    }

    fn part(&self, time: Duration) -> Wait {
        let wait = Wait::timeout(time);
        match self.wait.cancel() {
            Some(token) => wait.with_cancel(token.clone()),
            None => wait,
        }
    }
}

impl Group {
    /// Makes a new group of those members of this one that call this, of the next generation: with
    /// fresh pads, workspace and lanes. This group takes no more work from the call on
    /// ([`Failure::Recovered`]), whatever becomes of it.
    ///
    /// Half of `wait` is for members to come, all of them but those that are lost or have left; who
    /// has not come then is left behind, and gets [`Failure::Excluded`] when it comes. The rest is for
    /// the new group to be made. A rank that dies meanwhile costs another generation, not the call.
    ///
    /// Allocations stay readable through their owners. They can be made symmetric in the new group,
    /// except those that a rank which is gone from it can still write: that is
    /// [`RendezvousError::Quarantined`] until the rank is known to have ended. See
    /// [`quarantined`](crate::quarantined).
    ///
    /// Uses the store through which the ranks first met.
    ///
    /// ```
    /// let sizes = symmem_mem::launch::threads(3, |group| {
    ///     if group.rank().index() == 1 {
    ///         return Ok(None); // leaves
    ///     }
    ///     let group = group.recover(&group.wait())?;
    ///     Ok::<_, symmem_mem::RecoverError>(Some((group.size(), group.generation())))
    /// })?;
    /// let sizes: Vec<_> = sizes.into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!(sizes, [Some((2, 1)), None, Some((2, 1))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecoverError`].
    pub fn recover(&self, wait: &Wait) -> Result<Group, RecoverError> {
        let bound = Bound { wait, deadline: wait.deadline() };
        let mut attempts = self.0.recovery.try_lock().ok_or(RecoverError::InProgress)?;
        if let Some(failure) = &attempts.over {
            return Err(failure.clone().into());
        }
        // Whether the group has failed, and of what, is no obstacle.
        if let Err(failure @ Failure::Forked) = self.check() {
            return Err(failure.into());
        }
        if self.0.status.has_left() {
            return Err(Failure::Left.into());
        }
        let span = tracing::info_span!("recover", group = self.id());
        let _entered = span.enter();
        let inner = &*self.0;
        if inner.status.supersede(attempts.generation + 1) {
            attempts.own = self.own_memories();
        }
        for event in inner.status.in_flight() {
            event.synchronize(&bound.rest())?;
        }
        loop {
            let generation = attempts.generation + 1;
            let enrolled = self.enrol(generation, &attempts.members, &bound);
            // Once this rank stands in the roll, where those who hear it look for it.
            if !core::mem::replace(&mut attempts.told, true) {
                inner.farewell().say();
            }
            let members = match enrolled? {
                Ok(members) => members,
                Err(others) => {
                    attempts.over = Some(Failure::Excluded { generation });
                    self.part_with(&|rank| others.contains(&rank), &mut attempts.own);
                    return Err(Failure::Excluded { generation }.into());
                }
            };
            attempts.generation = generation;
            attempts.members.clone_from(&members);
            match self.remake(generation, &members, &bound) {
                Ok(group) => {
                    attempts.over = Some(Failure::Recovered { generation });
                    self.part_with(&|rank| !members.contains(&rank), &mut attempts.own);
                    return Ok(group);
                }
                // One of them has ended, or does not come: without it, then.
                Err(e) if matches!(e.kind(), Kind::PeerLost | Kind::TimedOut) && worth(&bound) => {}
                Err(source) => {
                    let index = |rank| inner.members.iter().position(|member| *member == rank);
                    let members = members.iter().filter_map(|rank| index(*rank)).collect();
                    return Err(RecoverError::Rendezvous { members, source });
                }
            }
        }
    }

    /// Stands for a generation: who goes on, with this rank among them or not.
    fn enrol(
        &self,
        generation: u32,
        members: &[u32],
        bound: &Bound<'_>,
    ) -> Result<Result<Vec<u32>, Vec<u32>>, RecoverError> {
        let inner = &*self.0;
        let (world, me) = (&inner.world, inner.world.rank);
        let key = format!("recover/{}/{:016x}/{generation}", world.run, inner.root);
        let patience = Instant::now() + bound.left() / 2;
        let stood = generation > inner.world.generation + 1;
        let view = Members { status: &inner.status, ranks: &inner.members, stood };
        let mut found = Roll::default();
        let mut stands = Vec::new();
        let mut pause = Duration::from_micros(500);
        loop {
            let overdue = Instant::now() >= patience;
            let next = match found.next(me, members, &view, overdue) {
                Step::Enter(ranks) => return Ok(Ok(ranks)),
                Step::Excluded(ranks) => return Ok(Err(ranks)),
                Step::Propose(roll) => roll.encode(),
                Step::Watch => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LOOK);
                    // Nothing changes where what was found still stands.
                    stands.clone()
                }
            };
            stands = compare_set(&*world.store, &key, &stands, &next, &bound.rest())?;
            found = Roll::decode(&stands).unwrap_or_default();
        }
    }

    /// The new group of those who go on.
    fn remake(
        &self,
        generation: u32,
        members: &[u32],
        bound: &Bound<'_>,
    ) -> Result<Group, RendezvousError> {
        let inner = &*self.0;
        let world = Arc::new(inner.world.succeed(inner.root, generation));
        let me = members.iter().position(|rank| *rank == world.rank).unwrap_or(0);
        let plan = Plan {
            id: world.next_group_id(members),
            root: Some(inner.root),
            members: Arc::from(members),
            me,
            device: inner.device.clone(),
            options: inner.options.clone(),
            step: Call::Recover,
        };
        // Half of what is left, so that another attempt is possible.
        Group::create(&world, plan, &bound.part(bound.left() / 2))
    }

    /// All memory of this rank that members of the group may have mapped.
    fn own_memories(&self) -> Vec<Memory> {
        let inner = &*self.0;
        let mut memories = inner.caches.memories();
        memories.extend(retire::of_group(inner.scope));
        memories.extend(inner.regions.get(inner.me).cloned());
        memories
    }

    /// Ends what there is with former members: links, and the use of memory that they can write. Those
    /// who have left said so after their last operation, and have nothing more to do with this group.
    fn part_with(&self, former: &dyn Fn(u32) -> bool, own: &mut Vec<Memory>) {
        let inner = &*self.0;
        let members = inner.members.iter().copied().enumerate();
        let members = members.filter(|(i, _)| inner.status.gone(*i) != Some(Gone::Left));
        let former: BTreeSet<u32> = members
            .map(|(_, rank)| rank)
            .filter(|rank| *rank != inner.world.rank && former(*rank))
            .collect();
        former.iter().for_each(|rank| inner.world.voice.exclude(*rank));
        quarantine::hold(&inner.world.register, former, core::mem::take(own));
        retire::forget_group(inner.scope);
    }
}

/// Whether there is time for another attempt.
fn worth(bound: &Bound<'_>) -> bool {
    !bound.left().is_zero() && !bound.wait.is_cancelled()
}

fn compare_set(
    store: &dyn Store,
    key: &str,
    expected: &[u8],
    desired: &[u8],
    wait: &Wait,
) -> Result<Vec<u8>, RecoverError> {
    store.compare_set(key, expected, desired, wait).map_err(|e| match e {
        StoreError::Lost { .. } => Failure::StoreLost(e.to_string()).into(),
        other => other.into(),
    })
}
