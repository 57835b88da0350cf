//! What clients of a store read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("store_answer", bytes));
