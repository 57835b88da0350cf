//! Plain data every layer shares: element types, sizes, ranks, shapes, device identities.

mod bytes;
mod device;
mod dtype;
mod float8;
mod layout;
mod rank;
mod reduce_op;

pub use bytes::Bytes;
pub use device::{BackendKind, DeviceUuid};
pub use dtype::{DType, Element};
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use layout::{Layout, LayoutError, MAX_DIMS};
pub use rank::{Rank, RankSet, Scope};
pub use reduce_op::{ReduceOp, UnsupportedOp};
