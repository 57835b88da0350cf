//! symmem-sync

pub mod protocol;
