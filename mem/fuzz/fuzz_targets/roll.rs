//! The value by which ranks agree on who goes on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("roll", bytes));
