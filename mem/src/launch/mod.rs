//! Starting ranks: as threads of this process, or as processes of this host.

mod threads;

pub use threads::{Threads, threads};
