//! Memory a rank owns, and views of it.

mod allocation;
pub(crate) mod retire;
mod tensor;
mod view;

pub use allocation::Allocation;
pub use retire::collect;
pub use tensor::{Tensor, TensorError};
pub use view::{View, ViewError};
