//! Symmetric memory.
