//! A device in software that behaves like a GPU: asynchronous, in order, and with memory whose
//! addresses mean nothing to the host. It proves that nothing above assumes a CPU.

mod device;
mod event;
mod graph;
mod memory;
mod module;
mod stream;

pub use device::Device;
pub use event::Event;
pub use graph::Graph;
pub use memory::Memory;
pub(crate) use memory::resolve;
pub use module::Module;
pub use stream::Stream;
