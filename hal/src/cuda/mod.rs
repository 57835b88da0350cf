//! NVIDIA GPUs, by the CUDA driver, which is found when the first of them is asked for.
//!
//! Does not use the runtime library, nor a current context: each call makes its device's primary one
//! current and restores what was before. So it lives beside other users of the driver in a process,
//! and shares their memory and streams.

mod bounds;
mod cancel;
mod capture;
mod context;
mod copies;
mod device;
mod driver;
mod event;
mod graph;
mod host_memory;
#[cfg(feature = "cudarc")]
mod interop;
mod keeper;
mod legacy;
mod memory;
mod module;
mod multicast;
mod poller;
mod queue;
mod spare;
mod stream;
mod virtual_memory;

pub use bounds::LaunchBounds;
pub use cancel::CancelWord;
pub(crate) use context::reap;
pub use device::Device;
pub use event::Event;
pub use graph::Graph;
pub(crate) use host_memory::Registration;
#[cfg(feature = "cudarc")]
pub use interop::{CudarcError, CudarcSlice};
pub use memory::Memory;
pub use module::{Function, Module};
pub use multicast::{Multicast, MulticastError, MulticastMapping};
pub use stream::Stream;
