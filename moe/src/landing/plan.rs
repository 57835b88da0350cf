//! What the kernels of the halves are given.

use symmem_hal::DevicePtr;

use crate::routing::plan::{CombinePlan, Payload, Routed};

/// What a rank tells another of the rows that it has sent there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Arrival {
    pub rows: u64,
    /// What is wrong with its tokens, if anything.
    pub finding: crate::verdict::Finding,
}

/// The send half of a dispatch.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct SendPlan {
    pub routed: Routed,
    pub payload: Payload,
    /// The expert of each token and choice, of `index` bytes, signed.
    pub indices: DevicePtr,
    /// f32 of each token and choice; null for 1.
    pub weights: DevicePtr,
    /// i64: how many tokens there are; null for all.
    pub count: DevicePtr,
    /// Rows of the payload's source.
    pub source_rows: u64,
    /// Where the address of each rank's records is, and where they begin.
    pub record_peers: DevicePtr,
    pub record_offset: u64,
    pub record_bytes: u64,
    /// Where the address of each rank's [`Arrival`]s is, by source, and where they begin.
    pub arrival_peers: DevicePtr,
    pub arrival_offset: u64,
    /// Bytes of an index.
    pub index: u32,
    pub reserved: u32,
}

/// The receive half of a dispatch.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct ReceivePlan {
    pub routed: Routed,
    /// This rank's [`Arrival`]s, by source.
    pub arrivals: DevicePtr,
    pub reserved: u64,
}

/// The send half of a combine.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct SendBackPlan {
    pub routed: Routed,
    /// What has been made of the rows that were received, at their places.
    pub rows: DevicePtr,
    /// Bytes of one.
    pub row: u64,
    /// Where the address of each rank's landing for them is, and where it begins.
    pub peers: DevicePtr,
    pub offset: u64,
}

/// The receive half of a combine.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct ReceiveBackPlan {
    /// Of whose rows none is another rank's memory.
    pub combine: CombinePlan,
    /// Where rows have come back, by the rank that they come from.
    pub rows: DevicePtr,
    pub reserved: u64,
}
