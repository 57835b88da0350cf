//! Two ranks' agreement records, compared.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| symmem_fuzz::run("agreement_record", bytes));
