//! The agreement record: what each rank says of itself at group creation and rendezvous.
//!
//! Every rank sees every record and compares them in the same way, so all come to one verdict
//! without a vote: the first field, in the order below, in which two ranks differ.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use symmem_hal::types::{DType, RankSet};
use symmem_hal::{Device, Fault, Kind};

use crate::exchange::frame::WIRE_VERSION;
use crate::group::Options;
use crate::memory::View;
use crate::memory::ledger::Key;
use crate::rendezvous::Support;
use crate::stamps;

/// What a rank calls when it says a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    CreateGroup,
    Split,
    Rendezvous,
    Recover,
    Reclaim,
}

/// What must be equal on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Equal {
    pub wire: u32,
    pub step: Step,
    pub run: String,
    pub group: u64,
    pub members: Vec<u32>,
    pub generation: u32,
    /// Its name: memory of one backend cannot be reached by kernels of another.
    pub backend: String,
    pub ordinal: u64,
    pub bytes: u64,
    /// Where the allocation lies: which rendezvous mapped its memory, the memory's bytes, and the
    /// offset there.
    pub segment: Option<u64>,
    pub segment_bytes: u64,
    pub place: u64,
    /// Of the view in the allocation.
    pub offset: u64,
    /// Name of the element type and the shape, where known.
    pub dtype: Option<String>,
    pub shape: Option<Vec<u64>>,
    pub pad: u64,
    pub workspace: u64,
    pub max_lanes: u32,
    pub max_blocks: u32,
    pub deadline_ms: u64,
    pub checked: bool,
    pub first_epoch: u32,
    pub determinism: String,
    pub completion: String,
    /// Whether memory is to get multicast addresses.
    pub multicast: bool,
    /// Of the table by which algorithms are chosen.
    pub choices: String,
    pub little_endian: bool,
    pub sections: Vec<(String, String, String)>,
    /// What the layers above were built with, hashes of kernel sources among it: by name.
    pub stamps: Vec<(String, String)>,
}

/// What may differ; choices use the minimum or the conjunction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reported {
    pub device: [u8; 16],
    pub device_name: String,
    pub arch: String,
    pub units: u32,
    /// Blocks that can be resident at once; 0 where blocks mean nothing.
    pub occupancy: u32,
    /// How many ranks of one process the device runs beside each other; 0 for any number.
    pub connections: u32,
    pub peer_atomics: bool,
    pub whole_lines: bool,
    /// Memory leaves by descriptors, and enters.
    pub descriptors: bool,
    /// By fabric handles, too.
    pub fabric: bool,
    pub multicast: Support,
    /// Names and versions: of this library, and of the device's driver.
    pub versions: Vec<(String, String)>,
    /// Where their code comes from.
    pub kernels: String,
    pub host: String,
    pub process: u32,
    /// Rendezvous of blocks that the rank has let go of.
    pub let_go: Vec<Key>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub equal: Equal,
    pub reported: Reported,
}

/// Ranks disagree about something that must be equal. The same on every rank; nothing was mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ranks disagree about {field}, of which all must have one: {}", list(.values))]
pub struct Mismatch {
    /// What they disagree about.
    pub field: String,
    /// Each value and the ranks that have it; the one that most have first.
    pub values: Vec<(String, RankSet)>,
}

impl Fault for Mismatch {
    fn kind(&self) -> Kind {
        Kind::Disagreement
    }

    /// The ranks outside the largest part.
    fn ranks(&self) -> RankSet {
        self.values.iter().skip(1).flat_map(|(_, ranks)| ranks.iter()).collect()
    }
}

fn list(values: &[(String, RankSet)]) -> String {
    let mut text = String::new();
    for (i, (value, ranks)) in values.iter().enumerate() {
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        let _ = write!(text, "{}{value} on {noun} {ranks}", if i == 0 { "" } else { ", " });
    }
    text
}

/// What a rendezvous or a group creation is about, beside the options.
#[derive(Clone, Debug)]
pub(crate) struct About<'a> {
    pub step: Step,
    pub run: &'a str,
    pub group: u64,
    pub members: &'a [u32],
    pub generation: u32,
    pub ordinal: u64,
    pub view: Option<&'a View>,
    /// The rendezvous that mapped the memory of the view's allocation, if one did.
    pub segment: Option<u64>,
}

impl Reported {
    /// Whether this rank's process can map what the other's exports: by a descriptor, where there are
    /// some.
    pub(crate) fn imports_from(&self, other: &Reported) -> bool {
        if other.descriptors { self.descriptors } else { self.fabric && other.fabric }
    }
}

impl Record {
    pub(crate) fn new(about: &About<'_>, options: &Options, device: &Device) -> Self {
        let view = about.view;
        let allocation = view.and_then(View::allocation);
        let place = allocation.map_or(0, |a| a.offset().get());
        let capabilities = device.capabilities();
        let is_device = capabilities.arch.is_some();
        Record {
            equal: Equal {
                wire: WIRE_VERSION,
                step: about.step,
                run: about.run.to_owned(),
                group: about.group,
                members: about.members.to_vec(),
                generation: about.generation,
                backend: device.kind().name().to_owned(),
                ordinal: about.ordinal,
                bytes: allocation.map_or(0, |a| a.bytes().get()),
                segment: about.segment,
                segment_bytes: allocation.map_or(0, |a| a.memory().bytes().get()),
                place,
                offset: view.map_or(0, |v| v.offset().get() - place),
                dtype: view.map(|v| v.dtype()).map(DType::name).map(str::to_owned),
                shape: view.map(|v| v.layout().shape().to_vec()),
                pad: options.pad.get(),
                workspace: options.workspace.get(),
                max_lanes: options.max_lanes,
                max_blocks: options.max_blocks,
                deadline_ms: u64::try_from(options.deadline.as_millis()).unwrap_or(u64::MAX),
                checked: options.checked,
                first_epoch: options.first_epoch,
                determinism: format!("{:?}", options.determinism),
                completion: format!("{:?}", options.completion),
                multicast: options.multicast,
                choices: options.choices.name(),
                little_endian: cfg!(target_endian = "little"),
                sections: options.sections.clone(),
                stamps: stamps::on(device.kind()),
            },
            reported: Reported {
                device: device.uuid().0,
                device_name: device.name(),
                arch: match capabilities.arch {
                    Some((major, minor)) => format!("{major}.{minor}"),
                    None => std::env::consts::ARCH.to_owned(),
                },
                units: capabilities.units,
                // Each unit holds one block of any kernel.
                occupancy: if is_device { capabilities.units } else { 0 },
                connections: if is_device { connections() } else { 0 },
                peer_atomics: capabilities.peer_atomics,
                whole_lines: capabilities.whole_lines,
                descriptors: capabilities.shareable,
                fabric: capabilities.fabric,
                multicast: Support::of(device),
                versions: versions(device),
                kernels: device.kernel_origin().unwrap_or_else(|| "this program".to_owned()),
                host: host_name(),
                process: std::process::id(),
                let_go: Vec::new(),
            },
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // The types above have no value that cannot be encoded.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// The fields that must be equal, by name, in the order in which they are compared.
    fn fields(&self) -> Vec<(String, String)> {
        let e = &self.equal;
        let mut fields: Vec<(String, String)> = vec![
            ("the wire version".into(), e.wire.to_string()),
            ("the run".into(), e.run.clone()),
            ("the call".into(), format!("{:?}", e.step)),
            ("the group".into(), format!("{:016x}", e.group)),
            ("the members".into(), format!("{:?}", e.members)),
            ("the generation".into(), e.generation.to_string()),
            ("the backend".into(), e.backend.clone()),
            ("the rendezvous ordinal".into(), e.ordinal.to_string()),
            ("the allocation's bytes".into(), e.bytes.to_string()),
            (
                "the rendezvous of the segment".into(),
                e.segment.map_or("this one".into(), |ordinal| ordinal.to_string()),
            ),
            ("the offset in the segment".into(), e.place.to_string()),
            ("the segment's bytes".into(), e.segment_bytes.to_string()),
            ("the offset".into(), e.offset.to_string()),
            ("the dtype".into(), format!("{:?}", e.dtype.as_deref().unwrap_or("none"))),
            ("the shape".into(), e.shape.as_ref().map_or("none".into(), |s| format!("{s:?}"))),
            ("the pad size".into(), e.pad.to_string()),
            ("the workspace budget".into(), e.workspace.to_string()),
            ("max_lanes".into(), e.max_lanes.to_string()),
            ("MAX_BLOCKS".into(), e.max_blocks.to_string()),
            ("the deadline (ms)".into(), e.deadline_ms.to_string()),
            ("checked mode".into(), e.checked.to_string()),
            ("the first epoch".into(), e.first_epoch.to_string()),
            ("determinism".into(), e.determinism.clone()),
            ("completion".into(), e.completion.clone()),
            ("multicast".into(), e.multicast.to_string()),
            ("the choice table (SYMMEM_TUNE)".into(), e.choices.clone()),
            ("little-endian".into(), e.little_endian.to_string()),
        ];
        for (namespace, key, value) in &e.sections {
            fields.push((format!("{namespace}.{key}"), value.clone()));
        }
        fields
    }
}

/// The first field in which records differ.
pub(crate) fn compare(records: &[Record]) -> Result<(), Mismatch> {
    let all: Vec<Vec<(String, String)>> = records.iter().map(Record::fields).collect();
    let Some(first) = all.first() else { return Ok(()) };
    let longest = all.iter().max_by_key(|f| f.len()).unwrap_or(first);
    for (i, (name, _)) in longest.iter().enumerate() {
        // A section that a rank does not have differs from one that it has.
        let value = |fields: &Vec<(String, String)>| match fields.get(i) {
            Some((n, v)) if n == name => v.clone(),
            _ => "absent".to_owned(),
        };
        one_value(name, all.iter().map(value).enumerate())?;
    }
    let stamps = records.iter().flat_map(|record| &record.equal.stamps);
    let names: BTreeSet<&str> = stamps.map(|(name, _)| name.as_str()).collect();
    for name in names {
        let value = |(rank, record): (usize, &Record)| {
            let (_, value) = record.equal.stamps.iter().find(|(of, _)| of == name)?;
            Some((rank, value.clone()))
        };
        one_value(name, records.iter().enumerate().filter_map(value))?;
    }
    Ok(())
}

/// That the values of a field, each a rank's, are one.
fn one_value(field: &str, found: impl Iterator<Item = (usize, String)>) -> Result<(), Mismatch> {
    let mut values: Vec<(String, RankSet)> = Vec::new();
    for (rank, value) in found {
        match values.iter_mut().find(|(known, _)| *known == value) {
            Some((_, ranks)) => ranks.insert(rank),
            None => values.push((value, RankSet::one(rank))),
        }
    }
    if values.len() <= 1 {
        return Ok(());
    }
    // Stable, so ties keep the order of ranks: the same on every rank.
    values.sort_by_key(|(_, ranks)| core::cmp::Reverse(ranks.len()));
    Err(Mismatch { field: field.to_owned(), values })
}

/// How many streams a process's work on a CUDA device is spread over: that of more ranks may queue
/// behind each other.
fn connections() -> u32 {
    const DEFAULT: u32 = 8;
    let given = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    given.and_then(|text| text.trim().parse().ok()).map_or(DEFAULT, |n: u32| n.clamp(1, 32))
}

fn versions(device: &Device) -> Vec<(String, String)> {
    let library = Some(("symmem".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
    let driver = device.driver_version().map(|v| (format!("{} driver", device.kind().name()), v));
    library.into_iter().chain(driver).collect()
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A rank's record, after its journey, with these stamps.
    fn record(stamps: &[(&str, &str)]) -> Record {
        let about = About {
            step: Step::CreateGroup,
            run: "run",
            group: 1,
            members: &[0, 1, 2],
            generation: 0,
            ordinal: 0,
            view: None,
            segment: None,
        };
        let mut record = Record::new(&about, &Options::default(), &Device::host());
        record.equal.stamps =
            stamps.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Record::decode(&record.encode()).unwrap()
    }

    #[test]
    fn ranks_with_other_stamps_are_told_which() {
        let old = record(&[("kernels", "old"), ("tables", "1")]);
        let new = record(&[("kernels", "new"), ("tables", "2")]);
        assert_eq!(compare(&[old.clone(), old.clone()]), Ok(()));
        let told = compare(&[old.clone(), new, old]).unwrap_err();
        assert_eq!(
            told.to_string(),
            "ranks disagree about kernels, of which all must have one: old on ranks 0, 2, new on rank 1"
        );
        assert_eq!(told.ranks(), RankSet::one(1));
    }

    #[test]
    fn ranks_that_want_multicast_and_ranks_that_do_not_are_told() {
        let without = record(&[]);
        let mut with = without.clone();
        with.equal.multicast = true;
        assert_eq!(compare(&[without, with]).unwrap_err().field, "multicast");
    }

    #[test]
    fn ranks_without_a_stamp_disagree_with_nobody() {
        let (none, both) = (record(&[]), record(&[("kernels", "a"), ("tables", "b")]));
        let first = record(&[("kernels", "a")]);
        let second = record(&[("tables", "b")]);
        let other = record(&[("tables", "c")]);
        assert_eq!(compare(&[none.clone(), both, first, second.clone()]), Ok(()));
        let told = compare(&[none, other, second]).unwrap_err();
        assert_eq!(
            told.to_string(),
            "ranks disagree about tables, of which all must have one: c on rank 1, b on rank 2"
        );
    }

    #[test]
    fn memory_leaves_by_descriptors_if_it_can() {
        let rank = |descriptors, fabric| {
            let Record { reported, .. } = record(&[]);
            Reported { descriptors, fabric, ..reported }
        };
        let (neither, fd, fabric, both) =
            (rank(false, false), rank(true, false), rank(false, true), rank(true, true));
        for (from, to, works) in [
            (&fd, &fd, true),
            (&both, &fd, true),
            (&both, &both, true),
            (&fabric, &fabric, true),
            (&fabric, &both, true),
            // By a descriptor.
            (&both, &fabric, false),
            (&fabric, &fd, false),
            (&fd, &fabric, false),
            (&neither, &both, false),
            (&both, &neither, false),
        ] {
            assert_eq!(to.imports_from(from), works, "{from:?} to {to:?}");
        }
    }
}
