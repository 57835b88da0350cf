//! Memory a rank owns, and views of it.

mod allocation;
mod backing;
pub(crate) mod ledger;
pub(crate) mod retire;
mod tensor;
mod view;

pub use allocation::{Allocation, is_symmetric};
pub(crate) use backing::Backing;
pub use retire::collect;
pub use tensor::{Tensor, TensorError};
pub use view::{View, ViewError};
