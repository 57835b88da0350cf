//! The executor for GPUs.
