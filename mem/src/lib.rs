//! symmem-mem
