//! The CPU: memory is a sealed memfd, kernels are Rust functions, a stream runs inline by default.

pub(crate) mod device;
mod event;
mod graph;
mod memory;
mod module;
pub(crate) mod stream;

pub use device::Device;
pub use event::Event;
pub use graph::Graph;
pub use memory::Memory;
pub use module::Module;
pub use stream::Stream;
