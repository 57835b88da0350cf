//! The argument block of the all-reduce kernel.

use symmem_hal::DevicePtr;
use symmem_sync::host::LaneArgs;

use super::Call;

/// Everything that an executor needs; it validates and chooses nothing.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Plan {
    pub lane: LaneArgs,
    pub input: DevicePtr,
    pub output: DevicePtr,
    /// Elements.
    pub count: u64,
    /// Where the address of each rank's allocation is, if peers read inputs where they lie.
    pub peers: DevicePtr,
    /// Where the inputs begin in those allocations.
    pub peer_offset: u64,
    pub dtype: u32,
    pub op: u32,
    pub algorithm: u32,
    /// Whether all ranks have completed when this one has.
    pub group_completion: u32,
}

impl Plan {
    pub(super) fn new(lane: LaneArgs, call: &Call, group_completion: bool) -> Self {
        Plan {
            lane,
            input: call.input,
            output: call.output,
            count: call.count,
            peers: call.direct().map_or(DevicePtr::NULL, |d| d.peers),
            peer_offset: call.direct().map_or(0, |d| d.offset.get()),
            dtype: call.dtype.code().into(),
            op: call.op.code().into(),
            algorithm: call.algorithm.code().into(),
            group_completion: group_completion.into(),
        }
    }
}
