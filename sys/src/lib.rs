//! Raw declarations of the libraries that symmem can use, and the loader that finds them.
//!
//! ```
//! use symmem_sys::cuda::Driver;
//!
//! match Driver::get() {
//!     Ok(driver) => {
//!         println!("{} in {}", driver.version().map_or("?".into(), |v| v.to_string()),
//!             driver.path().display());
//!         match driver.cuMulticastCreate() {
//!             Ok(_function) => println!("multicast objects: the driver has them"),
//!             Err(missing) => println!("multicast objects: {missing}"),
//!         }
//!     }
//!     // A line for each place that was searched, with the dynamic linker's reason.
//!     Err(not_found) => println!("{not_found:#}"),
//! }
//! ```
pub mod cuda;
mod loader;
pub mod nvrtc;
mod probe;

pub use loader::{Attempt, MissingSymbol, NotFound, Place, Version};
pub use probe::{Found, LibraryReport, probe};
