//! What the kernels of this crate are given: the structs of `plan.cuh`, field by field.

use symmem_hal::DevicePtr;
use symmem_sync::gpu::SymmemLane;

use crate::call::Pitch;

/// Of `root`: no rank is other than the others.
pub(super) const EVERY_RANK: u32 = u32::MAX;

/// The argument struct of every kernel. Lengths are in bytes; what is chosen for its grid is in
/// [`Cut`](super::shape::Cut).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub(super) struct GpuPlan {
    pub lane: SymmemLane,
    pub input: DevicePtr,
    pub output: DevicePtr,
    /// Of a part.
    pub bytes: u64,
    /// Of each of its runs.
    pub row: u64,
    pub input_pitch: Pitch,
    pub output_pitch: Pitch,
    /// Where the address of each rank's allocation is that this rank reaches into; null where all is
    /// staged.
    pub peers: DevicePtr,
    /// Where rank 0's buffer begins in its allocation.
    pub peer_offset: u64,
    /// How much further each next rank's begins in its own.
    pub peer_step: u64,
    /// Of a part, what one rank reduces: in a two-shot; else all of it.
    pub slice: u64,
    /// Of a slice, what a block moves at a time.
    pub chunk: u64,
    /// Chunks of block 0.
    pub rounds: u32,
    /// Blocks that have as many; the others have one less.
    pub last: u32,
    /// Chunks of staging that a block has with each writer, in a ring.
    pub slots: u32,
    /// How many chunks are under way before the first is awaited.
    pub ahead: u32,
    /// The one rank that all is for, or from; [`EVERY_RANK`] for none.
    pub root: u32,
    /// Whether this rank gets a result.
    pub receives: u32,
    /// Whether all ranks have completed when this one has.
    pub group_completion: u32,
    /// Whether inputs and outputs, those of peers that are reached into included, are without gaps, and
    /// parts begin at multiples of 16.
    pub plain: u32,
    /// The array of [`GpuBlock`]s, of an operation that is given any.
    pub blocks: DevicePtr,
    pub block_count: u64,
    /// The code of the operator, for kernels that have several.
    pub op: u32,
    pub reserved: u32,
}

/// A range of a rank's input of which one rank gets the reduction.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(16))]
pub(super) struct GpuBlock {
    /// Chunks of all blocks before.
    pub first: u64,
    /// Where it begins in the input.
    pub at: u64,
    pub bytes: u64,
    pub row: u64,
    pub stride: u64,
    /// Where its owner's result goes; null on others.
    pub output: DevicePtr,
    pub owner: u64,
    /// How far apart the result's runs are.
    pub output_stride: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use core::mem::offset_of;

    use symmem_hal::kernels::struct_fields;

    use super::*;
    use crate::gpu::units::PLAN_CUH;

    macro_rules! check {
        ($t:ident as $theirs:literal: $($field:ident $(as $name:literal)?),+ $(,)?) => {
            let known = [
                ("Pitch", size_of::<Pitch>(), 8),
                ("Lane", size_of::<SymmemLane>(), 16),
            ];
            let (theirs, size) = struct_fields(PLAN_CUH.1, $theirs, &known).unwrap();
            assert_eq!(size, size_of::<$t>(), "size of {}", $theirs);
            let ours = [$((check!(@ $field $($name)?).to_owned(), offset_of!($t, $field))),+];
            assert_eq!(theirs, ours);
        };
        (@ $field:ident $name:literal) => { $name };
        (@ $field:ident) => { stringify!($field) };
    }

    #[test]
    fn kernels_have_the_same_structs() {
        check!(GpuPlan as "Plan": lane, input, output, bytes, row, input_pitch as "in",
            output_pitch as "out", peers, peer_offset, peer_step, slice, chunk, rounds, last, slots,
            ahead, root, receives, group_completion, plain, blocks, block_count, op);
        check!(GpuBlock as "Block": first, at, bytes, row, stride, output, owner,
            output_stride);
    }
}
