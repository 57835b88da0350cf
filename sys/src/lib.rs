//! symmem-sys
