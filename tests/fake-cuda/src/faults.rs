//! Calls that fail because a test said so, and contexts that failed for good.

use std::collections::BTreeMap;
use std::env;
use std::sync::LazyLock;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::CUresult as Code;

use crate::counts::matches;
use crate::{context, errors};

/// Which call fails, and how.
#[derive(Debug)]
struct Rule {
    rank: Option<u32>,
    pattern: String,
    from: u64,
    /// Every call from `from` on, not that one alone.
    onwards: bool,
    code: Code,
    /// The context does not recover from it.
    sticky: bool,
    seen: u64,
}

#[derive(Default)]
struct Faults {
    rules: Vec<Rule>,
    /// By device ordinal.
    sticky: BTreeMap<usize, Code>,
}

static FAULTS: LazyLock<Mutex<Faults>> = LazyLock::new(|| {
    let text = env::var("SYMMEM_FAKE_CUDA_FAIL").unwrap_or_default();
    let rules = parse(&text).unwrap_or_else(|| {
        // A test whose rules are not understood would pass without them.
        eprintln!("SYMMEM_FAKE_CUDA_FAIL: not understood: {text}");
        std::process::abort()
    });
    Mutex::new(Faults { rules, sticky: BTreeMap::new() })
});

/// `[rank:]call[@n[+]]=CODE[,sticky]`, several of them between semicolons.
fn parse(text: &str) -> Option<Vec<Rule>> {
    text.split(';').map(str::trim).filter(|rule| !rule.is_empty()).map(parse_rule).collect()
}

fn parse_rule(text: &str) -> Option<Rule> {
    let (selector, effect) = text.split_once('=')?;
    let (code, sticky) = match effect.split_once(',') {
        Some((code, "sticky")) => (code, true),
        Some(_) => return None,
        None => (effect, false),
    };
    let (rank, selector) = match selector.split_once(':') {
        Some((rank, rest)) => (Some(rank.parse().ok()?), rest),
        None => (None, selector),
    };
    let (pattern, from, onwards) = match selector.split_once('@') {
        None => (selector, 1, true),
        Some((pattern, number)) => {
            let onwards = number.ends_with('+');
            (pattern, number.trim_end_matches('+').parse().ok()?, onwards)
        }
    };
    let code = errors::by_name(code)?;
    Some(Rule { rank, pattern: pattern.to_owned(), from, onwards, code, sticky, seen: 0 })
}

/// Which rank the calling thread is: what the launcher says, else the ordinal of its device.
fn rank() -> Option<u32> {
    static LAUNCHED: LazyLock<Option<u32>> =
        LazyLock::new(|| env::var("RANK").ok().and_then(|rank| rank.parse().ok()));
    LAUNCHED.or_else(|| context::current_device().and_then(|device| u32::try_from(device).ok()))
}

/// The code that this call is to fail with.
pub(crate) fn injected(call: &str) -> Option<Code> {
    if call.starts_with("cuGetError") {
        return None;
    }
    let mut faults = FAULTS.lock();
    let mut found = None;
    for rule in &mut faults.rules {
        let mine = rule.rank.is_none() || rule.rank == rank();
        if !mine || !matches(&rule.pattern, call) {
            continue;
        }
        rule.seen += 1;
        let hit = rule.seen == rule.from || (rule.onwards && rule.seen > rule.from);
        if hit && found.is_none() {
            found = Some((rule.code, rule.sticky));
        }
    }
    let (code, sticky) = found?;
    if sticky {
        faults.sticky.entry(context::current_device().unwrap_or(0)).or_insert(code);
    }
    Some(code)
}

/// What broke a device's context, if anything did.
pub(crate) fn sticky(device: usize) -> Option<Code> {
    FAULTS.lock().sticky.get(&device).copied()
}

/// Breaks a device's context: all that is later asked of it fails with `code`.
pub(crate) fn break_context(device: usize, code: Code) {
    FAULTS.lock().sticky.entry(device).or_insert(code);
}

/// Replaces the rules; false, and nothing changes, where `text` is not understood.
pub(crate) fn replace(text: &str) -> bool {
    let Some(rules) = parse(text) else { return false };
    FAULTS.lock().rules = rules;
    true
}

/// No rules, and all contexts whole again.
pub(crate) fn clear() {
    *FAULTS.lock() = Faults::default();
}
