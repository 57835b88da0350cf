//! How often each function was called.

use std::collections::BTreeMap;

use parking_lot::Mutex;

static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

pub(crate) fn add(call: &'static str) {
    *CALLS.lock().entry(call).or_default() += 1;
}

/// Calls of all functions that `pattern` matches.
pub(crate) fn of(pattern: &str) -> u64 {
    CALLS.lock().iter().filter(|(call, _)| matches(pattern, call)).map(|(_, count)| count).sum()
}

pub(crate) fn reset() {
    CALLS.lock().clear();
}

/// Whether a function's name is `pattern`, or begins with what stands before its final star.
pub(crate) fn matches(pattern: &str, call: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => call.starts_with(beginning),
        None => pattern == call,
    }
}
