//! Graphs of this backend: launches that the CPU runs again.

pub use crate::recording::Graph;
