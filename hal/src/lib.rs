//! Hardware layer of symmem: devices, streams, memory that peers can map, and the types every
//! layer shares.
//!
//! # Does
//!
//! - One set of public enums ([`Device`], [`Stream`], [`Event`], [`Graph`], [`Memory`], [`Module`])
//!   over all backends: `host` (the CPU), `stub` (an asynchronous, in-order device in software,
//!   whose memory the host cannot touch) and, with the feature of that name, `cuda` (NVIDIA GPUs).
//! - Memory that can be shared: a sealed memfd, reserved in full at creation after a look at every
//!   limit that applies, so that a later touch cannot fault.
//! - On GPUs, memory mapped by page tables: a peer's stays valid when the peer dies. It travels as a
//!   descriptor or a fabric handle; CUDA's older handles serve only memory that others allocated.
//! - Device code from source ([`kernels`]), and launches with a [`Grid`].
//! - Captures and graphs ([`Stream::begin_capture`], [`Graph`]): recorded launches with their edges,
//!   on every backend, with forks and joins by events.
//! - Order of work across streams by key ([`StreamOrder`]), inside a capture as edges, and the
//!   [`Health`] hook through which `synchronize` and a graph's launch report what went wrong above.
//! - The types that every layer shares ([`types`]), [`Fault`], and [`Wait`], without which nothing
//!   here blocks.
//!
//! # Does not
//!
//! - Know what a group, a peer or a collective is.
//! - Hand out references to device memory. A [`DevicePtr`] is a number; host memory that a peer may
//!   write is reached by atomics or by raw copies, see [`shm`].
//! - Have a current device: every call names its object, and leaves the thread's context of CUDA as
//!   it was.
//! - Link against, or need, anything of CUDA: the driver is looked for when the first GPU is asked for.
//! - Make a multicast object where a switch forbids it: `SYMMEM_MULTICAST=0`, `NCCL_NVLS_ENABLE=0`,
//!   `TORCH_SYMM_MEM_DISABLE_MULTICAST=1`, `NVSHMEM_DISABLE_NVLS=1`.
//!
//! # Choices
//!
//! - *Closed enums over a sealed trait set*, not generics: a backend is a run-time property of a
//!   buffer, and upper layers compile once.
//! - *A launch is a function and an argument block*, on the CPU as well. Closures would not survive
//!   the move to a device.
//! - *A default stream cannot be captured*: what a call borrows until it returns is safe on it.
//! - *Work that is only recorded is another context*: no order waits for it, and it waits for nobody.
//! - *The stub is asynchronous for real*: launches run on its own thread, its addresses point
//!   nowhere. What works on it assumes nothing about CPUs.
//!
//! - *What a GPU's stream uses is kept in batches*, one event for many launches, and let go of by later
//!   calls; in a capture the graph keeps it, whoever began the capture.
//! - *Waits ask again and again* instead of blocking in a driver, whose waits have no bound.
//! - *A device's primary context is never released*: what is dropped at a process's end finds it there.
//!
//! # Features
//!
//! - `cuda`: NVIDIA GPUs.
//! - `cudarc`: contexts, streams and slices of the crate of that name, in and out without copies.
//!
//! # Two ranks
//!
//! Two ranks of one process share a mapping; across processes the exported descriptor travels.
//!
//! ```
//! use symmem_hal::{Device, types::Bytes};
//!
//! let device = Device::host();
//! // Rank 0 allocates and exports.
//! let mine = device.allocate(Bytes::kib(4))?;
//! let exported = mine.export()?;
//! // Rank 1 imports: the same pages.
//! let peer = device.import(exported, Bytes::kib(4))?;
//! mine.write(Bytes::new(8), &7u32.to_ne_bytes())?;
//! let mut seen = [0; 4];
//! peer.read(Bytes::new(8), &mut seen)?;
//! assert_eq!(u32::from_ne_bytes(seen), 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod backend;
mod capture;
mod common;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod driver;
mod event;
pub mod fault;
mod graph;
mod health;
mod host;
pub mod kernels;
mod memory;
mod module;
mod order;
mod queue;
mod recording;
pub mod shm;
mod stream;
mod stub;
mod transfer;
pub mod types;
mod wait;
mod work;

pub use address::DevicePtr;
pub use bytemuck;
pub use capture::{Capture, CaptureError};
#[cfg(feature = "cuda")]
pub use cuda::{CancelWord, LaunchBounds, Multicast, MulticastError, MulticastMapping};
#[cfg(feature = "cudarc")]
pub use cuda::{CudarcError, CudarcSlice};
pub use device::{Capabilities, Device, DeviceError, DeviceMemory, PeerAccessError};
pub use driver::DriverError;
pub use event::Event;
pub use fault::{Fault, Kind};
pub use graph::Graph;
pub use health::{Health, SyncError};
pub use kernels::{KernelSource, Unit};
pub use memory::{
    AccessError, AllocError, ExportError, ImportError, Memory, RangeError, Shareable,
};
pub use module::{Function, HostFn, Kernel, KernelSet, LaunchContext, LoadError, Module};
pub use order::{OrderError, StreamOrder, Turn};
pub use stream::{Grid, KeepAlive, Launch, Launched, Stream, StreamId, StreamMode};
pub use wait::{CancelGuard, CancelToken, Wait};

/// Lets go of what finished work kept alive: of streams, and of graphs that are gone. Allocations and waits for
/// streams do the same; for who does neither for a long time.
pub fn reap() {
    #[cfg(feature = "cuda")]
    cuda::reap();
}
