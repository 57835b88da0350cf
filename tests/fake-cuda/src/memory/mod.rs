//! Memory: physical pieces, address space, who may access what, and the ways to share it.

pub mod host;
pub(crate) mod physical;
pub mod plain;
pub mod pointer;
pub mod share;
pub(crate) mod space;
pub mod vmm;

/// What sizes and addresses of virtual memory are multiples of.
pub(crate) const GRANULARITY: u64 = 2 << 20;
