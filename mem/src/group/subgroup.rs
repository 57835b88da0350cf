//! Groups of some of a group's ranks.

use std::sync::Arc;

use symmem_hal::types::{Rank, RankSet};
use symmem_hal::{Device, Fault, Kind, Wait};

use super::{Group, Options, Plan, RankError};
use crate::exchange::Part;
use crate::failure::Failure;
use crate::rendezvous::RendezvousError;
use crate::rendezvous::record::Step;

/// Why a sub-group could not be made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubgroupError {
    /// A rank is none of this group's.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A rank is named twice.
    #[error("rank {rank} is named twice: name each once")]
    Twice {
        /// Which.
        rank: Rank,
    },
    /// This rank is not among them, so it cannot make the group.
    #[error("this rank ({rank}) is not among the sub-group's; only its members make it")]
    NotMember {
        /// This rank.
        rank: Rank,
    },
    /// The parent group has failed, or this rank has left it.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The members did not meet or disagree.
    #[error("in a sub-group of ranks {members:?}, numbered from 0 in that order: {cause}")]
    Rendezvous {
        /// The sub-group's ranks, as ranks of the parent.
        members: Vec<usize>,
        /// What went wrong; it counts ranks in the sub-group.
        cause: RendezvousError,
    },
}

impl Fault for SubgroupError {
    fn kind(&self) -> Kind {
        match self {
            SubgroupError::Failed(e) => e.kind(),
            SubgroupError::Rendezvous { cause, .. } => cause.kind(),
            _ => Kind::InvalidArgument,
        }
    }

    /// As ranks of the parent.
    fn ranks(&self) -> RankSet {
        match self {
            SubgroupError::Failed(e) => e.ranks(),
            SubgroupError::Rendezvous { members, cause } => {
                cause.ranks().iter().filter_map(|rank| members.get(rank).copied()).collect()
            }
            _ => RankSet::new(),
        }
    }
}

/// A sub-group about to be made; see [`Group::subgroup`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before create()"]
pub struct Subgroup<'a> {
    group: &'a Group,
    ranks: Vec<Rank>,
    options: Options,
    device: Device,
}

impl Group {
    /// Begins a group of some of this group's ranks, in the given order, with this group's options
    /// and device. Collective among those ranks alone; sub-groups may overlap.
    ///
    /// ```no_run
    /// # fn f(group: &symmem_mem::Group) -> Result<(), Box<dyn std::error::Error>> {
    /// let pair = group.subgroup([group.rank_at(0)?, group.rank_at(2)?]).create(&group.wait())?;
    /// # Ok(()) }
    /// ```
    pub fn subgroup(&self, ranks: impl IntoIterator<Item = Rank>) -> Subgroup<'_> {
        Subgroup {
            group: self,
            ranks: ranks.into_iter().collect(),
            options: self.options().clone(),
            device: self.device().clone(),
        }
    }

    /// Splits the group by colour; collective among all its ranks. Ranks of one colour form a
    /// group, ordered by `key`, then by rank here; `None` takes no part and gets no group.
    ///
    /// # Errors
    ///
    /// [`SubgroupError`] where ranks do not meet.
    pub fn split(
        &self,
        color: Option<u32>,
        key: u32,
        wait: &Wait,
    ) -> Result<Option<Group>, SubgroupError> {
        self.check()?;
        let wait = &wait.begun();
        let word = color.map_or(u64::MAX, u64::from);
        let mut payload = word.to_le_bytes().to_vec();
        payload.extend(key.to_le_bytes());
        let parts = self
            .meeting(wait)
            .and_then(|mut turn| self.gather(&mut turn, Part::plain(payload), wait))
            .map_err(|e| self.all_of_us(e.into()))?;
        let mut members: Vec<(u32, usize)> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let fields = part.payload.split_first_chunk::<8>();
            let Some((their_color, rest)) = fields else { return Err(self.other_call(index)) };
            let Ok(their_key) = rest.try_into().map(u32::from_le_bytes) else {
                return Err(self.other_call(index));
            };
            if color.is_some() && u64::from_le_bytes(*their_color) == word {
                members.push((their_key, index));
            }
        }
        if color.is_none() {
            return Ok(None);
        }
        members.sort_unstable();
        let ranks =
            members.iter().map(|(_, index)| self.rank_at(*index)).collect::<Result<Vec<_>, _>>()?;
        self.subgroup(ranks).make(Step::Split, wait).map(Some)
    }

    fn other_call(&self, index: usize) -> SubgroupError {
        self.all_of_us(RendezvousError::Unreadable { ranks: RankSet::one(index) })
    }

    /// An error of the meeting of all ranks that a split begins with.
    fn all_of_us(&self, cause: RendezvousError) -> SubgroupError {
        SubgroupError::Rendezvous { members: (0..self.size()).collect(), cause }
    }
}

impl Subgroup<'_> {
    /// Other options than the parent's.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Makes the group.
    ///
    /// # Errors
    ///
    /// [`SubgroupError`]; bad ranks are found before anybody is spoken to.
    pub fn create(self, wait: &Wait) -> Result<Group, SubgroupError> {
        self.make(Step::CreateGroup, wait)
    }

    fn make(self, step: Step, wait: &Wait) -> Result<Group, SubgroupError> {
        let mut seen = RankSet::new();
        let mut members = Vec::with_capacity(self.ranks.len());
        let mut me = None;
        for (place, rank) in self.ranks.iter().enumerate() {
            let index = self.group.index_of(*rank)?;
            if seen.contains(index) {
                return Err(SubgroupError::Twice { rank: *rank });
            }
            seen.insert(index);
            members.push(self.group.global_ranks()[index]);
            if *rank == self.group.rank() {
                me = Some(place);
            }
        }
        let me = me.ok_or(SubgroupError::NotMember { rank: self.group.rank() })?;
        self.group.check()?;
        let world = self.group.world();
        let plan = Plan {
            id: world.next_group_id(&members),
            root: None,
            members: Arc::from(members),
            me,
            device: self.device,
            options: self.options,
            step,
        };
        let parents = self.ranks.iter().map(|rank| rank.index()).collect();
        Group::create(world, plan, wait)
            .map_err(|cause| SubgroupError::Rendezvous { members: parents, cause })
    }
}
