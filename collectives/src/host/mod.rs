//! What the executors for a CPU are made of.
//!
//! A kernel opens its [`Work`], begins a session with the ranks it exchanges data with, and moves
//! its payload in one of a few shapes: [`exchange`] where data is moved, [`reduction`] where it is
//! reduced; each by packets, through staging, or by reaching into symmetric memory.
//!
//! Pieces and slices are multiples of 128 bytes from the logical start, functions of the count and
//! the agreed workspace alone.

mod parts;
mod reduction;
mod staged;
mod work;

use symmem_hal::{Kernel, KernelSet};
use symmem_mem::call::Operation;

use crate::all_reduce;
use crate::call::Plan;

pub(crate) use reduction::reduce;
pub(crate) use staged::Roles;
pub(crate) use work::{Work, kernel};

/// The operations of this crate, in the order of their codes.
pub(crate) const OPERATIONS: [Operation; 1] = [Operation::AllReduce];

/// The kernels of this crate.
pub(crate) static KERNELS: KernelSet = KernelSet {
    name: "symmem-collectives",
    kernels: &[Kernel { name: "all_reduce", args: size_of::<Plan>(), host: all_reduce::host::run }],
};
