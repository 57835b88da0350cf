//! Ranks that do not see each other's processes: each counts them in a PID namespace of its own,
//! as ranks in containers of one host do.
//!
//! Needs `unshare` of util-linux and the right to make namespaces; without them the tests are
//! skipped and say so.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};
use symmem_hal::types::RankSet;
use symmem_hal::{Fault, Kind, Wait};
use symmem_mem::launch::Processes;
use symmem_mem::{Group, Tensor};

/// What a rank of a test is told.
const PART: &str = "SYMMEM_TEST_PART";
const APART: &str = "SYMMEM_TEST_APART";
const INSIDE: &str = "SYMMEM_TEST_INSIDE";

const RANKS: usize = 2;
const PATIENT: Wait = Wait::seconds(60);

fn main() -> ExitCode {
    if let Ok(part) = env::var(PART) {
        return rank(&part);
    }
    let refused = refused();
    let trial = |name: &str, apart: &'static [usize], part: &'static str| {
        Trial::test(name, move || run(apart, part)).with_ignored_flag(refused.is_some())
    };
    let trials = vec![
        trial("ranks_read_each_other_across_one", &[1], "meet"),
        trial("ranks_read_each_other_across_two", &[0, 1], "meet"),
        trial("the_end_of_a_rank_outside_is_seen", &[1], "0"),
        trial("the_end_of_a_rank_inside_is_seen", &[1], "1"),
        trial("the_end_of_a_rank_in_another_is_seen", &[0, 1], "0"),
    ];
    if let Some(reason) = refused {
        println!("skipped: {} tests: {reason}", trials.len());
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// `program`, in a PID namespace of its own. Root needs no user namespace, and may lack the right to
/// make one.
fn unshared(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--kill-child"]).arg(program);
    command
}

/// Why there can be no namespace here, if so.
fn refused() -> Option<String> {
    match unshared("true").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Some(format!("unshare: {e}")),
    }
}

/// Ranks of which some are apart, each in its own namespace.
fn run(apart: &[usize], part: &str) -> Result<(), Failed> {
    let apart: Vec<_> = apart.iter().map(usize::to_string).collect();
    let ranks = Processes::new(env::current_exe()?, RANKS).env(PART, part);
    let mut job = ranks.env(APART, apart.join(",")).spawn()?;
    let ends = job.wait(&PATIENT)?;
    if ends.iter().all(|end| end.success()) {
        Ok(())
    } else {
        Err(format!("ranks ended with {ends:?}").into())
    }
}

fn rank(part: &str) -> ExitCode {
    let rank = env::var("RANK").unwrap();
    let inside = env::var_os(INSIDE).is_some();
    if !inside && env::var(APART).unwrap().split(',').any(|apart| apart == rank) {
        let error = unshared(env::current_exe().unwrap()).env(INSIDE, "yes").exec();
        panic!("unshare: {error}");
    }
    assert_eq!(std::process::id() == 1, inside, "the first process of a namespace is number 1");
    let group = Group::from_env().unwrap();
    let me = group.rank().index();
    let mine = Tensor::<u32>::zeros(group.device(), &[100]).unwrap();
    mine.write(&vec![me as u32 + 1; 100]).unwrap();
    let memory = group.rendezvous(&mine, &PATIENT).unwrap();
    let other = group.rank_at(1 - me).unwrap();
    let theirs: Tensor<u32> = memory.remote(other).unwrap().try_into().unwrap();
    assert_eq!(theirs.to_vec().unwrap(), vec![other.index() as u32 + 1; 100]);
    // Nobody goes before both have read: each clears what it has read, and waits for its own to be.
    // A collective would not do, since a leader that ends at once takes answers along.
    theirs.write(&[0; 100]).unwrap();
    let deadline = PATIENT.deadline();
    while mine.to_vec().unwrap() != [0; 100] {
        assert!(Instant::now() < deadline, "the other rank has not read");
        std::thread::yield_now();
    }
    match part.parse::<usize>() {
        // Ends without leaving, so it is lost.
        Ok(lost) if lost == me => std::process::exit(0),
        Ok(lost) => {
            let since = Instant::now();
            let error = group.split(None, 0, &PATIENT).unwrap_err();
            assert_eq!(error.kind(), Kind::PeerLost, "{error}");
            assert_eq!(error.ranks(), RankSet::one(lost), "{error}");
            assert!(since.elapsed() < PATIENT.duration(), "told only by the deadline");
        }
        Err(_) => group.leave(),
    }
    ExitCode::SUCCESS
}
