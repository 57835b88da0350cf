//! Memory a rank owns, and views of it.

mod allocation;
mod backing;
#[cfg(feature = "cuda")]
mod foreign;
pub(crate) mod ledger;
pub(crate) mod retire;
mod tensor;
mod view;

pub use allocation::{Allocation, is_symmetric};
pub(crate) use backing::Backing;
#[cfg(feature = "cuda")]
pub use foreign::ForeignError;
pub use retire::collect;
pub use tensor::{Tensor, TensorError};
pub use view::{View, ViewError};
