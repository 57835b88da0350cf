//! Events of this backend: points in the work of its queues.

pub use crate::queue::Event;
