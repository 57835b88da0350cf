//! What one rank keeps with a group on a GPU.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytemuck::Zeroable;
use symmem_hal::types::Bytes;
use symmem_hal::{CancelWord, Device, DevicePtr, KeepAlive, Memory, Stream, SyncError, Wait};
use symmem_mem::Group;

use super::args::{NEAR, SymmemLane, SymmemSignal};
use super::kernels::Functions;
use super::layout::{Agreed, BlockRecord, ENTRY, GpuLayout};
use crate::layout::ChannelWords;
use crate::protocol::{Entry, Epoch, Mismatch, header};
use crate::shared::PrepareError;

/// A group's lanes and channels on a GPU, but for what all backends keep.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub layout: GpuLayout,
    pub(super) functions: Functions,
    /// Of each lane, all but what is a call's own.
    lanes: Vec<SymmemLane>,
    /// The same for signals.
    signal: SymmemSignal,
    device: Device,
    grid_cap: u32,
    /// By how much longer kernels may take where processes take turns on a device.
    patience: u32,
    /// What the arguments lead to beside the group's regions: tables and control pages.
    _kept: Vec<Memory>,
}

/// What ends the waits of one call's kernels.
#[derive(Debug)]
pub(crate) struct Ends {
    deadline_ns: u64,
    /// In a graph, where a launch's own bounds are.
    launch: DevicePtr,
    word: Option<Arc<CancelWord>>,
}

impl Ends {
    fn cancel(&self) -> DevicePtr {
        self.word.as_ref().map_or(DevicePtr::NULL, |word| word.ptr())
    }

    /// What is to be kept until the kernels have run.
    pub(crate) fn keep(&self) -> Option<KeepAlive> {
        self.word.clone().map(|word| word as KeepAlive)
    }
}

/// What is a call's own in the arguments of a lane's kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called<'a> {
    pub signature: u64,
    pub issue: u64,
    pub runs: DevicePtr,
    pub operation: u32,
    pub ends: &'a Ends,
}

impl Gpu {
    /// Lays out the workspace, opens this rank's lanes and loads the kernels. Local.
    pub(crate) fn new(group: &Group) -> Result<Self, PrepareError> {
        let (options, device) = (group.options(), group.device());
        let (me, world) = (group.rank().index(), group.size());
        let layout = GpuLayout::new(&Agreed {
            world,
            pad: options.pad,
            workspace: group.workspace_bytes(),
            lanes: options.max_lanes,
            max_blocks: options.max_blocks,
            checked: options.checked,
            lines: group.whole_lines(),
        })?;
        let functions = Functions::load(device)?;
        let start = workspace_start(group);
        let records = layout.records(options.first_epoch);
        for lane in 0..layout.lanes {
            let at = Bytes(start + layout.lane(lane));
            group.regions()[me].write(at, bytemuck::cast_slice(&records))?;
        }
        let table = Table::make(group, &layout)?;
        let host = group.control_ptr(me);
        let lanes = (0..layout.lanes).map(|lane| {
            lane_template(group, &layout, lane, (table.bases(lane), table.hosts(&layout), host))
        });
        let mut kept: Vec<Memory> = group.control_regions().cloned().collect();
        kept.push(table.memory.clone());
        Ok(Gpu {
            functions,
            lanes: lanes.collect(),
            signal: signal_template(group, &layout, (table.workspaces(&layout), host)),
            device: device.clone(),
            grid_cap: group.blocks_per_lane().min(layout.max_blocks),
            patience: group.deadline_scale(),
            _kept: kept,
            layout,
        })
    }

    /// Most blocks of a grid: what is resident at once beside all other lanes' and ranks'.
    pub(crate) fn grid_cap(&self) -> u32 {
        self.grid_cap
    }

    /// The bound on a kernel's wait, in wall time.
    pub(crate) fn bound(&self, wait: &Wait) -> core::time::Duration {
        wait.duration().saturating_mul(self.patience)
    }

    /// What ends the waits of a call's kernels: where it is recorded, whatever its graph is launched
    /// with.
    pub(crate) fn ends(
        &self,
        stream: &Stream,
        wait: &Wait,
        is_captured: bool,
    ) -> Result<Ends, SyncError> {
        let launch = if is_captured { stream.launch_bounds()? } else { None };
        let word = match wait.cancel() {
            Some(token) if launch.is_none() => self.device.cancel_word(token)?,
            _ => None,
        };
        Ok(Ends {
            deadline_ns: u64::try_from(self.bound(wait).as_nanos()).unwrap_or(u64::MAX),
            launch: launch.unwrap_or(DevicePtr::NULL),
            word: word.map(Arc::new),
        })
    }

    pub(crate) fn lane_args(&self, lane: u32, called: &Called<'_>) -> SymmemLane {
        SymmemLane {
            signature: called.signature,
            issue: called.issue,
            runs: called.runs,
            deadline_ns: called.ends.deadline_ns,
            cancel: called.ends.cancel(),
            launch: called.ends.launch,
            operation: called.operation,
            ..self.lanes[lane as usize]
        }
    }

    /// The arguments of a signal on a channel with a peer: both in range.
    pub(super) fn signal_args(&self, (channel, peer): (u32, u32), ends: &Ends) -> SymmemSignal {
        let (layout, template) = (&self.layout, &self.signal);
        let (channel64, world) = (u64::from(channel), u64::from(template.world));
        let own = |offset| at(template.own, offset);
        let states = layout.channel_states + channel64 * size_of::<ChannelWords>() as u64;
        // The page's base is in the template's `fault`.
        let page = |offset| at(template.fault, offset);
        SymmemSignal {
            slots_back: template.slots_back - 4 * world * channel64,
            barriers: layout.barriers + 8 * world * channel64,
            state: own(states),
            arrivals: own(layout.arrivals + 4 * (world * channel64 + u64::from(peer))),
            fault: page(layout.page.channel_fault(channel)),
            cancel: ends.cancel(),
            deadline_ns: ends.deadline_ns,
            launch: ends.launch,
            channel,
            peer,
            ..*template
        }
    }
}

/// Where a workspace begins in its region.
fn workspace_start(group: &Group) -> u64 {
    group.workspace_ptr(0).get() - group.pad_ptr(0).get()
}

fn at(base: DevicePtr, offset: u64) -> DevicePtr {
    base.checked_add(Bytes(offset)).unwrap_or(DevicePtr::NULL)
}

/// Addresses of all ranks, for kernels of large groups: the bases of each lane, the workspaces, the
/// control pages in host memory.
struct Table {
    memory: Memory,
    row: u64,
}

impl Table {
    fn make(group: &Group, layout: &GpuLayout) -> Result<Self, PrepareError> {
        let ranks = || 0..group.size();
        let workspace = |offset| ranks().map(move |rank| at(group.workspace_ptr(rank), offset));
        let lanes = (0..layout.lanes).flat_map(|lane| workspace(layout.lane(lane)));
        let hosts = ranks().map(|rank| group.control_ptr(rank));
        let rows: Vec<DevicePtr> = lanes.chain(workspace(0)).chain(hosts).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&rows);
        let memory = group.device().allocate_private(Bytes::from(bytes.len()))?;
        memory.write(Bytes::ZERO, bytes)?;
        Ok(Table { memory, row: 8 * group.size() as u64 })
    }

    fn bases(&self, lane: u32) -> DevicePtr {
        at(self.memory.base(), self.row * u64::from(lane))
    }

    fn workspaces(&self, layout: &GpuLayout) -> DevicePtr {
        self.bases(layout.lanes)
    }

    fn hosts(&self, layout: &GpuLayout) -> DevicePtr {
        self.bases(layout.lanes + 1)
    }
}

/// Addresses of the first ranks.
fn near(group: &Group, offset: u64) -> [DevicePtr; NEAR] {
    let address = |rank| match group.workspace_ptr(rank) {
        DevicePtr::NULL => DevicePtr::NULL,
        workspace => at(workspace, offset),
    };
    core::array::from_fn(address)
}

fn lane_template(
    group: &Group,
    layout: &GpuLayout,
    lane: u32,
    (table, hosts, host): (DevicePtr, DevicePtr, DevicePtr),
) -> SymmemLane {
    SymmemLane {
        own: at(group.workspace_ptr(group.rank().index()), layout.lane(lane)),
        peers: near(group, layout.lane(lane)),
        table,
        workspace_back: layout.lane(lane),
        host,
        hosts,
        headers: layout.headers,
        flags: layout.flags,
        packets: layout.packets,
        lines: layout.lines,
        staging: layout.staging,
        staging_unit: layout.staging_unit,
        signature: 0,
        issue: 0,
        runs: DevicePtr::NULL,
        deadline_ns: 0,
        cancel: DevicePtr::NULL,
        launch: DevicePtr::NULL,
        rank: group.rank().index() as u32,
        world: group.size() as u32,
        max_blocks: layout.max_blocks,
        packet_count: layout.packet_count,
        line_count: layout.line_count,
        lane,
        operation: 0,
        checked: layout.checked.into(),
        patience: group.deadline_scale(),
        reserved: 0,
    }
}

/// Of channel 0; `fault` is the base of the control page.
fn signal_template(
    group: &Group,
    layout: &GpuLayout,
    (table, host): (DevicePtr, DevicePtr),
) -> SymmemSignal {
    let me = group.rank().index();
    SymmemSignal {
        peers: near(group, 0),
        table,
        own: group.workspace_ptr(me),
        slots_back: workspace_start(group),
        barriers: 0,
        state: DevicePtr::NULL,
        arrivals: DevicePtr::NULL,
        fault: host,
        any_fault: at(host, layout.page.any_fault()),
        lost: at(host, layout.page.lost),
        cancel: DevicePtr::NULL,
        deadline_ns: 0,
        launch: DevicePtr::NULL,
        rank: me as u32,
        world: group.size() as u32,
        channel: 0,
        peer: 0,
        patience: group.deadline_scale(),
        reserved: [0; 3],
    }
}

/// The lanes' words, as the host reaches them.
#[derive(Clone, Debug)]
pub(crate) struct LaneMemory {
    layout: GpuLayout,
    /// Where a workspace begins in a region.
    start: u64,
    me: usize,
    regions: Vec<Memory>,
}

impl LaneMemory {
    pub(crate) fn new(group: &Group, layout: GpuLayout) -> Self {
        let (me, regions) = (group.rank().index(), group.regions().to_vec());
        LaneMemory { layout, start: workspace_start(group), me, regions }
    }

    /// Closes this rank's lanes. A device that has failed has closed them by itself.
    pub(crate) fn retire(&self) {
        let (layout, pitch) = (&self.layout, Bytes(size_of::<BlockRecord>() as u64));
        for lane in 0..layout.lanes {
            let entry = Bytes(self.start + layout.lane(lane) + ENTRY);
            let blocks = layout.max_blocks as usize;
            let memory = &self.regions[self.me];
            if let Err(e) = memory.fill32(entry, pitch, Entry::Retired as u32, blocks) {
                tracing::warn!("lane {lane} of rank {} is not closed: {e}", self.me);
            }
        }
    }

    /// The words of the header that a rank's first block showed in the parity of an epoch to the rank of
    /// this region.
    fn words(&self, lane: u32, epoch: Epoch, writer: usize, reader: &Memory) -> Option<[u64; 4]> {
        let layout = &self.layout;
        let lane = self.start + layout.lane(lane.min(layout.lanes - 1));
        let place = (epoch.parity().index() * layout.world() + writer) as u64;
        let header = lane + layout.headers + 32 * place * u64::from(layout.max_blocks);
        let mut words = [0u64; 4];
        reader.read(Bytes(header), bytemuck::bytes_of_mut(&mut words)).ok()?;
        Some(words)
    }

    /// As [`lane::look_back`](crate::protocol::lane::look_back), of all lanes: on which one, and what.
    pub(crate) fn look_back(&self) -> Option<(u32, Mismatch)> {
        let own = &self.regions[self.me];
        (0..self.layout.lanes).find_map(|lane| {
            let mut record = BlockRecord::zeroed();
            let at = Bytes(self.start + self.layout.lane(lane));
            own.read(at, bytemuck::bytes_of_mut(&mut record)).ok()?;
            // In the middle of a checked operation, that looks itself.
            let epoch = Epoch::new(record.epoch)?.previous();
            let poll = |words: [u64; 4]| header::poll(&words.map(AtomicU64::new), epoch);
            let mine = poll(self.header(lane, epoch)?)?;
            let others = (0..self.regions.len()).filter(|rank| *rank != self.me);
            others.into_iter().find_map(|rank| {
                let theirs = poll(self.words(lane, epoch, rank, own)?)?;
                let difference = mine.compare(theirs).err()?;
                Some((lane, Mismatch { rank, epoch, difference }))
            })
        })
    }

    /// The header that this rank last showed to the others in the parity of an epoch.
    pub(crate) fn header(&self, lane: u32, epoch: Epoch) -> Option<[u64; 4]> {
        let reader = (0..self.regions.len()).find(|rank| *rank != self.me)?;
        self.words(lane, epoch, self.me, &self.regions[reader])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use symmem_mem::Options;

    use super::*;

    #[test]
    fn control_pages_are_as_large_as_what_they_hold() {
        for world in (1..=200).chain([1000]) {
            for pad in [4 * world as u64, 9216, 1 << 20] {
                let options = Options {
                    pad: Bytes(pad.max(4 * world as u64)),
                    workspace: Bytes::mib(512),
                    ..Options::default()
                };
                let layout = GpuLayout::new(&Agreed {
                    world,
                    pad: options.pad,
                    workspace: options.workspace,
                    lanes: 1,
                    max_blocks: options.max_blocks,
                    checked: false,
                    lines: true,
                });
                let needed = layout.unwrap().page.end;
                let given = options.control_bytes(world).unwrap().get();
                assert!(needed <= given, "{needed} of {given} at {world} ranks, pad {pad}");
            }
        }
    }
}
