//! symmem-collectives
