//! Finds a vendor's library on the machine and resolves its functions one by one.
//!
//! Does: look in a fixed, reported order of places; open the first library that answers; resolve
//! each symbol of a table on its own, so that one build runs on old and new releases.
//!
//! Does not: close a library again, call a vendor's initialisation, or panic when something is
//! missing.
//!
//! Choices:
//! - The order is: the override variable, the dynamic linker's own search (so whatever the program
//!   already loaded is used again), the usual folders, Python packages. An override is final: when
//!   it cannot be opened nothing else is tried, since another library than the one asked for is
//!   worse than none.
//! - Only names with a version (`libcuda.so.1`) are tried: they state the binary interface, and
//!   Python packages ship no others.
//! - A library stays open until the process ends. Its functions may be called from threads that
//!   outlive every owner, and vendors' libraries do not survive being closed and opened again.

mod error;
mod library;
mod search;
mod table;
mod version;

pub use error::{Attempt, MissingSymbol, NotFound, Place};
pub(crate) use library::Library;
pub(crate) use search::{Folder, Spec, process_variable};
pub(crate) use table::table;
pub use version::Version;
