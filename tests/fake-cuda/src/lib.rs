//! A CUDA driver over host memory, for tests on machines without a GPU.
//!
//! The loader opens `libsymmem_fake_cuda.so` in place of the driver where `SYMMEM_CUDA_LIBRARY`
//! names it. It keeps the driver's books: devices, primary contexts, virtual mappings and who may
//! access them, handles that travel to other processes, multicast objects, streams that run in order
//! on threads of their own, events, captures, graphs, user objects. It refuses what the real driver
//! refuses, and any call on any rank can be told to fail.
//!
//! **It runs no kernels and proves nothing about what they do.** A launch checks its function, grid
//! and arguments and then does nothing. Copies, fills and stream memory operations are real.
//!
//! # What it takes from the environment
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `SYMMEM_FAKE_CUDA_DEVICES` | devices | 2 |
//! | `SYMMEM_FAKE_CUDA_MEMORY` | bytes a device has, counted in each process alone | 4 GiB |
//! | `SYMMEM_FAKE_CUDA_P2P` | pairs of devices without peer access, `0-1:no;1-2:no` | none |
//! | `SYMMEM_FAKE_CUDA_VMM` | `0`: no virtual memory management | 1 |
//! | `SYMMEM_FAKE_CUDA_POOLS` | `0`: no stream-ordered allocation | 1 |
//! | `SYMMEM_FAKE_CUDA_DESCRIPTORS` | `0`: no memory that leaves by descriptors | 1 |
//! | `SYMMEM_FAKE_CUDA_FABRIC` | `1`: fabric handles; `denied`: announced, but not permitted | 0 |
//! | `SYMMEM_FAKE_CUDA_MULTICAST` | `1`: multicast | 0 |
//! | `SYMMEM_FAKE_CUDA_MEM_OPS` | `0`: no stream memory operations | 1 |
//! | `SYMMEM_FAKE_CUDA_ARCH` | compute capability | 9.0 |
//! | `SYMMEM_FAKE_CUDA_WAIT_MS` | how long a stream waits for a value | 10000 |
//! | `SYMMEM_FAKE_CUDA_FAIL` | rules of failure, see [`control`] | none |
//! | `CUDA_VISIBLE_DEVICES` | ordinals, in the order in which they are seen | all |
//!
//! # Beyond the driver
//!
//! [`control`] has three functions more: to make calls fail and streams stand still, to count calls,
//! to count what is alive.
//!
//! # What it checks
//!
//! - Device memory is full of a pattern when it is handed out, never zero.
//! - Addresses are never handed out twice: what touches memory after its end gets
//!   `CUDA_ERROR_ILLEGAL_ADDRESS`, which breaks the device's context for good as on hardware. So
//!   does a copy or fill by a device without access to the range.
//! - A multicast object refuses a bind before all devices were added (where the real driver waits
//!   without bound), an import after its creator released it, an unbind after the memory has gone.
//! - A multicast object may be of the least granularity, as memory is; the recommended one is 16 times
//!   that.
//! - Calls that end a capture invalidate it, by the modes of the capture and of the thread.
//! - Callbacks may not call the driver.
//!
//! # What it does not do
//!
//! Peers of other processes do not share its budget of memory. Stores through a multicast mapping
//! reach nobody: it has no memory behind it. Memory pools of one's own, events between processes,
//! graph updates, parameters of functions are missing: their symbols are not exported, as from an older
//! driver.
#![allow(unsafe_code, reason = "a C interface: raw pointers in, raw pointers out")]
#![allow(non_snake_case, reason = "the driver's names")]

mod config;
pub mod context;
pub mod control;
mod counts;
pub mod device;
mod entry;
pub mod errors;
mod faults;
mod graph;
mod launch;
pub mod memory;
mod module;
mod multicast;
mod stream;
mod table;
