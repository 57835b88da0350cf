//! symmem-mem

pub mod bootstrap;
pub mod store;
