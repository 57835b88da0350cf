//! What must be found: the control of the bound on memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("planted", bytes));
