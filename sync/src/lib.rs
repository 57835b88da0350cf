//! symmem-sync
