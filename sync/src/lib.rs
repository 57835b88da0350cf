//! Synchronization layer of symmem: what the bytes of a group's pad and workspace mean.
//!
//! # Does
//!
//! - [`Signals`]: put and wait on slots that have PyTorch's layout, and a barrier, on channels.
//! - [`Puts`]: data and its signal in one.
//! - [`Lanes`]: where operations of the layers above run, one at a time, in one order across streams
//!   and threads ([`Lane::issue`]), in captures as edges; several lanes beside each other; a lane's turn
//!   for the user's own work ([`Lane::scope`]).
//! - [`protocol`]: the protocols themselves, as pure state machines over a word trait, with the models
//!   that prove them. Kernels for devices mirror their steps by name.
//! - [`host`]: the same machines on memory that a CPU can reach, with a wait that spins, yields, then
//!   sleeps: what executors for the host and the stub are made of.
//! - `gpu`, with the feature `cuda`: the same words in device memory, the struct that kernels of a lane
//!   are given ([`Lane`]'s `issue_device`), and the public headers that they are written with, `symmem_lane.cuh`
//!   and `symmem_sync.cuh`.
//!
//! # Does not
//!
//! - Move payload: that is what collectives do with a [`host::Session`].
//! - Wait without a bound, or trap: a wait that ends early records why, and the caller's next look at
//!   the group returns it.
//! - Touch a user's channels for its own operations.
//! - Load code beside a kernel that waits: a CUDA driver waits for the kernels that run before it loads
//!   others, and so does a group's first signal, barrier or lane on a device. Who launches a kernel that
//!   waits for a peer, whose other calls are to end that wait, makes a first call, or
//!   [`Lane::prepare`], before it; ranks that are threads on one device, each before any of them does.
//!
//! # Choices
//!
//! - *Every operation travels with a header*: a 64-bit signature of the call and a count of the
//!   operations issued, compared by every rank with every peer before success is reported. Another
//!   count, operator, order or memory on one rank is an error on both sides, not wrong data.
//! - *A graph's operation says where it was captured, and its kernel counts its runs*: a launch too
//!   many, or in another order than on another rank, is told like any other difference.
//! - *Epochs live beside the buffers they guard* and are compared for equality, so that a replayed
//!   graph advances them and two handles cannot disagree.
//! - *No exit barrier*: two sets of buffers by parity, and the rule that nobody stores for epoch e + 2
//!   before its reader's word of e + 1.
//! - *Single writers and no read-modify-write* on the way: load-acquire and store-release on words.
//! - *Sleepers pay for their sleep*: `membarrier` on the sleeping side, so that a store costs its
//!   writer one load of a line that is in its cache.
//! - *One first failure*: the rank that gives up claims the report by compare-and-swap and writes it
//!   into every member's page, so that all report the same.
//!
//! # Two ranks
//!
//! ```
//! use symmem_sync::mem::launch;
//! use symmem_sync::{Channel, Signals};
//!
//! launch::threads(2, |group| {
//!     let other = group.rank_at(1 - group.rank().index())?;
//!     if group.rank().index() == 0 {
//!         // What rank 0 did before this, rank 1 sees after its wait.
//!         group.put_signal(other, Channel(7)).run()?;
//!     } else {
//!         group.wait_signal(other, Channel(7)).run()?;
//!     }
//!     group.barrier(Channel(0)).run()?;
//!     // The first channel that does not exist is refused before anything is stored.
//!     assert!(group.barrier(Channel(group.channels())).run().is_err());
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A graph
//!
//! What is captured happens at each launch, on every rank alike.
//!
//! ```
//! use symmem_sync::hal::StreamMode;
//! use symmem_sync::mem::launch;
//! use symmem_sync::{Channel, Signals};
//!
//! launch::threads(2, |group| {
//!     let stream = group.device().stream(StreamMode::Worker)?;
//!     stream.begin_capture()?;
//!     group.barrier(Channel(0)).on(&stream)?;
//!     let graph = stream.end_capture()?;
//!     for _ in 0..3 {
//!         graph.launch(&stream, &group.wait())?;
//!     }
//!     stream.synchronize(&group.wait())?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! })?
//! .into_iter()
//! .collect::<Result<(), _>>()?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

mod control;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod host;
mod lane;
mod layout;
mod page;
pub mod protocol;
mod puts;
mod shared;
mod signals;
#[cfg(feature = "stalls")]
#[doc(hidden)]
pub mod stalls;
#[cfg(not(feature = "stalls"))]
mod stalls;

#[cfg(feature = "cuda")]
pub use lane::Steps;
pub use lane::{Issue, Lane, LaneError, LaneScope, Lanes, LanesError};
pub use layout::{Capacities, Layout, WorkspaceTooSmall};
pub use puts::{PutError, PutWithSignal, Puts};
pub use shared::PrepareError;
pub use signals::{Channel, Signal, SignalCall, SignalError, Signals};
pub use symmem_hal as hal;
pub use symmem_mem as mem;
