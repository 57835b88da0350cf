//! What the kernels of routed rows are given.

use symmem_hal::DevicePtr;
use symmem_hal::types::DType;
use symmem_sync::host::LaneArgs;

use super::shape::{Layout, Shape};

/// Rows of one tensor that a dispatch carries, or two: quantised rows and their scales.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Payload {
    /// This rank's rows, one for each token.
    pub source: DevicePtr,
    /// Where those that this rank receives go.
    pub target: DevicePtr,
    /// Where the address of each rank's allocation of the target is.
    pub peers: DevicePtr,
    /// Where the target begins in that.
    pub offset: u64,
    /// Bytes of a row of the source.
    pub source_row: u64,
    /// Bytes of a row of the target.
    pub row: u64,
    /// Code of the type that is quantised; 0 for rows that are copied.
    pub dtype: u32,
    pub reserved: [u32; 3],
    /// As `target`, `peers`, `offset` and `row`, of the scales of a quantised row.
    pub scales: DevicePtr,
    pub scale_peers: DevicePtr,
    pub scale_offset: u64,
    pub scale_row: u64,
}

/// Most tensors that one dispatch carries.
pub(crate) const PAYLOADS: usize = 4;

/// What every kernel of a routing needs of it.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Routed {
    /// u64 of each token and choice: the rank and row that it went to, or [`NOWHERE`].
    pub places: DevicePtr,
    /// i64: rows of each local expert, or from each source; then where they begin.
    pub groups: DevicePtr,
    /// u64: tokens of this rank in the last dispatch.
    pub tokens: DevicePtr,
    /// u64 of each bin, for kernels that count this rank's rows there; null elsewhere.
    pub counts: DevicePtr,
    /// This lane's status record.
    pub status: DevicePtr,
    pub experts: u64,
    /// See [`Shape`].
    pub max_tokens: u64,
    pub capacity: u64,
    /// Of the layout: rows of a multiple, or for each expert.
    pub rows: u64,
    pub choices: u32,
    /// Code of the layout.
    pub layout: u32,
    /// Whether all ranks have completed when this one has.
    pub group_completion: u32,
    pub reserved: [u32; 3],
}

/// A place of a choice that went nowhere: of no expert, or dropped.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// Where the rank is in a place.
pub(crate) const RANK_SHIFT: u32 = 48;

/// A dispatch.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct DispatchPlan {
    pub routed: Routed,
    pub payloads: [Payload; PAYLOADS],
    /// The expert of each token and choice, of `index` bytes, signed; null to go where the last dispatch went.
    pub indices: DevicePtr,
    /// f32 of each token and choice; null for 1.
    pub weights: DevicePtr,
    /// i64: how many tokens there are; null for all.
    pub count: DevicePtr,
    /// Rows of the payloads' sources.
    pub source_rows: u64,
    /// Where the records of received rows are, and on each rank.
    pub records: DevicePtr,
    pub record_peers: DevicePtr,
    pub record_offset: u64,
    pub record_bytes: u64,
    pub payload_count: u32,
    /// Bytes of an index.
    pub index: u32,
    /// Whether rows that do not fit are dropped.
    pub drop: u32,
    /// Whether every rank shows all its tokens to all others.
    pub shows: u32,
}

/// A combine.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct CombinePlan {
    pub routed: Routed,
    /// Where the address of each rank's allocation of the experts' rows is.
    pub peers: DevicePtr,
    /// Where they begin in that.
    pub offset: u64,
    /// Elements of a row.
    pub count: u64,
    pub output: DevicePtr,
    pub output_rows: u64,
    /// f32 of each token and choice; null for 1.
    pub weights: DevicePtr,
    /// Code of the element type.
    pub dtype: u32,
    pub reserved: [u32; 3],
}

/// An argument block on a CPU.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct OnHost<P> {
    pub lane: LaneArgs,
    pub plan: P,
}

// SAFETY: both plans are of a size that leaves no gap after the lane's part, whose size and theirs are
// multiples of 8: asserted below.
#[allow(unsafe_code, reason = "says that there is no padding")]
unsafe impl<P: bytemuck::Pod> bytemuck::NoUninit for OnHost<P> {}

const _: () = {
    assert!(size_of::<OnHost<DispatchPlan>>() == size_of::<LaneArgs>() + size_of::<DispatchPlan>());
    assert!(size_of::<OnHost<CombinePlan>>() == size_of::<LaneArgs>() + size_of::<CombinePlan>());
};

/// What a receiver is told of a row. Where rows lie by rank, the local expert and the weight of each choice
/// follow, [`Chosen`] each.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Record {
    /// The rank that it came from.
    pub source: u32,
    /// The token there.
    pub token: u32,
    /// Which of its choices; the first that this rank has, where rows lie by rank.
    pub choice: u32,
    pub weight: f32,
    /// The row here that the token's payload was stored in: this one, or one from which it is copied.
    pub from: u64,
    /// The token's next row here, for GPUs that copy it there: [`NOWHERE`] for none.
    pub next: u64,
}

/// A token's choice, to the rank of its expert.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Chosen {
    /// Which of the rank's experts; -1 for another rank's, or none.
    pub expert: i32,
    pub weight: f32,
}

impl Layout {
    pub(crate) fn code(self) -> (u32, u64) {
        match self {
            Layout::Compact { align } => (1, align),
            Layout::Padded { rows } => (2, rows),
            Layout::RankMajor => (3, 0),
        }
    }

    fn from_code(code: u32, rows: u64) -> Self {
        match code {
            1 => Layout::Compact { align: rows },
            2 => Layout::Padded { rows },
            _ => Layout::RankMajor,
        }
    }
}

impl CombinePlan {
    /// Bytes of a row.
    pub(crate) fn row(&self) -> u64 {
        let dtype = u8::try_from(self.dtype).ok().and_then(DType::from_code);
        self.count * dtype.map_or(0, DType::size) as u64
    }
}

impl Routed {
    pub(crate) fn shape(&self, world: usize) -> Shape {
        Shape {
            world,
            experts: self.experts as usize,
            choices: self.choices as usize,
            tokens: self.max_tokens,
            capacity: self.capacity,
            layout: Layout::from_code(self.layout, self.rows),
        }
    }
}
