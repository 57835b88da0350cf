//! What the executors for a CPU are made of.
//!
//! A kernel opens its [`Work`], begins a session with the ranks it exchanges data with, and moves
//! its payload in one of a few shapes: [`exchange`] where data is moved, [`reduction`] where it is
//! reduced; each by packets, through staging, or by reaching into symmetric memory.
//!
//! Pieces and slices are multiples of 128 bytes from the logical start, functions of the count and
//! the agreed workspace alone.

mod exchange;
mod parts;
mod reduction;
mod staged;
mod streaming;
mod work;

use symmem_hal::{HostFn, Kernel, KernelSet};
use symmem_mem::call::Operation;

use crate::call::Plan;
use crate::{
    all_gather, all_reduce, all_to_all, all_to_all_nd, broadcast, reduce, reduce_scatter,
    reduce_scatter_offset,
};

pub(crate) use exchange::exchange;
pub(crate) use parts::{Runs, copy};
pub(crate) use reduction::{fold, reduction};
pub(crate) use staged::{Roles, staged};
pub(crate) use work::{Work, kernel};

/// The operations of this crate, and those of the layers above that are made of its blocks.
pub(crate) const OPERATIONS: [Operation; 10] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllToAll,
    Operation::ReduceScatterOffset,
    Operation::AllToAllNd,
    Operation::TileReduce,
    Operation::MultiRootTileReduce,
];

const fn kernel_of(operation: Operation, host: HostFn) -> Kernel {
    Kernel { name: operation.name(), args: size_of::<Plan>(), host }
}

/// The kernels of this crate.
pub(crate) static KERNELS: KernelSet = KernelSet {
    name: "symmem-collectives",
    kernels: &[
        kernel_of(Operation::AllReduce, all_reduce::host::run),
        kernel_of(Operation::AllGather, all_gather::host::run),
        kernel_of(Operation::ReduceScatter, reduce_scatter::host::run),
        kernel_of(Operation::Broadcast, broadcast::host::run),
        kernel_of(Operation::Reduce, reduce::host::run),
        kernel_of(Operation::AllToAll, all_to_all::host::run),
        kernel_of(Operation::ReduceScatterOffset, reduce_scatter_offset::host::run),
        kernel_of(Operation::AllToAllNd, all_to_all_nd::host::run),
        kernel_of(Operation::TileReduce, reduce_scatter_offset::host::run),
        kernel_of(Operation::MultiRootTileReduce, reduce_scatter_offset::host::run),
    ],
};
