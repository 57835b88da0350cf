//! The vocabulary of calls, which every layer shares because every failure names a call.

use core::fmt;

use symmem_hal::types::{DType, ReduceOp};

/// An operation that takes part in the lane protocol.
///
/// The discriminants travel between ranks and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Operation {
    /// Element-wise reduction whose result every rank gets.
    AllReduce = 1,
    /// Every rank gets the blocks of all ranks.
    AllGather = 2,
    /// Element-wise reduction of which every rank gets a block.
    ReduceScatter = 3,
    /// Every rank gets what one rank has.
    Broadcast = 4,
    /// Element-wise reduction whose result one rank gets.
    Reduce = 5,
    /// Every rank sends each rank a block.
    AllToAll = 6,
    /// Element-wise reduction of uneven blocks, each of which one rank gets.
    ReduceScatterOffset = 7,
    /// An all-to-all that moves one dimension of a tensor into another.
    AllToAllNd = 8,
    /// Every rank sends each rank as many rows as its splits on the device say.
    AllToAllVdev = 9,
    /// The same of rows for experts, whose receivers have each expert's rows together.
    AllToAllVdev2d = 10,
    /// The same the other way round: rows go back to where they came from.
    AllToAllVdev2dOffset = 11,
    /// Tokens go to the ranks of the experts that they have chosen.
    Dispatch = 12,
    /// Experts' rows come back to their tokens, and are summed there.
    Combine = 13,
    /// Element-wise reduction of a tile, which one rank gets.
    TileReduce = 14,
    /// Element-wise reduction of several tiles, each of which one rank gets.
    MultiRootTileReduce = 15,
    /// The half of a dispatch in which rows are stored in the landings of their ranks.
    DispatchSend = 16,
    /// The half of a dispatch after which they are there.
    DispatchReceive = 17,
    /// The half of a combine in which rows are stored in the landings of their tokens' ranks.
    CombineSend = 18,
    /// The half of a combine in which they are summed.
    CombineReceive = 19,
    /// An operation of a layer that this library does not have.
    Custom = 255,
}

impl Operation {
    /// The name used in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all_reduce",
            Operation::AllGather => "all_gather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Broadcast => "broadcast",
            Operation::Reduce => "reduce",
            Operation::AllToAll => "all_to_all",
            Operation::ReduceScatterOffset => "reduce_scatter_offset",
            Operation::AllToAllNd => "all_to_all_nd",
            Operation::AllToAllVdev => "all_to_all_vdev",
            Operation::AllToAllVdev2d => "all_to_all_vdev_2d",
            Operation::AllToAllVdev2dOffset => "all_to_all_vdev_2d_offset",
            Operation::Dispatch => "dispatch",
            Operation::Combine => "combine",
            Operation::TileReduce => "tile_reduce",
            Operation::MultiRootTileReduce => "multi_root_tile_reduce",
            Operation::DispatchSend => "dispatch_send",
            Operation::DispatchReceive => "dispatch_receive",
            Operation::CombineSend => "combine_send",
            Operation::CombineReceive => "combine_receive",
            Operation::Custom => "custom operation",
        }
    }

    /// The operation of a code; `None` for a code of none.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Operation::AllReduce),
            2 => Some(Operation::AllGather),
            3 => Some(Operation::ReduceScatter),
            4 => Some(Operation::Broadcast),
            5 => Some(Operation::Reduce),
            6 => Some(Operation::AllToAll),
            7 => Some(Operation::ReduceScatterOffset),
            8 => Some(Operation::AllToAllNd),
            9 => Some(Operation::AllToAllVdev),
            10 => Some(Operation::AllToAllVdev2d),
            11 => Some(Operation::AllToAllVdev2dOffset),
            12 => Some(Operation::Dispatch),
            13 => Some(Operation::Combine),
            14 => Some(Operation::TileReduce),
            15 => Some(Operation::MultiRootTileReduce),
            16 => Some(Operation::DispatchSend),
            17 => Some(Operation::DispatchReceive),
            18 => Some(Operation::CombineSend),
            19 => Some(Operation::CombineReceive),
            255 => Some(Operation::Custom),
            _ => None,
        }
    }
}

/// What a rank says of its call, in 64 bits: all that must be equal on every rank.
///
/// Bits 63..56 are the [`Operation`], 55..52 the element type, 51..48 the operator; the rest is a
/// hash of those and of everything else that must agree (count, root, algorithm, grid, lane, tag,
/// the memory peers touch, and whether the call is eager or from a graph). Two calls that differ
/// have different signatures but for one chance in 2^48.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature(pub u64);

impl Signature {
    /// A signature of these leading fields; `rest` feeds the hash.
    #[must_use]
    pub fn new(
        operation: Operation,
        dtype: Option<DType>,
        op: Option<ReduceOp>,
        rest: &[u64],
    ) -> Self {
        let lead = u64::from(operation as u8) << 56
            | u64::from(dtype.map_or(0, DType::code) & 0xf) << 52
            | u64::from(op.map_or(0, ReduceOp::code) & 0xf) << 48;
        let mut hash = mix(lead);
        for word in rest {
            hash = fold(hash ^ word);
        }
        Signature(lead | mix(hash) >> 16)
    }

    /// The signature of the same call recorded in a graph: as the `operation`-th of its lane in the
    /// `capture`-th capture that has any, both counted from 1.
    #[must_use]
    pub fn captured(self, capture: u64, operation: u64) -> Self {
        let hash = mix(mix(mix(self.0) ^ capture) ^ operation);
        Signature(self.0 & !HASH | hash & HASH)
    }

    fn operation(self) -> Option<Operation> {
        Operation::from_code((self.0 >> 56) as u8)
    }
}

/// The bits of a signature that are a hash.
const HASH: u64 = (1 << 48) - 1;

/// Both halves of a product, in one word: every bit moves bits on either side of it, for the price of
/// one multiplication.
const fn fold(x: u64) -> u64 {
    let product = x as u128 * 0xa076_1d64_78bd_642f;
    (product >> 64) as u64 ^ product as u64
}

/// The finaliser of splitmix64: a bijection in which every input bit moves every output bit.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl fmt::Display for Signature {
    /// What the leading fields say, and the hash: `all_reduce f32 sum #1f2e3d4c5b6a`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation().map_or("unknown operation", Operation::name))?;
        if let Some(dtype) = DType::from_code((self.0 >> 52) as u8 & 0xf) {
            write!(f, " {dtype}")?;
        }
        if let Some(op) = ReduceOp::from_code((self.0 >> 48) as u8 & 0xf) {
            write!(f, " {op}")?;
        }
        write!(f, " #{:012x}", self.0 & HASH)
    }
}

/// Which issue of its call an operation is, in 64 bits: bit 63 says that it is a run of an operation
/// in a graph, the others count those runs, or the operations that were issued on the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Issued(pub u64);

impl Issued {
    /// Set for a run of an operation in a graph.
    pub const REPLAY: u64 = 1 << 63;

    /// Whether it is a run of an operation in a graph.
    #[must_use]
    pub const fn is_replay(self) -> bool {
        self.0 & Self::REPLAY != 0
    }

    /// The count.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.0 & !Self::REPLAY
    }
}

impl fmt::Display for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        if self.is_replay() {
            write!(f, "run {count} in its graph")
        } else {
            write!(f, "operation {count} of its lane")
        }
    }
}

/// One rank's call, as its failure tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    /// What must be equal on every rank.
    pub signature: Signature,
    /// Which issue of it.
    pub issued: Issued,
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.signature, self.issued)
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_counts() {
        let base =
            Signature::new(Operation::AllReduce, Some(DType::F32), Some(ReduceOp::Sum), &[10, 0]);
        let others = [
            Signature::new(Operation::AllReduce, Some(DType::BF16), Some(ReduceOp::Sum), &[10, 0]),
            Signature::new(Operation::AllReduce, Some(DType::F32), Some(ReduceOp::Max), &[10, 0]),
            Signature::new(Operation::AllReduce, Some(DType::F32), Some(ReduceOp::Sum), &[11, 0]),
            Signature::new(Operation::AllReduce, Some(DType::F32), Some(ReduceOp::Sum), &[10, 1]),
            Signature::new(Operation::AllReduce, Some(DType::F32), Some(ReduceOp::Sum), &[0, 10]),
            Signature::new(Operation::AllReduce, Some(DType::F32), Some(ReduceOp::Sum), &[10]),
            base.captured(1, 1),
            base.captured(1, 2),
            base.captured(2, 1),
        ];
        for other in others {
            assert_ne!(base, other);
        }
        let lead = "all_reduce f32 sum #";
        for signature in [base, base.captured(1, 1)] {
            assert!(signature.to_string().starts_with(lead), "{signature}");
        }
        assert_ne!(base.captured(1, 2), base.captured(2, 1));
    }
}
