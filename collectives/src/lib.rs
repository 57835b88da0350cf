//! symmem-collectives
pub mod numerics;
