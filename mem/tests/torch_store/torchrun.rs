//! Ranks that torchrun starts meet on the agent's store.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use symmem_hal::Wait;
use symmem_hal::types::Bytes;
use symmem_mem::bootstrap::{Bootstrap, StoreHost};
use symmem_mem::store::PrefixStore;
use symmem_mem::{Group, Options, Tensor};

use crate::python::{Python, Running, SCRIPT, VARIABLE};
use crate::store::Store;

/// What a rank is told to do.
const PART: &str = "SYMMEM_TEST_TORCHRUN";

const RANKS: usize = 4;

const PATIENT: Wait = Wait::seconds(60);

/// This process's part, if it is a rank.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Runs this program by torchrun; gives what its ranks wrote.
fn run(python: &Python, part: &str, options: &[&str]) -> String {
    let mut command = python.command();
    command
        .args(["-m", "torch.distributed.run", "--no-python"])
        .args(["--nproc-per-node", &RANKS.to_string()])
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .env(PART, part)
        .env(VARIABLE, &python.0);
    let (well, output) = Running::start(command).end();
    assert!(well, "{output}");
    output
}

fn count(output: &str, what: &str) -> usize {
    output.lines().filter(|line| line.contains(what)).count()
}

pub fn a_group_meets(python: &Python) {
    // As it is by default, but for the port, and with a store that the agent finds a place for.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    for options in [&["--master-port", &port][..], &["--standalone"]] {
        let output = run(python, "group", options);
        assert_eq!(count(&output, "of 4 met in attempt 0"), RANKS, "{output}");
    }
}

pub fn restarted(python: &Python) {
    let output = run(python, "restart", &["--standalone", "--max-restarts", "1"]);
    // The first attempt's ranks are ended as soon as one of them fails, so that not all may say so.
    assert!(count(&output, "of 4 met in attempt 0") >= 1, "{output}");
    assert_eq!(count(&output, "of 4 met in attempt 1"), RANKS, "{output}");
}

pub fn mixed(python: &Python) {
    let output = run(python, "mixed", &["--standalone"]);
    assert_eq!(count(&output, "python rank"), RANKS / 2, "{output}");
    assert_eq!(count(&output, "rust rank"), RANKS / 2, "{output}");
}

/// What a rank does.
pub fn rank(part: &str) -> ExitCode {
    let bootstrap = Bootstrap::from_env().unwrap();
    assert_eq!((bootstrap.world_size, bootstrap.host), (RANKS, StoreHost::Launcher));
    match part {
        "mixed" => mixed_rank(&bootstrap),
        _ => {
            let group = meet(&bootstrap);
            if part == "restart" && bootstrap.run.restart == 0 {
                // All have met before one fails, as a rank of a run that works does.
                group.split(None, 0, &PATIENT).unwrap();
                return ExitCode::from(u8::from(bootstrap.rank == 2));
            }
        }
    }
    ExitCode::SUCCESS
}

/// Makes the group, and memory in which every rank finds every rank's number.
fn meet(bootstrap: &Bootstrap) -> Group {
    let options = Options { workspace: Bytes::kib(256), ..Options::default() };
    let device = symmem_hal::Device::host();
    let group = Group::join(bootstrap, &device, &options, &PATIENT).unwrap();
    let tensor = Tensor::<u32>::zeros(group.device(), &[1000]).unwrap();
    tensor.write(&[bootstrap.rank as u32 + 1; 1000]).unwrap();
    let memory = group.rendezvous(&tensor, &PATIENT).unwrap();
    group.split(None, 0, &PATIENT).unwrap();
    for (rank, view) in memory.remotes().unwrap().into_iter().enumerate() {
        let found = Tensor::<u32>::try_from(view).unwrap().to_vec().unwrap();
        assert!(found == [rank as u32 + 1; 1000], "rank {rank}'s memory holds {:?}", &found[..4]);
    }
    let (rank, attempt) = (group.rank().index(), bootstrap.run.restart);
    println!("rank {rank} of {} met in attempt {attempt}", group.size());
    group.split(None, 0, &PATIENT).unwrap();
    group
}

/// Odd ranks are Python's.
fn mixed_rank(bootstrap: &Bootstrap) {
    let (rank, world) = (bootstrap.rank, bootstrap.world_size);
    if rank % 2 == 1 {
        let mut python = Command::new(std::env::var_os(VARIABLE).unwrap());
        let arguments = ["rank".to_owned(), rank.to_string(), world.to_string()];
        panic!("{}", python.arg(SCRIPT).args(arguments).exec());
    }
    let store = bootstrap.connect(&PATIENT).unwrap();
    let store = PrefixStore::new(store, "/mixed");
    store.set(&format!("rank/{rank}"), format!("rust {rank}").as_bytes(), &PATIENT).unwrap();
    let names: Vec<String> = (0..world).map(|rank| format!("rank/{rank}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    for (rank, value) in store.multi_get(&keys, &PATIENT).unwrap().into_iter().enumerate() {
        let language = if rank % 2 == 0 { "rust" } else { "python" };
        assert_eq!(value, format!("{language} {rank}").as_bytes());
    }
    store.add("sum", rank as i64, &PATIENT).unwrap();
    store.barrier("barrier", world as u64, &PATIENT).unwrap();
    let sum = world * (world - 1) / 2;
    assert_eq!(store.add("sum", 0, &PATIENT).unwrap(), sum as i64);
    println!("rust rank {rank} of {world} met");
}
