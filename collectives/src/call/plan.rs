//! The argument block of every kernel of this crate.

use symmem_hal::DevicePtr;
use symmem_hal::types::Bytes;
use symmem_sync::host::LaneArgs;

/// Everything that an executor needs; it validates and chooses nothing. Lengths are in bytes.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Plan {
    pub lane: LaneArgs,
    pub input: DevicePtr,
    /// From the first element to one past the last.
    pub input_bytes: u64,
    /// What is copied over the input first, of the same length; null for nothing.
    pub source: DevicePtr,
    pub output: DevicePtr,
    /// As `input_bytes`; 0 where this rank gets no result.
    pub output_bytes: u64,
    pub geometry: Geometry,
    /// The array of [`Block`]s, of an operation that is given any.
    pub blocks: DevicePtr,
    pub block_count: u64,
    /// How much of each rank's part is staged at a time, a multiple of 128.
    pub piece: u64,
    /// Where the address of each rank's allocation is, unless `access` is staged.
    pub peers: DevicePtr,
    /// Where rank 0's buffer begins in its allocation.
    pub peer_offset: u64,
    /// How much further each next rank's begins in its own.
    pub peer_step: u64,
    pub rank: u32,
    /// The root of a rooted operation.
    pub root: u32,
    /// Code of the element type.
    pub dtype: u32,
    /// Code of the operator; 0 for none.
    pub op: u32,
    /// Code of the algorithm.
    pub algorithm: u32,
    /// Code of the [`Access`].
    pub access: u32,
    /// Whether all ranks have completed when this one has.
    pub group_completion: u32,
    /// Whether outputs are written past the cache.
    pub streams: u32,
}

/// How payload gets from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Access {
    /// Through packets or the workspace.
    Staged = 0,
    /// Peers' inputs are read where they lie.
    Read = 1,
    /// Peers' outputs are written where they lie.
    Write = 2,
}

/// Which bytes of its input a rank has for each rank, and where in its output those of each rank
/// go: a part of `rows` runs of `row` bytes for every rank.
///
/// Where an operation has one part for all, its pitch has step 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Geometry {
    pub rows: u64,
    pub row: u64,
    pub input: Pitch,
    pub output: Pitch,
}

/// A range of a rank's input of which one rank gets the reduction.
///
/// `rows` runs of `row` bytes, `stride` apart. Blocks are counted through: this one is the bytes
/// from `start` on of all blocks after each other, without gaps.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Block {
    pub(crate) start: u64,
    /// Where its first run begins, from where the input does; maybe in another allocation.
    pub(crate) at: u64,
    pub(crate) rows: u64,
    pub(crate) row: u64,
    pub(crate) stride: u64,
    /// Where this rank's result goes; null where it is another's.
    pub(crate) output: DevicePtr,
    /// How far apart its runs are there.
    pub(crate) output_stride: u64,
    pub(crate) owner: u64,
}

impl Block {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows * self.row
    }

    /// Bytes from the first run to one past the last, of runs `stride` apart.
    pub(crate) fn extent(&self, stride: u64) -> u64 {
        if self.bytes() == 0 { 0 } else { (self.rows - 1) * stride + self.row }
    }
}

/// How the parts lie in a buffer: one rank's begins `step` after that of the rank before, and its
/// runs begin `stride` after each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Pitch {
    pub step: u64,
    pub stride: u64,
}

impl Geometry {
    /// A part without gaps for each rank and from each, or one for all where a step is 0.
    pub(crate) fn flat(part: Bytes, input_step: Bytes, output_step: Bytes) -> Self {
        let pitch = |step: Bytes| Pitch { step: step.get(), stride: part.get() };
        Geometry { rows: 1, row: part.get(), input: pitch(input_step), output: pitch(output_step) }
    }

    /// Bytes of one part.
    pub(crate) fn part(&self) -> u64 {
        self.rows * self.row
    }

    /// Parts of the input that differ.
    pub(crate) fn slots(&self, world: usize) -> usize {
        if self.input.step == 0 { 1 } else { world }
    }
}
