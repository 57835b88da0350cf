//! Messages on links between processes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("link_message", bytes));
