//! Bundles of compiled kernels.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("kernel_bundle", bytes));
