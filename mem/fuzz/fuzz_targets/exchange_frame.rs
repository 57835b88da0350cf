//! Frames at the meeting point.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("exchange_frame", bytes));
