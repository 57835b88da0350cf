//! Ranks for which the system has no thread.

#![allow(clippy::unwrap_used, missing_docs)]

use std::env;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symmem_hal::{Fault, Kind};
use symmem_mem::launch::Threads;
use symmem_mem::{Options, RendezvousError};

/// Set in the process whose ranks lack threads.
const STARVED: &str = "SYMMEM_TEST_STARVED";

/// The stack of each thread there: so large that address space, which the test limits, is gone
/// after a known number of them, and much is left for all else.
const STACK: u64 = 1 << 30;

fn main() -> ExitCode {
    if env::var_os(STARVED).is_some() {
        starved();
        return ExitCode::SUCCESS;
    }
    let trial = Trial::test("the_rank_is_named_and_the_others_do_not_wait_for_it", || {
        let mut child = Command::new(env::current_exe()?);
        // Read once a process, by the first thread it starts.
        let ended = child.env(STARVED, "yes").env("RUST_MIN_STACK", STACK.to_string()).status()?;
        if ended.success() { Ok(()) } else { Err(ended.to_string().into()) }
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// Two of five ranks get a thread.
fn starved() {
    let deadline = Duration::from_secs(60);
    let before = getrlimit(Resource::As);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let used = pages * rustix::param::page_size() as u64;
    let current = Some(used + 2 * STACK + STACK * 3 / 4);
    setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();

    let ran = AtomicUsize::new(0);
    let ranks = || Threads::new(5).options(Options { deadline, ..Options::default() });
    let since = Instant::now();
    let error = ranks().run(|_| ran.fetch_add(1, Ordering::Relaxed)).unwrap_err();
    assert!(matches!(error, RendezvousError::Thread { rank: 2, .. }), "{error}");
    assert_eq!(error.kind(), Kind::Exhausted);
    assert!(error.to_string().contains("rank 2"), "{error}");
    assert!(since.elapsed() < deadline, "the ranks that had threads waited for the others");
    assert_eq!(ran.load(Ordering::Relaxed), 0, "a body ran without all ranks");

    // With what they lacked, ranks of the same process run.
    setrlimit(Resource::As, before).unwrap();
    assert_eq!(ranks().run(|group| group.rank().index()).unwrap(), [0, 1, 2, 3, 4]);
}
