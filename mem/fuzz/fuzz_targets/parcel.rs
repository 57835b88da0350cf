//! Handles beside frames, with their descriptors.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("parcel", bytes));
