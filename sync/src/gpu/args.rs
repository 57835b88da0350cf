//! What kernels on a GPU are given: the structs of `symmem_lane.cuh` and `signals.cu`, field by field.

use core::mem::offset_of;

use symmem_hal::DevicePtr;

/// Ranks whose addresses travel in a kernel's arguments; those of more are in a table.
pub const NEAR: usize = 8;

/// What the argument struct of every kernel of a lane begins with.
///
/// In a lane, `p` = parity, `w` = writer, `b` = block: records at its base, 16 bytes a block; headers
/// at `headers + 32 * ((p * world + w) * max_blocks + b)`; flags at
/// `flags + 8 * ((p * world + w) * max_blocks + b)`; packets at
/// `packets + 16 * ((p * (world - 1) + w') * packet_count + index)`; lines at
/// `lines + 128 * ((p * (world - 1) + w') * line_count + index)`; staging at
/// `staging + staging_unit * (p * (world - 1) + w')`, where w' counts the writers without the reader.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub struct SymmemLane {
    /// The lane's base on this rank.
    pub own: DevicePtr,
    /// The lane's base on each rank as mapped here, this one included; null from the ninth rank on.
    pub peers: [DevicePtr; NEAR],
    /// Where the bases of all ranks are.
    pub table: DevicePtr,
    /// From the base of a lane back to its rank's workspace, which begins with the device's control
    /// page.
    pub workspace_back: u64,
    /// This rank's control page in host memory.
    pub host: DevicePtr,
    /// Where the addresses of all ranks' control pages in host memory are.
    pub hosts: DevicePtr,
    /// Of the headers, from a lane's base.
    pub headers: u64,
    /// Of the flags.
    pub flags: u64,
    /// Of the packets.
    pub packets: u64,
    /// Of the lines.
    pub lines: u64,
    /// Of the staging.
    pub staging: u64,
    /// Bytes of one writer's staging for a parity.
    pub staging_unit: u64,
    /// What the caller says of the call.
    pub signature: u64,
    /// How many operations this rank has issued on the lane, this one included, if it is none in a
    /// graph.
    pub issue: u64,
    /// Where each block counts the runs of an operation in a graph: a u64 for each of `max_blocks`;
    /// null for any other.
    pub runs: DevicePtr,
    /// The bound of each wait, from its first miss.
    pub deadline_ns: u64,
    /// The u32 that ends this call's waits once it is not 0; null for none.
    pub cancel: DevicePtr,
    /// In a graph, what a launch of it is bounded by instead; null elsewhere.
    pub launch: DevicePtr,
    /// This rank.
    pub rank: u32,
    /// Ranks of the group.
    pub world: u32,
    /// Blocks for which there is a record.
    pub max_blocks: u32,
    /// Packets of one writer for a parity.
    pub packet_count: u32,
    /// Lines of one writer for a parity; 0 where they do not arrive whole.
    pub line_count: u32,
    /// The lane.
    pub lane: u32,
    /// The operation's code.
    pub operation: u32,
    /// Whether entry proves that the lane is free.
    pub checked: u32,
    /// By how much longer than said there its waits are, where devices are shared.
    pub patience: u32,
    /// Zero.
    pub reserved: u32,
}

/// The argument struct of the kernels of signals and barriers.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub(crate) struct SymmemSignal {
    /// The workspace of each rank as mapped here; null from the ninth rank on.
    pub peers: [DevicePtr; NEAR],
    /// Where the workspaces of all ranks are.
    pub table: DevicePtr,
    /// This rank's.
    pub own: DevicePtr,
    /// From a workspace back to the slots of the channel in its rank's pad: u32 `[sender]`.
    pub slots_back: u64,
    /// Of the channel's barrier words, from a workspace: u64 `[writer]`.
    pub barriers: u64,
    /// The channel's state.
    pub state: DevicePtr,
    /// Counts the blocks of a put that have stored: u32.
    pub arrivals: DevicePtr,
    /// The channel's fault in this rank's control page in host memory: a word, then the mask.
    pub fault: DevicePtr,
    /// The word that says that there is one.
    pub any_fault: DevicePtr,
    /// The mask of ranks that are gone.
    pub lost: DevicePtr,
    /// The u32 that ends the wait once it is not 0; null for none.
    pub cancel: DevicePtr,
    /// The bound of the wait, from its first miss.
    pub deadline_ns: u64,
    /// In a graph, what a launch of it is bounded by instead; null elsewhere.
    pub launch: DevicePtr,
    /// This rank.
    pub rank: u32,
    /// Ranks of the group.
    pub world: u32,
    /// The channel.
    pub channel: u32,
    /// The other rank of a put or wait.
    pub peer: u32,
    /// By how much longer than said there its waits are.
    pub patience: u32,
    /// Zeros.
    pub reserved: [u32; 3],
}

/// The argument struct of a put of data with its signal.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub(crate) struct SymmemPut {
    pub signal: SymmemSignal,
    pub source: DevicePtr,
    pub target: DevicePtr,
    pub bytes: u64,
    pub reserved: u64,
}

// As in symmem_lane.cuh and signals.cu.
const _: () = {
    assert!(size_of::<SymmemLane>() == 240 && align_of::<SymmemLane>() == 16);
    assert!(offset_of!(SymmemLane, table) == 72);
    assert!(offset_of!(SymmemLane, headers) == 104);
    assert!(offset_of!(SymmemLane, signature) == 152);
    assert!(offset_of!(SymmemLane, deadline_ns) == 176);
    assert!(offset_of!(SymmemLane, rank) == 200);
    assert!(offset_of!(SymmemLane, patience) == 232);
    assert!(size_of::<SymmemSignal>() == 192 && align_of::<SymmemSignal>() == 16);
    assert!(offset_of!(SymmemSignal, table) == 64);
    assert!(offset_of!(SymmemSignal, deadline_ns) == 144);
    assert!(offset_of!(SymmemSignal, rank) == 160);
    assert!(size_of::<SymmemPut>() == 224 && offset_of!(SymmemPut, source) == 192);
};

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a failed set-up fails the test")]
    use symmem_hal::kernels::struct_fields;

    use super::*;
    use crate::gpu::layout::BlockRecord;
    use crate::gpu::{SIGNALS, SYMMEM_LANE_CUH};
    use crate::layout::ChannelWords;

    fn check(text: &str, name: &str, ours: &[(&str, usize)], size: usize) {
        let Some((theirs, found)) = struct_fields(text, name, &[]) else {
            panic!("no struct {name}");
        };
        assert_eq!(found, size, "size of {name}");
        for (field, at) in ours {
            let place = theirs.iter().find(|(name, _)| name == field);
            assert_eq!(place.map(|(_, at)| *at), Some(*at), "{name}.{field}");
        }
        let known = |field: &str| ours.iter().any(|(ours, _)| *ours == field);
        let unknown: Vec<_> = theirs.iter().filter(|(field, _)| !known(field)).collect();
        assert!(unknown.is_empty(), "{name} has {unknown:?}");
    }

    macro_rules! offsets {
        ($t:ty: $($field:ident $(as $theirs:literal)?),+ $(,)?) => {
            [$((offsets!(@ $field $($theirs)?), offset_of!($t, $field))),+]
        };
        (@ $field:ident $theirs:literal) => { $theirs };
        (@ $field:ident) => { stringify!($field) };
    }

    #[test]
    fn kernels_have_the_same_structs() {
        let (lanes, signals) = (SYMMEM_LANE_CUH.1, SIGNALS.file.1);
        let lane = offsets!(SymmemLane: own, peers, table, workspace_back, host, hosts, headers, flags,
            packets, lines, staging, staging_unit, signature, issue, runs, deadline_ns, cancel, launch, rank, world,
            max_blocks, packet_count, line_count, lane as "index", operation, checked, patience);
        check(lanes, "Lane", &lane, size_of::<SymmemLane>());
        let record = offsets!(BlockRecord: epoch, settled, entry);
        check(lanes, "EpochRecord", &record, size_of::<BlockRecord>());
        let signal = offsets!(SymmemSignal: peers, table, own, slots_back, barriers, state, arrivals,
            fault, any_fault, lost, cancel, deadline_ns, launch, rank, world, channel, peer, patience);
        check(signals, "Signal", &signal, size_of::<SymmemSignal>());
        let put = offsets!(SymmemPut: signal, source, target, bytes);
        check(signals, "Put", &put, size_of::<SymmemPut>());
        let channel = offsets!(ChannelWords: generation, epoch, state);
        check(signals, "Channel", &channel, size_of::<ChannelWords>());
    }
}
