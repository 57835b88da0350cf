//! Ranks that die at each step of making a group and of a rendezvous: the next run of the same name,
//! on the same store and at once, finds nothing in its way.
//!
//! A step is a system call: the kernel kills the process at the first one of its kind, by a filter
//! that the rank sets on itself (`seccomp(2)`). Without that the tests are skipped and say so.

#![allow(clippy::unwrap_used, missing_docs, unsafe_code, reason = "sets a filter of system calls")]

mod rig;

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use rig::{Failed, Member, PATIENT, Runs, exchange};
use symmem_hal::types::RankSet;
use symmem_hal::{Fault as _, Kind, Wait};
use symmem_mem::Tensor;

/// What a rank does on its way into a group, alone: it makes its memory, finds the meeting point, leads
/// where nobody does, and meets itself.
const JOINING: &[(&str, libc::c_long)] = &[
    ("memfd_create", libc::SYS_memfd_create),
    ("ftruncate", libc::SYS_ftruncate),
    ("fallocate", libc::SYS_fallocate),
    ("bind", libc::SYS_bind),
    ("listen", libc::SYS_listen),
    ("accept4", libc::SYS_accept4),
    ("sendmsg", libc::SYS_sendmsg),
    ("recvmsg", libc::SYS_recvmsg),
];

/// What a member does in a rendezvous.
const MEETING: &[(&str, libc::c_long)] = &[
    ("connect", libc::SYS_connect),
    ("sendmsg", libc::SYS_sendmsg),
    ("recvmsg", libc::SYS_recvmsg),
    ("mmap", libc::SYS_mmap),
];

/// Done by who leads once all have come.
const LINKING: &[(&str, libc::c_long)] = &[("socketpair", libc::SYS_socketpair)];

fn main() -> ExitCode {
    if let Some(member) = Member::from_env() {
        return member.main(play);
    }
    // SAFETY: a request that changes nothing; the kernel reads a number at the pointer.
    let refused = unsafe {
        let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) != 0
    };
    if refused {
        println!("skipped: {}", std::io::Error::last_os_error());
    }
    let trial = |name: &str, runner: fn() -> Result<(), Failed>| {
        Trial::test(name, runner).with_ignored_flag(refused)
    };
    let trials = vec![
        trial("a_run_starts_after_a_death_at_each_step_of_joining", joining),
        trial("a_run_starts_after_its_leader_died_with_all_at_its_door", linking),
        trial("the_others_are_told_of_a_death_at_each_step_of_a_rendezvous", meeting),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The calls of a part, by its first word.
fn steps(of: &str) -> &'static [(&'static str, libc::c_long)] {
    match of {
        "joining" => JOINING,
        "meeting" => MEETING,
        _ => LINKING,
    }
}

/// A rank: joins and works with the others; is told that rank 1 is dead, or missing; or dies.
fn play(member: &Member) -> Result<(), Failed> {
    let mut words = member.part.split(' ');
    match (words.next().unwrap_or_default(), words.next()) {
        ("joins", _) => {
            let group = member.join(&PATIENT)??;
            exchange(&group)?;
            group.leave();
        }
        ("misses", _) => {
            let brief = Wait::timeout(Duration::from_millis(500));
            let Err(error) = member.join(&brief)? else { return Err("a group".into()) };
            if error.kind() != Kind::TimedOut || !error.ranks().contains(0) {
                return Err(format!("rank 0 is dead, found {error}").into());
            }
        }
        ("hears", _) => {
            let group = member.join(&PATIENT)??;
            exchange(&group)?;
            let tensor = Tensor::<u32>::zeros(group.device(), &[10])?;
            let Err(error) = group.rendezvous(&tensor, &PATIENT) else {
                return Err("a rendezvous with the dead".into());
            };
            if error.kind() != Kind::PeerLost || error.ranks() != RankSet::one(1) {
                return Err(format!("rank 1 has died, found {error}").into());
            }
        }
        (of, Some(step)) => {
            let group =
                (of == "meeting").then(|| member.join(&PATIENT)).transpose()?.transpose()?;
            group.iter().try_for_each(|group| exchange(group).map(drop))?;
            let store = member.store()?;
            let tensor = group.as_ref().map(|g| Tensor::<u32>::zeros(g.device(), &[10]));
            let tensor = tensor.transpose()?;
            let call = steps(of).iter().find(|(name, _)| *name == step);
            die_at(call.ok_or("no such step")?.1)?;
            match (group, tensor) {
                (Some(group), Some(tensor)) => drop(group.rendezvous(&tensor, &PATIENT)),
                _ => drop(member.join_on(store, &PATIENT)),
            }
            return Err(format!("has survived its first {step}").into());
        }
        (part, None) => return Err(format!("no part {part:?}").into()),
    }
    Ok(())
}

/// From now on this process dies at its first call of this number.
fn die_at(call: libc::c_long) -> Result<(), Failed> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        // The number stands first in what a filter sees.
        step(load, 0, 0, 0),
        step(equals, 0, 1, u32::try_from(call)?),
        step(answer, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // Threads that are there already, those of the liveness links and of the store, are meant too.
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
    // SAFETY: the kernel copies the program, which outlives the calls; nothing else is passed.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const filter,
            ) != 0
    };
    if failed { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}

/// That it was killed by its filter.
fn died(running: rig::Running, part: &str) -> Result<(), Failed> {
    let status = running.end()?;
    match status.signal() {
        Some(libc::SIGSYS) => Ok(()),
        _ => Err(format!("{part}: ended with {status}").into()),
    }
}

fn joining() -> Result<(), Failed> {
    let runs = Runs::new("joining", 2)?;
    for (step, _) in JOINING {
        let part = format!("joining {step}");
        died(runs.start(0, &part)?, &part)?;
        runs.all("joins")?;
    }
    Ok(())
}

fn linking() -> Result<(), Failed> {
    for (step, _) in LINKING {
        let runs = Runs::new("linking", 2)?;
        let part = format!("linking {step}");
        let victim = runs.start(0, &part)?;
        runs.await_leader()?;
        let other = runs.start(1, "misses")?;
        died(victim, &part)?;
        other.ends_well(1)?;
        runs.all("joins")?;
    }
    Ok(())
}

fn meeting() -> Result<(), Failed> {
    let runs = Runs::new("meeting", 3)?;
    for (step, _) in MEETING {
        let part = format!("meeting {step}");
        let (first, last) = (runs.start(0, "hears")?, runs.start(2, "hears")?);
        died(runs.start(1, &part)?, &part)?;
        first.ends_well(0)?;
        last.ends_well(2)?;
        runs.all("joins")?;
    }
    Ok(())
}
