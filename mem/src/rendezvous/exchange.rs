//! The meetings behind group creation and rendezvous.

use serde::{Deserialize, Serialize};
use symmem_hal::types::{DeviceUuid, RankSet};
use symmem_hal::{
    AccessError, Device, ExportError, Fault, ImportError, Kind, Memory, PeerAccessError,
};

use super::RendezvousError;
use super::record::{Record, compare};
use crate::exchange::{Exchange, ExchangeError, Handle, Part};
use crate::memory::ledger::Ledger;
use crate::stalls::{self, Step};

/// A round of all members.
pub(super) type Gather<'a> = &'a mut dyn FnMut(Part) -> Result<Vec<Part>, ExchangeError>;

/// What is made of all memories mapped, before a rank votes for them.
type Finish<'a> = &'a dyn Fn(&[Memory]) -> Result<(), AccessError>;

/// What a rank says of its part, once it has seen the others'.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Vote {
    /// All of it is mapped.
    Yes,
    /// Something is not.
    No,
    /// This rank's device does not reach a peer's.
    Unreachable { peer: u32, reason: String },
}

/// How a rank maps what others send.
pub(crate) struct Imports<'a> {
    pub device: &'a Device,
    /// Whether the others are threads of this process, which share mappings.
    pub threads: bool,
    pub me: usize,
    /// Whether a global rank is on this one's host, and whether any is not.
    pub exchange: &'a dyn Exchange,
}

/// What a rank gives to an exchange.
pub(crate) struct Given<'a> {
    /// What every member is to map.
    pub memory: &'a Memory,
    /// What those on this rank's host are to map as well: memory of the CPU.
    pub beside: Option<&'a Memory>,
}

/// What an exchange of memories gives.
pub(crate) struct Exchanged {
    /// Every member's, by group rank.
    pub memories: Vec<Memory>,
    /// What came beside; none of members on other hosts.
    pub beside: Vec<Option<Memory>>,
    pub records: Vec<Record>,
}

/// What travels with a record: to members on this rank's host, and to those on others.
#[derive(Default)]
pub(crate) struct Handles {
    near: Vec<Handle>,
    fabric: Vec<Handle>,
}

/// A meeting's agreement: everybody's record, compared. What all have let go of returns to pools.
/// Afterwards this rank's record has the highest of all ordinals.
pub(crate) fn agree(
    gather: Gather<'_>,
    ledger: &Ledger,
    record: &mut Record,
    handles: Handles,
) -> Result<(Vec<Part>, Vec<Record>), RendezvousError> {
    record.reported.let_go = ledger.report(&record.equal.members);
    let Handles { near, fabric } = handles;
    let parts = gather(Part { payload: record.encode(), handles: near, fabric })?;
    stalls::at(Step::Compare);
    let decoded: Vec<Option<Record>> = parts.iter().map(|p| Record::decode(&p.payload)).collect();
    let unreadable: RankSet =
        decoded.iter().enumerate().filter(|(_, r)| r.is_none()).map(|(i, _)| i).collect();
    if !unreadable.is_empty() {
        return Err(RendezvousError::Unreadable { ranks: unreadable });
    }
    let mut records: Vec<Record> = decoded.into_iter().flatten().collect();
    let reports: Vec<_> =
        records.iter_mut().map(|r| core::mem::take(&mut r.reported.let_go)).collect();
    ledger.settle(&record.equal.members, &reports);
    let ordinals = records.iter().map(|r| r.equal.ordinal);
    record.equal.ordinal = ordinals.max().unwrap_or(record.equal.ordinal);
    compare(&records)?;
    Ok((parts, records))
}

/// Exchanges a record and memories: the part that group creation and rendezvous share. Two rounds:
/// everybody's record and handles, then a vote on whether all of it could be mapped, and `finish`, which
/// is given what was, has succeeded.
pub(crate) fn exchange_memory(
    gather: Gather<'_>,
    ledger: &Ledger,
    record: &mut Record,
    given: &Given<'_>,
    imports: &Imports<'_>,
    finish: Finish<'_>,
) -> Result<Exchanged, RendezvousError> {
    stalls::at(Step::Export);
    let &Given { memory, beside } = given;
    let exported = imports.export(given);
    let mut trouble = exported.as_ref().err().map(|e| (e.to_string(), e.kind()));
    // A rank that cannot export still comes: the others learn of it in the vote, not by a time-out.
    let (parts, records) = agree(gather, ledger, record, exported.unwrap_or_default())?;
    let (mut mapped, mut mapped_beside) = (Vec::new(), Vec::new());
    let unreachable = imports.unreachable(&records);
    for memory in [Some(memory), beside].into_iter().flatten() {
        trouble = imports.open(memory).err().map(|e| (e.to_string(), e.kind())).or(trouble);
    }
    for (index, part) in parts.into_iter().enumerate() {
        if index == imports.me {
            mapped.push(memory.clone());
            mapped_beside.extend(beside.map(|memory| Some(memory.clone())));
            continue;
        }
        if unreachable.is_some() {
            continue;
        }
        let is_near = imports.exchange.is_near(record.equal.members[index]);
        // A rank without handles votes against, with its reason; this one has nothing to add.
        let mut handles = if is_near { part.handles } else { part.fabric }.into_iter();
        let mut map = |mine: &Memory| {
            stalls::at(Step::Map);
            match imports.map(handles.next()?, mine) {
                Ok(memory) => Some(memory),
                Err(e) => {
                    trouble = trouble.take().or(Some((e.to_string(), e.kind())));
                    None
                }
            }
        };
        mapped.extend(map(memory));
        match beside {
            Some(mine) if is_near => mapped_beside.extend(map(mine).map(Some)),
            Some(_) => mapped_beside.push(None),
            None => {}
        }
    }
    let is_whole = |maps: usize| maps == records.len();
    let whole = is_whole(mapped.len()) && (beside.is_none() || is_whole(mapped_beside.len()));
    if whole {
        stalls::at(Step::Finish);
        trouble = trouble.or(finish(&mapped).err().map(|e| (e.to_string(), e.kind())));
    }
    let vote = match unreachable {
        Some((peer, reason)) => Vote::Unreachable { peer: peer as u32, reason },
        None if trouble.is_some() => Vote::No,
        None => Vote::Yes,
    };
    let against = cast(gather, &vote)?;
    if !against.is_empty() || !whole {
        let (reason, kind) = trouble.map_or((None, Kind::System), |(r, k)| (Some(r), k));
        return Err(RendezvousError::Map { ranks: against, reason, kind });
    }
    Ok(Exchanged { memories: mapped, beside: mapped_beside, records })
}

/// Takes part in an exchange without memory, so that the others need not wait for this rank. Who else
/// has none.
pub(crate) fn decline(gather: Gather<'_>, record: &Record) -> Result<RankSet, RendezvousError> {
    gather(Part::plain(record.encode()))?;
    cast(gather, &Vote::No)
}

/// Votes, and tells who is against. A pair without a path is the same error on every rank.
fn cast(gather: Gather<'_>, vote: &Vote) -> Result<RankSet, RendezvousError> {
    stalls::at(Step::Vote);
    // The type has no value that cannot be encoded.
    let votes = gather(Part::plain(postcard::to_stdvec(vote).unwrap_or_default()))?;
    let votes = read_votes(&votes);
    for (rank, vote) in votes.iter().enumerate() {
        if let Vote::Unreachable { peer, reason } = vote {
            let (peer, reason) = (*peer as usize, reason.clone());
            return Err(RendezvousError::Unreachable { rank, peer, reason });
        }
    }
    Ok((0..votes.len()).filter(|rank| votes[*rank] != Vote::Yes).collect())
}

/// What is no vote, or speaks of a rank that there is not, is against.
pub(super) fn read_votes(parts: &[Part]) -> Vec<Vote> {
    let read = |part: &Part| match postcard::from_bytes(&part.payload) {
        Ok(Vote::Unreachable { peer, .. }) if peer as usize >= parts.len() => Vote::No,
        Ok(vote) => vote,
        Err(_) => Vote::No,
    };
    parts.iter().map(read).collect()
}

impl Imports<'_> {
    /// What goes to the others of this rank's memory: where some are on other hosts, of what they map,
    /// if the device has that.
    fn export(&self, given: &Given<'_>) -> Result<Handles, ExportError> {
        let near = |memory: &Memory| match self.threads {
            true => Ok(Handle::Local(memory.clone())),
            false => memory.export().map(Handle::Shared),
        };
        let all = [Some(given.memory), given.beside];
        let near = all.into_iter().flatten().map(near).collect::<Result<_, _>>()?;
        let has_fabric = self.exchange.has_hosts() && self.device.capabilities().fabric;
        let far = has_fabric.then(|| given.memory.export_fabric()).transpose()?;
        Ok(Handles { near, fabric: far.map(Handle::Shared).into_iter().collect() })
    }

    /// Maps what a peer sent: memory of the kind and size of this rank's `mine`.
    fn map(&self, handle: Handle, mine: &Memory) -> Result<Memory, ImportError> {
        let host = Device::host();
        let owner = if mine.backend() == self.device.kind() { self.device } else { &host };
        let memory = match handle {
            Handle::Shared(shared) => owner.import(shared, mine.bytes())?,
            Handle::Local(memory) => owner.open(&memory)?,
        };
        self.open(&memory)?;
        Ok(memory)
    }

    /// Lets this rank's kernels at memory of the host's, if they run on a device.
    fn open(&self, memory: &Memory) -> Result<(), ImportError> {
        if memory.backend() != self.device.kind() {
            self.device.map_host(memory)?;
        }
        Ok(())
    }

    /// The first peer whose memory this rank's device cannot reach, and why.
    fn unreachable(&self, records: &[Record]) -> Option<(usize, String)> {
        let mine = &records[self.me].reported;
        records.iter().enumerate().find_map(|(peer, record)| {
            let theirs = &record.reported;
            if peer != self.me && !self.exchange.is_near(record.equal.members[peer]) {
                if mine.fabric && theirs.fabric {
                    return None;
                }
                let reason = format!(
                    "they are on two hosts, {} and {}, and memory goes there by fabric handles alone, which {} lacks: make groups of the ranks of one host",
                    theirs.host,
                    mine.host,
                    if theirs.fabric { &mine.device_name } else { &theirs.device_name },
                );
                return Some((peer, reason));
            }
            if peer != self.me && !self.threads && !mine.imports_from(theirs) {
                let reason = "neither descriptors nor fabric handles go from its device to this";
                return Some((peer, reason.to_owned()));
            }
            let other = DeviceUuid(theirs.device);
            match self.device.can_access_peer(other) {
                // Whether a device that this process does not see is reached shows when its memory
                // is mapped.
                Ok(()) | Err(PeerAccessError::NotVisible { .. }) => None,
                Err(e) => Some((peer, e.to_string())),
            }
        })
    }
}

/// For fuzzing: any bytes as the votes of a round.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(parts: &[Part]) {
    parts.iter().for_each(|part| drop(crate::fuzzing::round_trip::<Vote>(&part.payload)));
    let votes = read_votes(parts);
    assert_eq!(votes.len(), parts.len());
    for vote in votes {
        if let Vote::Unreachable { peer, reason } = vote {
            let error = RendezvousError::Unreachable { rank: 0, peer: peer as usize, reason };
            assert!(error.ranks().iter().all(|rank| rank < parts.len()), "{error}");
        }
    }
}

/// For fuzzing: the bytes of each sort of vote.
#[cfg(any(test, fuzzing))]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let far = Vote::Unreachable { peer: 1, reason: "no path".to_owned() };
    [Vote::Yes, Vote::No, far].iter().filter_map(|vote| postcard::to_stdvec(vote).ok()).collect()
}
