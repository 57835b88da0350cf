//! Tables of choices, in TOML.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("choice_table", bytes));
