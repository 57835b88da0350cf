//! What a rendezvous leaves: memory of each member, mapped here, and the places of allocations in it.

use std::sync::{Arc, Weak};

use symmem_hal::types::{Bytes, RankSet, Scope};
use symmem_hal::{Device, DevicePtr, Memory};

use super::multicast::{MulticastMapping, NoMulticast};
use super::table::Table;
use crate::liveness::{Message, Status, Voice};
use crate::memory::ledger::Token;
use crate::memory::retire::Mapped;

/// One memory of each member, mapped here as a whole. Tells the others when it goes.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub group: Membership,
    pub ordinal: u64,
    /// By group rank, this rank's own included.
    pub memories: Vec<Memory>,
    /// Their addresses, for kernels.
    pub table: Table,
    /// The one address that stands for all of them.
    pub multicast: Result<MulticastMapping, NoMulticast>,
}

/// Where one allocation is in the memories of a mapping: the same place on every member.
#[derive(Debug)]
pub(crate) struct Place {
    pub mapping: Arc<Mapping>,
    /// Which rendezvous of the group agreed on it.
    pub ordinal: u64,
    pub offset: Bytes,
    pub bytes: Bytes,
    /// The addresses of the members' allocations, where they are not those of the memories.
    pub table: Option<Table>,
    /// A pool's block: held by whoever can reach the members'.
    pub token: Option<Arc<Token>>,
}

/// Whose mapping it is, and how to tell the others that it is gone.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub scope: Scope,
    pub id: u64,
    pub me: usize,
    pub members: Arc<[u32]>,
    pub device: Device,
    pub voice: Arc<dyn Voice>,
    pub status: Weak<Status>,
}

impl Place {
    /// The address of a member's allocation.
    pub(crate) fn base(&self, index: usize) -> DevicePtr {
        let base = self.mapping.memories[index].base();
        base.checked_add(self.offset).unwrap_or(DevicePtr::NULL)
    }

    /// The address that stands for all members' allocations.
    pub(crate) fn multicast(&self) -> Result<DevicePtr, NoMulticast> {
        let base = self.mapping.multicast()?;
        Ok(base.checked_add(self.offset).unwrap_or(DevicePtr::NULL))
    }

    /// The table of those addresses.
    pub(crate) fn table(&self) -> &Table {
        self.table.as_ref().unwrap_or(&self.mapping.table)
    }
}

impl Mapping {
    pub(crate) fn device(&self) -> &Device {
        &self.group.device
    }

    /// The address that stands for all members' memories.
    pub(crate) fn multicast(&self) -> Result<DevicePtr, NoMulticast> {
        self.multicast.as_ref().map(MulticastMapping::base).map_err(Clone::clone)
    }

    /// Who has this rank's part of it mapped, to the retire list.
    pub(crate) fn mapped_by_peers(&self) -> Option<Mapped> {
        // A group that this rank has closed tells it nothing any more.
        let status = self.group.status.upgrade().filter(|s| !s.is_closed())?;
        let mut members = RankSet::first(self.memories.len());
        members.remove(self.group.me);
        status.all_gone().iter().for_each(|gone| members.remove(gone));
        (!members.is_empty()).then_some(Mapped {
            scope: self.group.scope,
            ordinal: self.ordinal,
            members,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the memory that is bound to it.
        self.multicast = Err(NoMulticast::NotAsked);
        self.memories.clear();
        for (index, member) in self.group.members.iter().enumerate() {
            if index != self.group.me {
                let message = Message::Released { group: self.group.id, ordinal: self.ordinal };
                self.group.voice.send(*member, message);
            }
        }
    }
}
