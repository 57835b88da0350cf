//! NVRTC (`libnvrtc`), NVIDIA's run-time compiler: declarations and the table of its functions.

/// The declarations, generated from `nvrtc.h`.
#[allow(missing_docs, non_camel_case_types, non_snake_case, clippy::all)]
#[rustfmt::skip]
pub mod bindings;
mod table;

pub use table::Nvrtc;
