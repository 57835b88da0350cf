//! One address for the memory of all ranks: a multicast object over what a rendezvous has mapped.
//!
//! Made where all ranks asked for it and their records say that all can. A device that says so may yet
//! refuse, on some ranks alone and at any step, so ranks take the steps together and vote after each
//! ([`lockstep`]): whatever fails, on whichever rank, all let go of the object, and the rendezvous goes
//! on without, with the same reason on all.

#[cfg(any(test, feature = "cuda"))]
pub(crate) mod lockstep;
#[cfg(feature = "cuda")]
mod object;

use core::fmt;

use serde::{Deserialize, Serialize};
#[cfg(feature = "cuda")]
pub(crate) use symmem_hal::MulticastMapping;
use symmem_hal::types::RankSet;
use symmem_hal::{Device, Fault, Kind, Memory, Wait};

use super::exchange::{Gather, Imports};
use super::record::Record;
use super::{RendezvousError, record};

/// Why symmetric memory has no multicast address; the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMulticast {
    /// Nobody asked for one.
    #[error("the group was made without multicast: Options::multicast is false")]
    NotAsked,
    /// There is nobody to multicast to.
    #[error("a group of one rank has nobody to multicast to")]
    Alone,
    /// Somebody switched it off for a rank's process.
    #[error("rank {rank}: {switch}")]
    Off {
        /// The first rank where it is.
        rank: usize,
        /// Which switch, and its value.
        switch: String,
    },
    /// Devices have none.
    #[error("the devices of ranks {ranks} have no multicast")]
    Unsupported {
        /// Whose.
        ranks: RankSet,
    },
    /// A device takes part in a multicast object once, with memory of one rank.
    #[error("ranks {ranks} share a device, and multicast needs one for each rank")]
    SharedDevice {
        /// The first that do.
        ranks: RankSet,
    },
    /// Ranks are on several hosts, and the object goes to others by a descriptor.
    #[error("ranks are on several hosts, and a multicast object stays on one here")]
    Hosts,
    /// A rank's device or driver refused, whatever it had said before.
    #[error("rank {rank} could not {step}: {reason}")]
    Failed {
        /// The first rank that could not.
        rank: usize,
        /// What it could not do.
        step: MulticastStep,
        /// What the driver said.
        reason: String,
    },
}

impl Fault for NoMulticast {
    fn kind(&self) -> Kind {
        Kind::Unsupported
    }

    fn ranks(&self) -> RankSet {
        match self {
            NoMulticast::NotAsked | NoMulticast::Alone | NoMulticast::Hosts => RankSet::new(),
            NoMulticast::Off { rank, .. } | NoMulticast::Failed { rank, .. } => RankSet::one(*rank),
            NoMulticast::Unsupported { ranks } | NoMulticast::SharedDevice { ranks } => {
                ranks.clone()
            }
        }
    }
}

/// What a rank does towards a multicast object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MulticastStep {
    /// Rank 0 creates the object.
    Create,
    /// Rank 0 exports it.
    Export,
    /// Another rank imports it.
    Import,
    /// A rank adds its device.
    Add,
    /// A rank binds its memory.
    Bind,
    /// A rank maps the object.
    Map,
}

impl fmt::Display for MulticastStep {
    /// As it stands after "could not".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MulticastStep::Create => "create the multicast object",
            MulticastStep::Export => "export the multicast object",
            MulticastStep::Import => "import the multicast object",
            MulticastStep::Add => "add its device to the multicast object",
            MulticastStep::Bind => "bind its memory to the multicast object",
            MulticastStep::Map => "map the multicast object",
        })
    }
}

/// What a rank says of its device's multicast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Support {
    There,
    /// By which switch.
    Off(String),
    Absent,
}

impl Support {
    pub(crate) fn of(device: &Device) -> Self {
        if device.capabilities().multicast {
            return Support::There;
        }
        #[cfg(feature = "cuda")]
        if device.kind() == symmem_hal::types::BackendKind::Cuda
            && let Err(off) = symmem_hal::Multicast::allowed()
        {
            return Support::Off(off.to_string());
        }
        Support::Absent
    }
}

/// Ranks' memory at one address. No device of this build has that.
#[cfg(not(feature = "cuda"))]
#[derive(Debug)]
pub(crate) enum MulticastMapping {}

#[cfg(not(feature = "cuda"))]
impl MulticastMapping {
    pub(crate) fn base(&self) -> symmem_hal::DevicePtr {
        match *self {}
    }
}

/// Makes one object of all ranks' memories. Meets the others only where all have said that they can;
/// an error is one of meeting them.
#[cfg_attr(
    not(feature = "cuda"),
    allow(unused_variables, reason = "where no device has multicast, nobody is met")
)]
pub(crate) fn join(
    gather: Gather<'_>,
    records: &[Record],
    memory: &Memory,
    imports: &Imports<'_>,
    wait: &Wait,
) -> Result<Result<MulticastMapping, NoMulticast>, RendezvousError> {
    let is_near = |member: &u32| imports.exchange.is_near(*member);
    let apart = records.first().is_some_and(|record| !record.equal.members.iter().all(is_near));
    if let Some(reason) = obstacle(records).or(apart.then_some(NoMulticast::Hosts)) {
        return Ok(Err(reason));
    }
    #[cfg(feature = "cuda")]
    return match object::make(lockstep::Lockstep::new(gather, wait), memory, imports, records.len())
    {
        Ok(mapping) => Ok(Ok(mapping)),
        Err(lockstep::Stopped::Without(reason)) => {
            tracing::warn!(%reason, "symmetric memory without multicast");
            Ok(Err(reason))
        }
        Err(lockstep::Stopped::Failed(error)) => Err(error),
    };
    #[cfg(not(feature = "cuda"))]
    Ok(Err(NoMulticast::Unsupported { ranks: RankSet::first(records.len()) }))
}

/// What keeps these ranks from it, if anything does. Of agreed values alone.
fn obstacle(records: &[Record]) -> Option<NoMulticast> {
    let reported = || records.iter().map(|record| &record.reported);
    if records.iter().any(|record| !record.equal.multicast) {
        return Some(NoMulticast::NotAsked);
    }
    if records.len() < 2 {
        return Some(NoMulticast::Alone);
    }
    let off = reported().enumerate().find_map(|(rank, of)| match &of.multicast {
        Support::Off(switch) => Some(NoMulticast::Off { rank, switch: switch.clone() }),
        Support::There | Support::Absent => None,
    });
    if off.is_some() {
        return off;
    }
    let without = reported().enumerate().filter(|(_, of)| of.multicast == Support::Absent);
    let without: RankSet = without.map(|(rank, _)| rank).collect();
    if !without.is_empty() {
        return Some(NoMulticast::Unsupported { ranks: without });
    }
    let on = |of: &record::Reported| -> RankSet {
        let same = reported().enumerate().filter(|(_, other)| other.device == of.device);
        same.map(|(rank, _)| rank).collect()
    };
    let shared = reported().map(on).find(|ranks| ranks.len() > 1);
    shared.map(|ranks| NoMulticast::SharedDevice { ranks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Options;
    use crate::rendezvous::record::{About, Step};

    /// Records of ranks on devices of these numbers.
    fn records(devices: &[u8], support: Support) -> Vec<Record> {
        let about = About {
            step: Step::Rendezvous,
            run: "run",
            group: 1,
            members: &[],
            generation: 0,
            ordinal: 1,
            view: None,
            segment: None,
        };
        let options = Options { multicast: true, ..Options::default() };
        let of = |device: &u8| {
            let mut record = Record::new(&about, &options, &Device::host());
            record.reported.device = [*device; 16];
            record.reported.multicast = support.clone();
            record
        };
        devices.iter().map(of).collect()
    }

    #[test]
    fn ranks_that_can_begin() {
        assert_eq!(obstacle(&records(&[0, 1], Support::There)), None);
        assert_eq!(obstacle(&records(&[3, 0, 2, 1], Support::There)), None);
    }

    #[test]
    fn who_did_not_ask_or_is_alone_does_not() {
        let mut asked = records(&[0, 1], Support::There);
        for record in &mut asked {
            record.equal.multicast = false;
        }
        assert_eq!(obstacle(&asked), Some(NoMulticast::NotAsked));
        assert_eq!(obstacle(&records(&[0], Support::There)), Some(NoMulticast::Alone));
    }

    #[test]
    fn one_rank_without_keeps_all_from_it_and_is_named() {
        let mut mixed = records(&[0, 1, 2], Support::There);
        mixed[1].reported.multicast = Support::Absent;
        let ranks = RankSet::one(1);
        assert_eq!(obstacle(&mixed), Some(NoMulticast::Unsupported { ranks }));
        mixed[2].reported.multicast = Support::Off("off: X is 0".to_owned());
        let reason = obstacle(&mixed).map(|reason| (reason.to_string(), reason.ranks()));
        assert_eq!(reason, Some(("rank 2: off: X is 0".to_owned(), RankSet::one(2))));
    }

    #[test]
    fn ranks_on_one_device_are_named() {
        let ranks: RankSet = [1, 3].into_iter().collect();
        let found = obstacle(&records(&[0, 1, 2, 1], Support::There));
        assert_eq!(found, Some(NoMulticast::SharedDevice { ranks }));
    }

    #[test]
    fn a_device_of_the_host_has_none() {
        assert_eq!(Support::of(&Device::host()), Support::Absent);
        assert_eq!(Support::of(&Device::stub(0)), Support::Absent);
    }
}
