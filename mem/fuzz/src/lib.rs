//! What the targets run: the crates' own checks of their decoders, with a bound on memory.

use peak_alloc::PeakAlloc;
use symmem_collectives::ChoiceTable;
use symmem_mem::fuzzing::{self, Target};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// No check holds more at a time than so many bytes for each of its input's.
///
/// An entry of three empty strings takes 3 bytes of a record and 72 of memory, twice that while its
/// list grows, and as much again in each of the copies that a check compares.
const FACTOR: usize = 512;

/// Nor more than this beside that: texts of errors, and what a first call sets up.
const BESIDE: usize = 64 << 10;

/// Those of the crates that need none of `symmem-mem`'s insides, and one that breaks the rule above.
const MORE: [Target; 3] = [
    ("choice_table", choice_table),
    ("kernel_bundle", symmem_hal::kernels::bundle::fuzz),
    ("planted", planted),
];

/// Runs a target on an input.
///
/// # Panics
///
/// Where something does not hold.
pub fn run(target: &str, bytes: &[u8]) {
    let found = fuzzing::TARGETS.iter().chain(&MORE).find(|(name, _)| *name == target);
    let Some((_, check)) = found else { panic!("no target {target}") };
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.peak_usage();
    check(bytes);
    let (most, limit) = (ALLOCATOR.peak_usage() - before, bytes.len() * FACTOR + BESIDE);
    assert!(most <= limit, "{most} bytes held for an input of {}: at most {limit}", bytes.len());
}

/// Bytes for each target, as ranks, launchers and tools write them.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let tables = TABLES.map(|table| ("choice_table", table.as_bytes().to_vec()));
    let bundles = symmem_hal::kernels::bundle::seeds().into_iter();
    let bundles = bundles.map(|bundle| ("kernel_bundle", bundle));
    fuzzing::seeds().into_iter().chain(tables).chain(bundles).collect()
}

const TABLES: [&str; 2] = [
    "format = 1\nsymmem = \"0.1.0\"\nmachine = \"m\"\ndate = \"2026-11-29\"\n",
    "format = 1
symmem = \"0.1.0\"
machine = \"a \\\"quoted\\\" machine\"
date = \"2026-11-29\"

[[row]]
operation = \"all_reduce\"
backend = \"host\"
ranks = 2
steps = [
    { algorithm = \"two-shot\" },
]

[[row]]
operation = \"all_reduce\"
backend = \"host\"
ranks = 8
steps = [
    { algorithm = \"packet\", up_to = 48 },
    { algorithm = \"one-shot\", up_to = 4096 },
    { algorithm = \"two-shot\" },
]
",
];

/// Holds a byte too many.
fn planted(bytes: &[u8]) {
    std::hint::black_box(vec![1u8; bytes.len() * FACTOR + BESIDE + 1]);
}

/// A table that is read is read again from what it is written as.
fn choice_table(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match ChoiceTable::parse(text) {
        Ok(table) => {
            let written = table.to_string();
            assert_eq!(ChoiceTable::parse(&written).as_ref(), Ok(&table), "{written}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
