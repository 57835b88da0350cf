//! Why a call could not be issued.

use std::sync::Arc;

use symmem_hal::types::{BackendKind, Bytes, DType, RankSet, ReduceOp, UnsupportedOp};
use symmem_hal::{AllocError, Fault, Kind, LoadError, OrderError, SyncError};
use symmem_mem::call::Operation;
use symmem_mem::{NoMulticast, RankError, ViewError};
use symmem_sync::PrepareError;

use crate::choice::Algorithm;
use crate::table::TableError;

/// Why a collective could not be issued, whichever it is.
///
/// Found before anything is sent: no rank is affected but by not meeting this one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Input and output hold different types.
    #[error("the input holds {input}, the output {output}")]
    DType {
        /// The input's type.
        input: DType,
        /// The output's type.
        output: DType,
    },
    /// A view has gaps.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The operator is not defined on the type.
    #[error(transparent)]
    Op(#[from] UnsupportedOp),
    /// A rank is none of the group's.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// Input and output overlap otherwise than the operation allows.
    #[error(
        "input and output overlap, and not as the operation does it in place: keep them apart, or place the smaller one where the operation says"
    )]
    Overlap,
    /// A view or a stream is of another backend than the group.
    #[error("the group is on {group}, the {what} on {found}: take one of Group::device")]
    Backend {
        /// What is elsewhere.
        what: &'static str,
        /// The group's backend.
        group: BackendKind,
        /// The other.
        found: BackendKind,
    },
    /// Slices are borrowed for the call only, so the call must be done at its end: it needs an
    /// inline stream.
    #[error("slices need an inline stream of the host; this group is on {0}: use views")]
    Borrowed(BackendKind),
    /// The lane is another group's.
    #[error("the lane is another group's: take one of this group (Lanes::lane, Lanes::lanes)")]
    Lane,
    /// The operation has no such algorithm.
    #[error("{} has no algorithm {algorithm}: Algorithm::Auto takes one that it has", operation.name())]
    Algorithm {
        /// The operation.
        operation: Operation,
        /// The algorithm asked for.
        algorithm: Algorithm,
    },
    /// The algorithm asked for promises no bits, and the group was made to have the same everywhere.
    #[error("{algorithm} adds in an order of its own: it needs a group of Determinism::Relaxed")]
    Determinism {
        /// The algorithm asked for.
        algorithm: Algorithm,
    },
    /// The switch cannot do it: [`Algorithm::Multimem`] was asked for.
    #[error(transparent)]
    Multimem(#[from] NoMultimem),
    /// The algorithm asked for cannot take so much.
    #[error(
        "{bytes} do not fit in packets, which carry {capacity} on this lane: take another algorithm, or a larger Options::workspace"
    )]
    TooLargeForPackets {
        /// Bytes that a rank would send.
        bytes: Bytes,
        /// Bytes that fit.
        capacity: Bytes,
    },
    /// There is no device memory for the list of blocks.
    #[error(transparent)]
    Alloc(#[from] Arc<AllocError>),
    /// Earlier operations of this process did not end in time.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The stream cannot take it.
    #[error(transparent)]
    Stream(#[from] SyncError),
    /// The group cannot have lanes.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The table that the group was made with is none.
    #[error(transparent)]
    Choices(#[from] TableError),
}

/// Why the switch between GPUs cannot do what [`Algorithm::Multimem`] was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMultimem {
    /// There is no switch between devices of this sort.
    #[error("multimem is of GPUs: this group is on {0}")]
    Backend(BackendKind),
    /// It adds, and does nothing else.
    #[error("multimem reduces by sum, not by {0}")]
    Operator(ReduceOp),
    /// It adds floats of 16 and 32 bits.
    #[error("multimem sums f32, f16 and bf16, not {0}")]
    Type(DType),
    /// It moves whole vectors.
    #[error("multimem moves vectors of {vector}: the {what} begins at {offset} and holds {bytes}")]
    Vectors {
        /// Which buffer.
        what: &'static str,
        /// Where it begins in its memory.
        offset: Bytes,
        /// Its bytes; of an all-gather's output, those of a block.
        bytes: Bytes,
        /// Bytes of a vector, of which the two above are to be multiples.
        vector: Bytes,
    },
    /// It reaches symmetric memory alone.
    #[error("multimem needs symmetric memory: the {what} had no rendezvous in this group")]
    NotSymmetric {
        /// Which buffer.
        what: &'static str,
    },
    /// The memory has no multicast address.
    #[error("the {what} has no multicast address: {why}")]
    Multicast {
        /// Which buffer.
        what: &'static str,
        /// Why not.
        why: NoMulticast,
    },
}

impl Fault for NoMultimem {
    fn kind(&self) -> Kind {
        match self {
            NoMultimem::Backend(_) => Kind::Unsupported,
            NoMultimem::Multicast { why, .. } => why.kind(),
            _ => Kind::InvalidArgument,
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            NoMultimem::Multicast { why, .. } => why.ranks(),
            _ => RankSet::new(),
        }
    }
}

impl From<LoadError> for CallError {
    fn from(error: LoadError) -> Self {
        CallError::Prepare(error.into())
    }
}

impl Fault for CallError {
    fn kind(&self) -> Kind {
        match self {
            CallError::Alloc(e) => e.kind(),
            CallError::Order(e) => e.kind(),
            CallError::Stream(e) => e.kind(),
            CallError::Prepare(e) => e.kind(),
            CallError::Multimem(e) => e.kind(),
            CallError::Borrowed(_) => Kind::Unsupported,
            _ => Kind::InvalidArgument,
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            CallError::Order(e) => e.ranks(),
            CallError::Stream(e) => e.ranks(),
            CallError::Multimem(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

/// Implements [`Fault`] for the error of an operation, by variants that hold an error: `Failed`, `Call` and
/// those named. All else is a shape that the operation does not take.
#[doc(hidden)]
#[macro_export]
macro_rules! faults {
    ($error:ident $(: $($other:ident),+)?) => {
        impl symmem_hal::Fault for $error {
            fn kind(&self) -> symmem_hal::Kind {
                match self {
                    $error::Failed(e) => e.kind(),
                    $error::Call(e) => e.kind(),
                    $($($error::$other(e) => e.kind(),)+)?
                    #[allow(unreachable_patterns, reason = "some operations take every shape")]
                    _ => symmem_hal::Kind::InvalidArgument,
                }
            }

            fn ranks(&self) -> symmem_hal::types::RankSet {
                match self {
                    $error::Failed(e) => e.ranks(),
                    $error::Call(e) => e.ranks(),
                    $($($error::$other(e) => e.ranks(),)+)?
                    #[allow(unreachable_patterns, reason = "some operations take every shape")]
                    _ => symmem_hal::types::RankSet::new(),
                }
            }
        }
    };
}
pub(crate) use faults;
