//! A run on two hosts: network namespaces with a cable between them, in each two ranks that are processes,
//! started as torchrun does it, with the library as their driver. What fabric handles name is reached from
//! either host.
//!
//! Needs `ip` and the right to make namespaces; without them the tests are skipped and say so.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use libtest_mimic::{Arguments, Failed, Trial};
use symmem_hal::types::{BackendKind, RankSet};
use symmem_hal::{Device, Fault, Kind, Wait};
use symmem_mem::bootstrap::Bootstrap;
use symmem_mem::launch::StartError;
use symmem_mem::{Group, NoMulticast, Options, RendezvousError, Tensor, settings};

const PART: &str = "SYMMEM_TEST_PART";
/// A folder in which ranks and the test tell each other where they are.
const FOLDER: &str = "SYMMEM_TEST_FOLDER";
const RANKS: usize = 4;
/// On each host.
const LOCAL: usize = 2;
const PATIENT: Wait = Wait::seconds(60);

fn main() -> ExitCode {
    if let Ok(part) = env::var(PART) {
        return play(&part);
    }
    let refused = Network::new().err();
    let trial = |name: &str, body: fn() -> Result<(), Failed>| {
        if let Some(reason) = &refused {
            println!("skipped: {name}: {reason}");
        }
        Trial::test(name, body).with_ignored_flag(refused.is_some())
    };
    let trials = vec![
        trial("memory_is_reached_by_fabric_handles", || Run::new("memory")?.ends_well()),
        trial("memory_that_is_not_is_the_same_error_on_all", || Run::new("apart")?.ends_well()),
        trial("a_host_that_is_cut_off_is_named_and_comes_back", cut_off),
        trial("a_rank_that_dies_is_lost_on_the_other_host", || Run::new("dies")?.ends_well()),
        trial("a_rank_that_does_not_come_is_named_on_both_hosts", || {
            Run::new("absent")?.ends_well()
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

// ------------------------------------------------------------------------------- the test's side

/// Two namespaces and a cable.
struct Network(String);

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Network {
    fn new() -> Result<Self, String> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let network = Network(format!("symmem-{}-{number}", std::process::id()));
        let [a, b] = [0, 1].map(|host| network.host(host));
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"))?;
        for (host, name) in [a, b].iter().enumerate() {
            ip(&format!("-n {name} addr add {}/24 dev eth0", address(host)))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        network.plug(true)?;
        Ok(network)
    }

    fn host(&self, host: usize) -> String {
        format!("{}-{host}", self.0)
    }

    /// Puts the cable in, or pulls it out.
    fn plug(&self, is_in: bool) -> Result<(), String> {
        let state = if is_in { "up" } else { "down" };
        (0..2).try_for_each(|host| ip(&format!("-n {} link set eth0 {state}", self.host(host))))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // What is not there need not go.
        (0..2).for_each(|host| drop(ip(&format!("netns del {}", self.host(host)))));
    }
}

fn address(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

/// Ranks on both hosts; ended with it.
struct Run {
    network: Network,
    folder: PathBuf,
    ranks: Vec<Child>,
}

impl Run {
    fn new(part: &str) -> Result<Self, Failed> {
        let network = Network::new()?;
        let folder = env::temp_dir().join(&network.0);
        fs::create_dir_all(&folder)?;
        let mut run = Run { network, folder, ranks: Vec::new() };
        for rank in 0..RANKS {
            let host = rank / LOCAL;
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &run.network.host(host)]).arg(env::current_exe()?);
            command.env(PART, part).env(FOLDER, &run.folder).env("RANK", rank.to_string());
            command.env("WORLD_SIZE", RANKS.to_string());
            command.env("LOCAL_RANK", (rank % LOCAL).to_string());
            command.env("LOCAL_WORLD_SIZE", LOCAL.to_string());
            command.env("GROUP_RANK", host.to_string()).env("GROUP_WORLD_SIZE", "2");
            command.env("MASTER_ADDR", address(0)).env("MASTER_PORT", "29400");
            command.env("TORCHELASTIC_RUN_ID", &run.network.0);
            command.env("SYMMEM_CUDA_LIBRARY", rig::library());
            // Of memory that only descriptors carry, in one of the tests.
            command.env("SYMMEM_FAKE_CUDA_FABRIC", if part == "apart" { "0" } else { "1" });
            run.ranks.push(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        }
        Ok(run)
    }

    /// Waits until every rank is somewhere.
    fn await_all(&self, place: &str) -> Result<(), Failed> {
        eventually(|| (0..RANKS).all(|rank| at(&self.folder, place, rank).exists()))
            .then_some(())
            .ok_or_else(|| format!("not all ranks are at {place:?}").into())
    }

    fn tell(&self, word: &str) -> Result<(), Failed> {
        Ok(fs::write(self.folder.join(word), "")?)
    }

    fn ends_well(mut self) -> Result<(), Failed> {
        let ended =
            eventually(|| self.ranks.iter_mut().all(|r| matches!(r.try_wait(), Ok(Some(_)))));
        let mut told = String::new();
        for (rank, child) in self.ranks.drain(..).enumerate() {
            let mut child = child;
            let _ = child.kill();
            let output = child.wait_with_output()?;
            // The one that is to die does.
            let is_well = output.status.success() || at(&self.folder, "dies", rank).exists();
            if !is_well {
                let text = [&*output.stdout, &output.stderr].map(String::from_utf8_lossy).concat();
                told.push_str(&format!("rank {rank}: {}: {text}\n", output.status));
            }
        }
        if ended && told.is_empty() {
            Ok(())
        } else {
            Err(format!("all ended: {ended}; {told}").into())
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn at(folder: &Path, place: &str, rank: usize) -> PathBuf {
    folder.join(format!("{place}-{rank}"))
}

fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENT.duration();
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn cut_off() -> Result<(), Failed> {
    let run = Run::new("cut off")?;
    run.await_all("joined")?;
    run.network.plug(false)?;
    run.tell("cut")?;
    run.await_all("missed")?;
    run.network.plug(true)?;
    run.tell("mended")?;
    run.ends_well()
}

// ------------------------------------------------------------------------------- the ranks' side

fn play(part: &str) -> ExitCode {
    let rank: usize = env::var("RANK").unwrap().parse().unwrap();
    let body = match part {
        "memory" => memory,
        "apart" => apart,
        "cut off" => is_cut_off,
        "dies" => dies,
        "absent" => absent,
        _ => panic!("no part {part:?}"),
    };
    match body(rank) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    }
}

fn say(place: &str, rank: usize) {
    fs::write(at(Path::new(&env::var(FOLDER).unwrap()), place, rank), "").unwrap();
}

fn await_word(word: &str) -> Result<(), Failed> {
    let file = Path::new(&env::var(FOLDER).unwrap()).join(word);
    eventually(|| file.exists()).then_some(()).ok_or_else(|| format!("nobody said {word:?}").into())
}

fn join() -> Result<Group, Failed> {
    settings::set_backend(BackendKind::Cuda)?;
    Ok(Group::from_env()?)
}

fn must(holds: bool, what: impl core::fmt::Display) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(what.to_string().into()) }
}

/// Every rank writes to every rank's memory, and finds in its own what all wrote.
fn share(group: &Group) -> Result<(), Failed> {
    let (me, size) = (group.rank().index(), group.size());
    let tensor = Tensor::<u32>::zeros(group.device(), &[size as u64])?;
    let memory = group.rendezvous(&tensor, &PATIENT)?;
    for view in memory.remotes()? {
        Tensor::<u32>::try_from(view)?.slice(me as u64, 1)?.write(&[10 + me as u32])?;
    }
    group.agree("written", 1, &PATIENT)?;
    let found = tensor.to_vec()?;
    must(found.iter().copied().eq((0..size as u32).map(|rank| 10 + rank)), format!("{found:?}"))?;
    group.agree("read", 1, &PATIENT)?;
    Ok(())
}

fn memory(rank: usize) -> Result<(), Failed> {
    let group = join()?;
    share(&group)?;
    // Some of both hosts, in another order, and those of one.
    let across = [3, 0];
    if across.contains(&rank) {
        let ranks = [group.rank_at(3)?, group.rank_at(0)?];
        share(&group.subgroup(ranks).create(&PATIENT)?)?;
    }
    let near = group.split(Some((rank / LOCAL) as u32), 0, &PATIENT)?.ok_or("no group")?;
    must(near.size() == LOCAL, near.size())?;
    share(&near)?;
    // What peers let go of on the other host is let go of here.
    for _ in 0..20 {
        share(&group)?;
    }
    group.reclaim(&PATIENT)?;
    let multicast = Options { multicast: true, ..group.options().clone() };
    let all = group.ranks();
    let asking = group.subgroup(all).options(multicast).create(&PATIENT)?;
    let tensor = Tensor::<u32>::zeros(group.device(), &[8])?;
    let found = asking.rendezvous(&tensor, &PATIENT)?.multicast_ptr();
    must(
        matches!(
            found,
            Err(NoMulticast::Hosts | NoMulticast::Unsupported { .. } | NoMulticast::Off { .. })
        ),
        format!("{found:?}"),
    )?;
    group.agree("done", 1, &PATIENT)?;
    Ok(())
}

fn apart(rank: usize) -> Result<(), Failed> {
    let error = settings::set_backend(BackendKind::Cuda).map(|()| Group::from_env())?;
    let Err(StartError::Rendezvous(RendezvousError::Unreachable { rank: whose, peer, reason })) =
        error
    else {
        return Err("not the error of two hosts".into());
    };
    // The same on every rank: the first that cannot, and what it cannot.
    must((whose, peer) == (0, 2), format!("ranks {whose} and {peer}"))?;
    must(reason.contains("two hosts") && reason.contains("fabric handles"), &reason)?;
    // Those of one host are a run of their own.
    let bootstrap = Bootstrap::from_env()?.on_this_host()?;
    must(
        (bootstrap.rank, bootstrap.world_size) == (rank % LOCAL, LOCAL),
        format!("{bootstrap:?}"),
    )?;
    let device = Device::cuda((rank % LOCAL) as u32)?;
    share(&Group::join(&bootstrap, &device, &Options::default(), &PATIENT)?)
}

fn is_cut_off(rank: usize) -> Result<(), Failed> {
    let group = join()?;
    group.agree("here", 1, &PATIENT)?;
    say("joined", rank);
    await_word("cut")?;
    let started = Instant::now();
    let error = group.agree("cut", 1, &Wait::seconds(2)).unwrap_err();
    must(
        started.elapsed() < Duration::from_secs(8),
        format!("after {:?}: {error}", started.elapsed()),
    )?;
    // The store is on host 0: there it is known who does not come.
    if rank < LOCAL {
        must(error.kind() == Kind::TimedOut, &error)?;
        must(error.ranks() == [2, 3].into_iter().collect::<RankSet>(), &error)?;
    } else {
        must(matches!(error.kind(), Kind::TimedOut | Kind::System), &error)?;
    }
    say("missed", rank);
    await_word("mended")?;
    // Who was late learns that the others had given up; then all meet again.
    let mut last = String::new();
    for attempt in 0..10 {
        match group.agree("mended", attempt, &Wait::seconds(3)) {
            Ok(()) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last.into())
}

fn dies(rank: usize) -> Result<(), Failed> {
    let group = join()?;
    share(&group)?;
    if rank == 3 {
        say("dies", rank);
        std::process::abort();
    }
    // Long before the bound, on either host.
    let started = Instant::now();
    let error = group.agree("goes on", 1, &PATIENT).unwrap_err();
    must(error.ranks() == RankSet::one(3) && error.kind() == Kind::PeerLost, &error)?;
    must(started.elapsed() < Duration::from_secs(20), format!("{:?}", started.elapsed()))?;
    // Those who are left go on, on both hosts.
    let left = group.recover(&PATIENT)?;
    must(left.size() == RANKS - 1, left.size())?;
    share(&left)
}

fn absent(rank: usize) -> Result<(), Failed> {
    let group = join()?;
    group.agree("here", 1, &PATIENT)?;
    if rank == 1 {
        // There, in no meeting.
        thread::sleep(Duration::from_secs(4));
        return Ok(());
    }
    let started = Instant::now();
    let error = group.agree("all", 1, &Wait::seconds(2)).unwrap_err();
    must(error.ranks() == RankSet::one(1) && error.kind() == Kind::TimedOut, &error)?;
    must(started.elapsed() < Duration::from_secs(8), format!("{:?}", started.elapsed()))
}
