//! A run's token, as the store has it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("token", bytes));
