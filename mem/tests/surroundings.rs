//! What surrounds ranks: other users, other hosts, no privileges, a tiny `/dev/shm`, a memory control
//! group.
//!
//! Needs root, or else what root may: other users, namespaces, control groups. Tests for which that is
//! missing are skipped and say so.

#![allow(missing_docs, unsafe_code, reason = "goes into namespaces")]

mod rig;
#[path = "rig/users.rs"]
mod users;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use rig::{Failed, Member, PATIENT, Running, Runs, exchange};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use symmem_hal::shm::{LimitSource, SegmentError};
use symmem_hal::types::{Bytes, DType, Layout, RankSet};
use symmem_hal::{AllocError, Device, Fault as _, Kind, Wait};
use symmem_mem::store::Store as _;
use symmem_mem::{Allocation, View};
use users::{NOBODY, as_another, fails};

fn main() -> ExitCode {
    if users::is_probe() {
        return ExitCode::SUCCESS;
    }
    if let Some(member) = Member::from_env() {
        return member.main(play);
    }
    let trial = |name: &str, refused: Option<String>, runner: fn() -> Result<(), Failed>| {
        if let Some(reason) = &refused {
            println!("skipped: {name}: {reason}");
        }
        Trial::test(name, runner).with_ignored_flag(refused.is_some())
    };
    let user = as_another();
    let network = fails(Command::new("unshare").args(["--net", "--uts", "true"]));
    let mount = fails(tiny_dev_shm(&mut Command::new("unshare"), "true"));
    let trials = vec![
        trial("ranks_need_no_privileges", user.clone(), without_privileges),
        trial("another_users_run_of_the_name_is_told", user, another_user),
        trial("ranks_on_two_hosts_are_told_of_both", network, two_hosts),
        trial("dev_shm_may_be_tiny", mount, tiny),
        trial("a_memory_control_group_is_a_limit", Cgroup::refused(), control_group),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn play(member: &Member) -> Result<(), Failed> {
    match member.part.as_str() {
        "joins" => {
            let group = member.join(&PATIENT)??;
            exchange(&group)?;
            group.leave();
        }
        "joins without privileges" => {
            let status = fs::read_to_string("/proc/self/status")?;
            let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
            if effective.is_none_or(|set| set.trim().contains(|digit| digit != '0')) {
                return Err(format!("privileges: {effective:?}").into());
            }
            exchange(&member.join(&PATIENT)??)?.group().leave();
        }
        // Until it is killed.
        "stays" => {
            let group = member.join(&PATIENT)??;
            std::thread::sleep(PATIENT.duration());
            group.leave();
        }
        "is turned away" => {
            let Err(error) = member.join(&PATIENT)? else { return Err("a group".into()) };
            let text = error.to_string();
            let both = ["user 0 holds", &format!("this process is user {NOBODY}")];
            if !both.iter().all(|part| text.contains(part)) {
                return Err(format!("another user's run, found {text}").into());
            }
        }
        "is elsewhere" => elsewhere(member)?,
        "is limited" => limited()?,
        part => return Err(format!("no part {part:?}").into()),
    }
    Ok(())
}

fn without_privileges() -> Result<(), Failed> {
    let runs = Runs::new("unprivileged", 2)?;
    as_nobody(&runs, "joins without privileges")
}

/// All ranks, of another user.
fn as_nobody(runs: &Runs, part: &str) -> Result<(), Failed> {
    let start = |rank| -> Result<Running, Failed> {
        let mut command = Command::new(env::current_exe()?);
        Ok(Running(runs.as_rank(command.uid(NOBODY).gid(NOBODY), rank, part).spawn()?))
    };
    let ranks = [start(0)?, start(1)?];
    ranks.into_iter().enumerate().try_for_each(|(rank, running)| running.ends_well(rank))
}

/// Root's run is there when a process of another user comes; that user's run comes once root's is dead.
fn another_user() -> Result<(), Failed> {
    let runs = Runs::new("users", 2)?;
    let roots = [runs.start(0, "stays")?, runs.start(1, "stays")?];
    runs.await_leader()?;
    as_nobody(&runs, "is turned away")?;
    drop(roots);
    as_nobody(&runs, "joins")?;
    runs.all("joins")
}

fn two_hosts() -> Result<(), Failed> {
    Runs::new("hosts", 2)?.all("is elsewhere")
}

/// A rank on a host of its own, as far as networks and names go; it reached the store before.
fn elsewhere(member: &Member) -> Result<(), Failed> {
    let store = member.store()?;
    // SAFETY: descriptors stay shared, on which alone the call could break a promise.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWUTS) }?;
    rustix::system::sethostname(format!("host-{}", member.rank).as_bytes())?;
    // Both wait for as long, from the same moment.
    store.set(&format!("elsewhere/{}", member.rank), b"1", &PATIENT)?;
    store.wait(&["elsewhere/0", "elsewhere/1"], &PATIENT)?;
    let brief = Wait::timeout(Duration::from_millis(1500));
    let Err(error) = member.join_on(store, &brief) else { return Err("a group".into()) };
    let text = error.to_string();
    let told = ["2 different hosts", "host-0 (boot ", "host-1 (boot "];
    let named = error.ranks() == RankSet::one(1 - member.rank);
    if error.kind() != Kind::TimedOut || !named || !told.iter().all(|part| text.contains(part)) {
        return Err(format!("both hosts were to be named, found {text}").into());
    }
    Ok(())
}

/// Makes `unshare` into a command that runs `program` where `/dev/shm` holds 64 KiB.
fn tiny_dev_shm(unshare: &mut Command, program: impl AsRef<OsStr>) -> &mut Command {
    let script = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$0\"";
    unshare.args(["--mount", "sh", "-c", script]).arg(program)
}

/// A group's region alone is four times as large.
fn tiny() -> Result<(), Failed> {
    let runs = Runs::new("tiny", 2)?;
    let start = |rank| -> Result<Running, Failed> {
        let mut command = Command::new("unshare");
        let command = tiny_dev_shm(&mut command, env::current_exe()?);
        Ok(Running(runs.as_rank(command, rank, "joins").spawn()?))
    };
    let ranks = [start(0)?, start(1)?];
    ranks.into_iter().enumerate().try_for_each(|(rank, running)| running.ends_well(rank))
}

/// A memory control group below this process's own; removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    const MOST: u64 = 64 << 20;

    fn new(name: &str) -> std::io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let v1 = own.lines().find_map(|line| line.split_once(":memory:"));
        let v2 = own.lines().find_map(|line| line.split_once("0::"));
        let (mount, limit, path) = match (v1, v2) {
            (Some((_, path)), _) => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path),
            (None, Some((_, path))) => ("/sys/fs/cgroup", "memory.max", path),
            (None, None) => return Err(std::io::ErrorKind::NotFound.into()),
        };
        let name = format!("symmem-{name}-{}", std::process::id());
        let group = PathBuf::from(format!("{mount}{path}")).join(name);
        fs::create_dir(&group)?;
        let group = Cgroup(group);
        fs::write(group.0.join(limit), Self::MOST.to_string())?;
        Ok(group)
    }

    fn refused() -> Option<String> {
        Self::new("probe").err().map(|e| format!("no memory control group: {e}"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while a process is in it, which is then killed first.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Names the folder of the control group that a rank is to go into.
const CGROUP: &str = "SYMMEM_TEST_CGROUP";

fn control_group() -> Result<(), Failed> {
    let (runs, group) = (Runs::new("limited", 1)?, Cgroup::new("limited")?);
    let mut command = Command::new(env::current_exe()?);
    let command = runs.as_rank(command.env(CGROUP, &group.0), 0, "is limited");
    Running(command.spawn()?).ends_well(0)
}

/// Asks for more than the group has, which is said, and for less, of which every byte is there.
fn limited() -> Result<(), Failed> {
    let group = PathBuf::from(env::var(CGROUP)?);
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    let device = Device::host();
    let needed = Bytes::mib(100);
    let Err(error) = Allocation::new(&device, needed) else { return Err("100 MiB of 64".into()) };
    let AllocError::Segment(SegmentError::Limit { needed: said, limit }) = &error else {
        return Err(format!("not of a limit: {error}").into());
    };
    let within = limit.available <= Bytes::new(Cgroup::MOST);
    if error.kind() != Kind::Exhausted || limit.source != LimitSource::Cgroup || !within {
        return Err(format!("not of the control group: {error}").into());
    }
    if *said != needed || !error.to_string().contains("100 MiB of shared memory needed") {
        return Err(format!("{said} needed: {error}").into());
    }
    let memory = Allocation::new(&device, Bytes::mib(32))?;
    for mib in 0..32 {
        let view = View::new(&memory, Bytes::mib(mib), DType::U8, Layout::flat(1 << 20))?;
        view.write(&vec![1u8; 1 << 20])?;
    }
    Ok(())
}
