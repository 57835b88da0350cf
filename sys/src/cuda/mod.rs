//! The CUDA driver (`libcuda`): declarations and the table of its functions.
//!
//! Does not contain anything of the runtime library (`libcudart`), which symmem never uses.

use core::ptr;

/// The declarations, generated from `cuda.h`.
///
/// Enumerations are integers in a struct with one constant for each known value, so that a value
/// that only a newer driver knows is still a valid Rust value. Sizes, alignments and offsets of all
/// structs are asserted against what clang computed from the header, at compile time.
// Unsafe is allowed because generated types have a zeroed `Default`. It is sound: every one of them
// consists of integers, raw pointers, optional function pointers, and arrays, structs and unions of
// those, for all of which zero bytes are a value.
#[allow(
    unsafe_code,
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
pub mod bindings;
mod table;

pub use table::Driver;

use bindings::CUstream;

/// The default stream that waits for the other blocking streams of its context: what a null stream
/// means in a library built without per-thread default streams.
///
/// A cast in a macro of the header, which the generator cannot express.
pub const CU_STREAM_LEGACY: CUstream = ptr::without_provenance_mut(1);

/// The default stream of the calling thread.
pub const CU_STREAM_PER_THREAD: CUstream = ptr::without_provenance_mut(2);
