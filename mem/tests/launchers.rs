//! Ranks that real launchers start: Open MPI's mpirun, MPICH's mpiexec, Slurm's srun.
//!
//! Each test needs its launcher in `PATH`, and srun a cluster that takes jobs; without it the test is
//! skipped and says so. On Debian: `openmpi-bin`, `mpich`, `slurm-wlm`.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::env;
use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use symmem_hal::{Device, Wait};
use symmem_mem::bootstrap::{Bootstrap, Launcher};
use symmem_mem::launch::Processes;
use symmem_mem::{Group, Options, Tensor};

/// What a rank of a test is told.
const PART: &str = "SYMMEM_TEST_PART";
const RANKS: usize = 4;
const PATIENT: Wait = Wait::seconds(60);

type Test = fn(&Starter) -> Result<(), Failed>;

fn main() -> ExitCode {
    if let Ok(part) = env::var(PART) {
        return rank(&part);
    }
    let starters = [
        Starter::find(Launcher::OpenMpi, &["mpirun.openmpi", "mpirun"], "Open MPI"),
        Starter::find(Launcher::Hydra, &["mpiexec.mpich", "mpiexec.hydra", "mpiexec"], "HYDRA"),
        Starter::find(Launcher::Slurm, &["srun"], "slurm"),
    ];
    let tests: [(&str, Test); 5] = [
        ("ranks_meet", ranks_meet),
        ("runs_at_a_time_do_not_mix", runs_at_a_time),
        ("a_stale_rank_is_refused", stale_rank),
        ("a_taken_port_is_told", taken_port),
        ("launchers_inside", launchers_inside),
    ];
    let mut trials = Vec::new();
    for (starter, name) in starters.iter().zip(["mpirun", "mpiexec", "srun"]) {
        for (test, run) in tests {
            let found = starter.clone().ok();
            let run = move || found.as_ref().map_or(Ok(()), run);
            trials.push(
                Trial::test(format!("{name}::{test}"), run).with_ignored_flag(starter.is_err()),
            );
        }
        if let Err(reason) = starter {
            println!("skipped: {} tests: {reason}", tests.len());
        }
    }
    let hosts = starters.into_iter().last().unwrap().and_then(|srun| srun.on_two_hosts());
    if let Err(reason) = &hosts {
        println!("skipped: 1 test: {reason}");
    }
    let ignored = hosts.is_err();
    let run = move || hosts.as_ref().map_or(Ok(()), each_host_by_itself);
    trials.push(Trial::test("srun::each_host_by_itself", run).with_ignored_flag(ignored));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A launcher that is here.
#[derive(Clone)]
struct Starter {
    launcher: Launcher,
    program: &'static str,
    options: Vec<&'static str>,
}

impl Starter {
    /// The first program of these that says that it is that launcher, and starts what it is given.
    fn find(launcher: Launcher, programs: &[&'static str], version: &str) -> Result<Self, String> {
        let is_it = |program: &&&str| {
            let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version))
        };
        let Some(program) = programs.iter().find(is_it) else {
            return Err(format!("no {launcher} in PATH: {}", programs.join(", ")));
        };
        let options = match launcher {
            Launcher::OpenMpi => vec!["--oversubscribe"],
            Launcher::Slurm => vec!["--overcommit", "--immediate=20", "--nodes=1"],
            _ => Vec::new(),
        };
        Starter { launcher, program, options }.works(1)
    }

    fn on_two_hosts(mut self) -> Result<Self, String> {
        self.options.push("--nodes=2");
        self.works(2)
    }

    fn works(self, ranks: usize) -> Result<Self, String> {
        let mut command = self.command(ranks);
        match Run::start(command.arg("true")).and_then(Run::end) {
            Ok(end) if end.success => Ok(self),
            Ok(end) => Err(format!("{} starts nothing here: {}", self.program, end.text.trim())),
            Err(e) => Err(format!("{}: {}", self.program, e.message().unwrap_or("failed"))),
        }
    }

    fn command(&self, ranks: usize) -> Command {
        let mut command = Command::new(self.program);
        command.args(&self.options).args(["-n", &ranks.to_string()]);
        // Open MPI refuses root otherwise, and a test is what it takes root for.
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"] {
            command.env_remove(name);
        }
        command
    }

    /// This program as ranks.
    fn ranks(&self, ranks: usize, part: &str) -> Result<Command, Failed> {
        let mut command = self.command(ranks);
        command.arg(env::current_exe()?).env(PART, part);
        Ok(command)
    }
}

/// A launcher at work. Its end ends the ranks.
struct Run {
    child: Child,
    output: File,
}

struct End {
    success: bool,
    text: String,
}

impl Run {
    fn start(command: &mut Command) -> Result<Self, Failed> {
        // A file takes what a pipe may not, while nobody reads.
        let output = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        Ok(Run { child: command.spawn()?, output })
    }

    fn end(mut self) -> Result<End, Failed> {
        let deadline = Instant::now() + 2 * PATIENT.duration();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(End { success: status.success(), text: self.text()? });
            }
            if Instant::now() >= deadline {
                return Err(format!("the launcher does not end: {}", self.text()?).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn text(&mut self) -> Result<String, Failed> {
        let mut text = String::new();
        // The ranks' position is this one's.
        std::io::Seek::rewind(&mut self.output)?;
        self.output.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Success, with a line of every rank.
    fn ends_well(self, launcher: Launcher, ranks: usize) -> Result<(), Failed> {
        let End { success, text } = self.end()?;
        if !success {
            return Err(format!("the launcher failed: {text}").into());
        }
        for rank in 0..ranks {
            let line = format!("rank {rank} of {ranks} by {launcher}, sum {}", sum(ranks));
            let found = text.lines().filter(|found| found.contains(&line)).count();
            if found != 1 {
                return Err(format!("{found} times {line:?} in: {text}").into());
            }
        }
        Ok(())
    }

    /// Failure, of which a rank says so.
    fn fails_with(self, what: &str) -> Result<(), Failed> {
        let End { success, text } = self.end()?;
        if success || !text.contains(what) {
            return Err(format!("not {what:?}, but success {success}: {text}").into());
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // So that it ends its ranks, too.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

fn sum(ranks: usize) -> u32 {
    (1..=ranks as u32).sum()
}

fn ranks_meet(starter: &Starter) -> Result<(), Failed> {
    for ranks in [RANKS, 1] {
        Run::start(&mut starter.ranks(ranks, "sum")?)?.ends_well(starter.launcher, ranks)?;
    }
    Ok(())
}

fn runs_at_a_time(starter: &Starter) -> Result<(), Failed> {
    let runs: Vec<_> = (0..3)
        .map(|_| Run::start(&mut starter.ranks(RANKS, "sum")?))
        .collect::<Result<_, Failed>>()?;
    runs.into_iter().try_for_each(|run| run.ends_well(starter.launcher, RANKS))
}

fn stale_rank(starter: &Starter) -> Result<(), Failed> {
    let mut command = starter.ranks(RANKS, "sum")?;
    let run = Run::start(command.env("RANK", "0").env("WORLD_SIZE", "1"))?;
    run.fails_with("two launchers differ about this process: RANK=0 and WORLD_SIZE=1")?;
    // Ranks of PyTorch's names that are the launcher's own.
    let mut command = starter.ranks(1, "sum")?;
    let run = Run::start(command.env("RANK", "0").env("WORLD_SIZE", "1"))?;
    run.ends_well(starter.launcher, 1)
}

fn taken_port(starter: &Starter) -> Result<(), Failed> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port().to_string();
    // One rank: the others would wait for a store that takes them and says nothing.
    let mut command = starter.ranks(1, "sum")?;
    Run::start(command.env("MASTER_PORT", port))?.fails_with("set MASTER_PORT to a free one")
}

/// Each of two ranks starts a run of its own.
fn launchers_inside(starter: &Starter) -> Result<(), Failed> {
    let End { success, text } = Run::start(&mut starter.ranks(2, "launch")?)?.end()?;
    let line = format!("rank 1 of 2 by {}, sum 3", Launcher::SymmemRun);
    let found = text.lines().filter(|found| found.contains(&line)).count();
    if !success || found != 2 {
        return Err(format!("success {success}, {found} times {line:?}: {text}").into());
    }
    Ok(())
}

/// Four tasks on two hosts make a group of two on each.
fn each_host_by_itself(srun: &Starter) -> Result<(), Failed> {
    let mut command = srun.ranks(RANKS, "host")?;
    let End { success, text } = Run::start(command.env("SLURM_DISTRIBUTION", "block"))?.end()?;
    for rank in 0..2 {
        let line = format!("rank {rank} of 2 by {}, sum 3", Launcher::Slurm);
        let found = text.lines().filter(|found| found.contains(&line)).count();
        if !success || found != 2 {
            return Err(format!("success {success}, {found} times {line:?}: {text}").into());
        }
    }
    Ok(())
}

/// What this program is when a launcher has started it.
fn rank(part: &str) -> ExitCode {
    let played = match part {
        "launch" => launch(),
        "host" => here(),
        _ => Group::from_env().map_err(Failed::from).and_then(|group| meet(&group)),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}", e.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    }
}

/// All ranks' numbers, read from their memory and added up.
fn meet(group: &Group) -> Result<(), Failed> {
    let launcher = Bootstrap::from_env()?.launcher;
    let mine = Tensor::<u32>::zeros(group.device(), &[1000])?;
    mine.write(&[group.rank().index() as u32 + 1; 1000])?;
    let memory = group.rendezvous(&mine, &PATIENT)?;
    // Everybody has written, then everybody has read.
    group.split(None, 0, &PATIENT)?;
    let mut sums = vec![0; 1000];
    for view in memory.remotes()? {
        let theirs = Tensor::<u32>::try_from(view)?.to_vec()?;
        sums.iter_mut().zip(theirs).for_each(|(sum, one)| *sum += one);
    }
    group.split(None, 0, &PATIENT)?;
    if sums != [sum(group.size()); 1000] {
        return Err(format!("the sums are {:?}", &sums[..4]).into());
    }
    // In one piece, since ranks share the output.
    let line =
        format!("rank {} of {} by {launcher}, sum {}\n", group.rank(), group.size(), sums[0]);
    std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes())?;
    group.leave();
    Ok(())
}

fn launch() -> Result<(), Failed> {
    let mut job = Processes::new(env::current_exe()?, 2).env(PART, "sum").spawn()?;
    let ends = job.wait(&PATIENT)?;
    if ends.iter().all(|end| end.success()) {
        Ok(())
    } else {
        Err(format!("ranks ended with {ends:?}").into())
    }
}

/// Where the name of the first host means nothing, a group of this host is still made.
fn here() -> Result<(), Failed> {
    let all = Bootstrap::from_env()?;
    if (all.world_size, all.nodes) != (RANKS, Some(2)) {
        return Err(format!("{all:?}").into());
    }
    let here = all.on_this_host()?;
    meet(&Group::join(&here, &Device::host(), &Options::default(), &PATIENT)?)
}
