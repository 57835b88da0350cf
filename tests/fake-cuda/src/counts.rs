//! How often each function was called, and how often it was made to fail; which kernels were launched,
//! with which words among their arguments.

use std::collections::BTreeMap;

use parking_lot::Mutex;

type Counts = Mutex<BTreeMap<&'static str, u64>>;

static CALLS: Counts = Mutex::new(BTreeMap::new());
static FAILED: Counts = Mutex::new(BTreeMap::new());

/// What a pattern of failures begins with.
const FAILURES: &str = "failed:";
/// What the name of a kernel begins with, and a word, in hexadecimal, that kernels were given.
const KERNEL: &str = "kernel:";
const WORD: &str = "word:";

#[derive(Debug)]
struct Launched {
    kernel: String,
    words: Vec<u64>,
}

static LAUNCHED: Mutex<Vec<Launched>> = Mutex::new(Vec::new());

pub(crate) fn add(call: &'static str) {
    *CALLS.lock().entry(call).or_default() += 1;
}

pub(crate) fn add_failed(call: &'static str) {
    *FAILED.lock().entry(call).or_default() += 1;
}

pub(crate) fn add_launch(kernel: String, words: Vec<u64>) {
    LAUNCHED.lock().push(Launched { kernel, words });
}

/// Launches of what a pattern says, if it is of launches.
fn of_launches(pattern: &str) -> Option<u64> {
    let launched = LAUNCHED.lock();
    let count = |is: &dyn Fn(&Launched) -> bool| launched.iter().filter(|l| is(l)).count() as u64;
    if let Some(kernel) = pattern.strip_prefix(KERNEL) {
        return Some(count(&|launch| matches(kernel, &launch.kernel)));
    }
    let word = u64::from_str_radix(pattern.strip_prefix(WORD)?, 16).ok()?;
    Some(count(&|launch| launch.words.contains(&word)))
}

/// Calls, or failures, of all functions that `pattern` matches.
pub(crate) fn of(pattern: &str) -> u64 {
    if let Some(count) = of_launches(pattern) {
        return count;
    }
    let (counts, pattern) = match pattern.strip_prefix(FAILURES) {
        Some(pattern) => (&FAILED, pattern),
        None => (&CALLS, pattern),
    };
    counts.lock().iter().filter(|(call, _)| matches(pattern, call)).map(|(_, count)| count).sum()
}

pub(crate) fn reset() {
    CALLS.lock().clear();
    FAILED.lock().clear();
    LAUNCHED.lock().clear();
}

/// Whether a function's name is `pattern`, or begins with what stands before its final star.
pub(crate) fn matches(pattern: &str, call: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => call.starts_with(beginning),
        None => pattern == call,
    }
}
