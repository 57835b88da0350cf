//! How often each function was called, and how often it was made to fail.

use std::collections::BTreeMap;

use parking_lot::Mutex;

type Counts = Mutex<BTreeMap<&'static str, u64>>;

static CALLS: Counts = Mutex::new(BTreeMap::new());
static FAILED: Counts = Mutex::new(BTreeMap::new());

/// What a pattern of failures begins with.
const FAILURES: &str = "failed:";

pub(crate) fn add(call: &'static str) {
    *CALLS.lock().entry(call).or_default() += 1;
}

pub(crate) fn add_failed(call: &'static str) {
    *FAILED.lock().entry(call).or_default() += 1;
}

/// Calls, or failures, of all functions that `pattern` matches.
pub(crate) fn of(pattern: &str) -> u64 {
    let (counts, pattern) = match pattern.strip_prefix(FAILURES) {
        Some(pattern) => (&FAILED, pattern),
        None => (&CALLS, pattern),
    };
    counts.lock().iter().filter(|(call, _)| matches(pattern, call)).map(|(_, count)| count).sum()
}

pub(crate) fn reset() {
    CALLS.lock().clear();
    FAILED.lock().clear();
}

/// Whether a function's name is `pattern`, or begins with what stands before its final star.
pub(crate) fn matches(pattern: &str, call: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => call.starts_with(beginning),
        None => pattern == call,
    }
}
