//! Raw declarations of the GPU libraries that symmem uses, and a loader that finds them at run
//! time.
//!
//! | module | library | header | functions |
//! |---|---|---|---|
//! | [`cuda`] | the CUDA driver, `libcuda` | `cuda.h` 13.0 | those symmem needs |
//! | [`nvrtc`] | NVIDIA's run-time compiler, `libnvrtc` | `nvrtc.h` 13.0 | all |
//!
//! Does:
//! - find each library where machines really have it: a path in `SYMMEM_CUDA_LIBRARY` or
//!   `SYMMEM_NVRTC_LIBRARY`, the dynamic linker's search, the usual folders, Python packages of
//!   `$VIRTUAL_ENV`, `$CONDA_PREFIX`, the `python3` on the path, the user and the system;
//! - resolve each function on its own. One that the installed release lacks is a [`MissingSymbol`]
//!   which tells that release, its path, and the release that brought the function;
//! - tell what was searched and why each try failed ([`NotFound`], [`probe`]).
//!
//! Does not:
//! - need a toolkit, a header, libclang or the libraries themselves to build, or any of the
//!   libraries to run;
//! - initialise a driver, or wrap a function: calls are `unsafe`, and what they need is in the
//!   vendors' manuals. Safe layers are `symmem-hal`'s;
//! - panic when something is missing.
//!
//! Choices:
//! - *Tables of pointers, not linked symbols.* A program that links against `libcuda` does not start
//!   on a machine without it. A table makes the library, and each of its functions, a question that
//!   has an answer at run time.
//! - *Names as exported.* `cuMemAlloc_v2` is what the library exports and its signature never
//!   changes; the header's `cuMemAlloc` stands for another function from release to release.
//! - *Generated, then committed.* Sizes and offsets come from a C compiler, not from reading, and are
//!   asserted again when this crate is compiled. `tools/bindgen` reads the wanted names from the
//!   tables themselves.
//! - *Loaded once, never closed.* A function pointer from a table may be kept and called until the
//!   process ends.
//!
//! The declarations are made from NVIDIA's headers; `NOTICE` says what that means for their terms.
//!
//! ```
//! use symmem_sys::cuda::Driver;
//!
//! match Driver::get() {
//!     Ok(driver) => {
//!         println!("driver for CUDA {:?}, {}", driver.version(), driver.path().display());
//!         match driver.cuMulticastCreate() {
//!             Ok(_function) => println!("the driver knows multicast objects"),
//!             Err(missing) => println!("no multicast objects: {missing}"),
//!         }
//!     }
//!     // One line for each place that was searched, with the dynamic linker's reason.
//!     Err(not_found) => println!("{not_found:#}"),
//! }
//! ```

#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!("the libraries that symmem-sys declares exist for 64-bit Unix systems only");

pub mod cuda;
mod loader;
pub mod nvrtc;
mod probe;

pub use loader::{Attempt, MissingSymbol, NotFound, Place, Version};
pub use probe::{Found, LibraryReport, probe};
