//! What the kernels of an exchange by splits are given.

use symmem_hal::DevicePtr;
use symmem_sync::host::LaneArgs;

use super::shape::Shape;

/// Everything that an executor needs; it validates nothing but what the device alone knows.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(8))]
pub(crate) struct Vdev {
    pub input: DevicePtr,
    pub output: DevicePtr,
    /// i64 of each split.
    pub in_splits: DevicePtr,
    /// i64: where the rows of each split begin in the input; null where they follow each other.
    pub in_offsets: DevicePtr,
    /// i64 of each split received, then where the rows of each begin in the output.
    pub out_splits: DevicePtr,
    /// This lane's status record.
    pub status: DevicePtr,
    /// Where the address of each rank's allocation of the output is.
    pub peers: DevicePtr,
    /// Where the output begins in that, on every rank.
    pub peer_offset: u64,
    /// Bytes of a row.
    pub row: u64,
    /// Rows of the input.
    pub input_rows: u64,
    /// Rows of the output.
    pub capacity: u64,
    /// See [`Shape::align`].
    pub align: u64,
    /// See [`Shape::minor`].
    pub minor: u32,
    /// See [`Shape::by_bin`].
    pub by_bin: u32,
    /// Whether rows that do not fit are dropped.
    pub drop: u32,
    /// Whether all ranks have completed when this one has.
    pub group_completion: u32,
}

/// The argument block on a CPU.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct HostPlan {
    pub lane: LaneArgs,
    pub vdev: Vdev,
}

impl Vdev {
    pub(crate) fn shape(&self, world: usize) -> Shape {
        let minor = self.minor as usize;
        Shape { world, minor, by_bin: self.by_bin != 0, align: self.align }
    }
}
