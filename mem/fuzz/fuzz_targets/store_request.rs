//! What a store reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("store_request", bytes));
