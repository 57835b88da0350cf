//! Multicast addresses of symmetric memory: made by all ranks or by none, whichever of them is refused
//! at whichever step. Each test runs on threads of a process, and again on processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::env;
use std::io::Read;
use std::time::Instant;

use rig::Control;
use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{Device, Fault, Kind, Wait};
use symmem_mem::bootstrap::Bootstrap;
use symmem_mem::launch::{Processes, Threads};
use symmem_mem::{
    Group, MemoryPool, MulticastStep, NoMulticast, Options, SymmetricMemory, Tensor, collect,
    settings,
};

const RANKS: usize = 2;
const WORDS: u64 = 1000;
const PATIENT: Wait = Wait::seconds(30);
const THERE: (&str, &str) = ("SYMMEM_FAKE_CUDA_MULTICAST", "1");

/// One of two ranks.
struct Rank<'a> {
    group: &'a Group,
    me: usize,
    control: &'a Control,
    /// Whether the other is a process, with a library of its own.
    processes: bool,
}

/// Small: the library's memory is real.
fn options(multicast: bool) -> Options {
    Options { workspace: Bytes::mib(2), multicast, ..Options::default() }
}

/// Runs a test's body on both ranks.
fn on_ranks(environment: &[(&str, &str)], options: &Options, body: impl Fn(&Rank<'_>) + Sync) {
    if !rig::is_child() {
        rig::succeeded(&rig::child(environment).output().unwrap());
        return as_processes(environment);
    }
    let control = Control::open();
    let body = |group: &Group, processes: bool| {
        let rank = Rank { group, me: group.rank().index(), control: &control, processes };
        body(&rank);
        rank.meet();
    };
    if env::var_os("RANK").is_none() {
        let devices = (0..Device::cuda_count().unwrap()).map(|n| Device::cuda(n).unwrap());
        let threads = Threads::new(RANKS).options(options.clone()).devices(devices.collect());
        drop(threads.run(|group| body(&group, false)).unwrap());
    } else {
        let bootstrap = Bootstrap::from_env().unwrap();
        let ordinal = bootstrap.rank as u32 % Device::cuda_count().unwrap();
        settings::set_backend(BackendKind::Cuda).unwrap();
        let device = Device::cuda(ordinal).unwrap();
        body(&Group::join(&bootstrap, &device, options, &PATIENT).unwrap(), true);
    }
}

/// The calling thread's test again, as processes of this executable.
fn as_processes(environment: &[(&str, &str)]) {
    let child = rig::child(environment);
    let mut ranks = Processes::new(child.get_program(), RANKS).args(child.get_args()).piped();
    for (name, value) in child.get_envs() {
        ranks = ranks.env(name, value.unwrap_or_default());
    }
    let mut job = ranks.spawn().unwrap();
    let ends = job.wait(&Wait::seconds(120));
    let mut told = String::new();
    for rank in 0..RANKS {
        let child = job.child(rank).unwrap();
        // One that still runs says no more.
        let _ = child.kill();
        child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    }
    assert!(ends.is_ok_and(|ends| ends.iter().all(|end| end.success())), "{told}");
    assert_eq!(told.matches("1 passed").count(), RANKS, "{told}");
}

impl Rank<'_> {
    /// Waits for the other rank without a call of the driver.
    fn meet(&self) {
        self.group.agree("nothing", 0, &PATIENT).unwrap();
    }

    /// Tells the library of both ranks, or each its own.
    fn tell(&self, command: &str) {
        self.meet();
        if self.processes || self.me == 0 {
            self.control.tell(command);
        }
        self.meet();
    }

    /// Calls on both ranks, where `mine` are this rank's and all are `all`.
    fn assert_called(&self, call: &str, mine: [u64; RANKS]) {
        self.meet();
        let expected = if self.processes { mine[self.me] } else { mine.iter().sum() };
        assert_eq!(self.control.count(call), expected, "{call}");
        self.meet();
    }

    fn rendezvous(&self) -> (Tensor<u32>, SymmetricMemory) {
        self.rendezvous_while("clear")
    }

    /// A rendezvous of memory that is there before the library is told something.
    fn rendezvous_while(&self, command: &str) -> (Tensor<u32>, SymmetricMemory) {
        let tensor = Tensor::zeros(self.group.device(), &[WORDS]).unwrap();
        self.tell(command);
        let memory = self.group.rendezvous(&tensor, &PATIENT).unwrap();
        (tensor, memory)
    }

    /// That the memory is mapped, whatever became of its multicast address.
    fn assert_mapped(&self, tensor: &Tensor<u32>, memory: &SymmetricMemory) {
        tensor.write(&[self.me as u32 + 1; WORDS as usize]).unwrap();
        self.meet();
        let peer = self.group.rank_at(1 - self.me).unwrap();
        let theirs = Tensor::<u32>::try_from(memory.remote(peer).unwrap()).unwrap();
        assert_eq!(theirs.to_vec().unwrap(), [2 - self.me as u32; WORDS as usize]);
        self.meet();
    }

    /// That no more is held than was. Memory goes when the ranks that mapped it have said that they let
    /// go of it.
    fn wait_for_the_same(&self, before: &[(&str, u64)]) {
        self.meet();
        let start = Instant::now();
        while self.control.held() != before {
            let held = self.control.held();
            assert!(start.elapsed().as_secs() < 30, "{held:?} are left, of {before:?}");
            collect();
            std::thread::yield_now();
        }
        self.meet();
    }

    fn held(&self) -> Vec<(&'static str, u64)> {
        self.meet();
        let held = self.control.held();
        self.meet();
        held
    }
}

#[test]
fn symmetric_memory_has_one_address_for_all_ranks() {
    on_ranks(&[THERE], &options(true), |rank| {
        let (kept, _mapped) = rank.rendezvous();
        let before = rank.held();
        rank.tell("reset-counts");
        let (tensor, memory) = rank.rendezvous();
        let base = memory.multicast_ptr().unwrap();
        assert!(base.get().is_multiple_of(1 << 21) && base.get() != 0, "{base:?}");
        assert!(!memory.buffer_ptrs().contains(&base));
        rank.assert_mapped(&tensor, &memory);
        // A view's offset counts, and so do those of a pool's block and of a view in it.
        let part = rank.group.rendezvous(tensor.slice(3, 5).unwrap(), &PATIENT).unwrap();
        assert_eq!(part.multicast_ptr().unwrap().get(), base.get() + 12);
        let pool = MemoryPool::with_segments(rank.group.device(), Bytes::mib(2));
        let blocks = [16_u64, 16].map(|count| pool.empty::<u32>(&[count]).unwrap());
        let [first, second] = blocks.each_ref().map(|block| {
            let whole = rank.group.rendezvous(block, &PATIENT).unwrap();
            let view = rank.group.rendezvous(block.slice(1, 2).unwrap(), &PATIENT).unwrap();
            let base = whole.multicast_ptr().unwrap().get();
            assert_eq!(view.multicast_ptr().unwrap().get(), base + 4);
            let of_memory = rank.group.multicast_base(block).unwrap().unwrap();
            assert_eq!(of_memory.get() + block.offset().get(), base);
            base
        });
        let apart = blocks[1].ptr().get() - blocks[0].ptr().get();
        assert_eq!(second - first, apart);
        // Two memories: the tensor's and the pool's segment.
        rank.assert_called("cuMulticastCreate", [2, 0]);
        rank.assert_called("cuMulticastAddDevice", [2, 2]);
        rank.assert_called("cuMulticastBindMem", [2, 2]);
        rank.assert_called("cuMulticastUnbind", [0, 0]);
        drop((blocks, pool, part, memory, tensor));
        // A pool's blocks are let go of where ranks meet for it.
        rank.meet();
        rank.group.reclaim(&PATIENT).unwrap();
        rank.wait_for_the_same(&before);
        rank.assert_called("cuMulticastUnbind", [2, 2]);
        drop(kept);
    });
}

/// A step, the rank that is refused, the call that refuses, and which it is among its like of the
/// rendezvous: of threads, which share mappings, and of processes.
const REFUSALS: [(MulticastStep, usize, &str, [u64; 2]); 12] = [
    (MulticastStep::Create, 0, "cuMulticastGetGranularity", [1, 1]),
    (MulticastStep::Create, 0, "cuMulticastCreate", [1, 1]),
    (MulticastStep::Export, 0, "cuMemExportToShareableHandle", [1, 2]),
    (MulticastStep::Import, 1, "cuMulticastGetGranularity", [1, 1]),
    (MulticastStep::Import, 1, "cuMemImportFromShareableHandle", [1, 2]),
    (MulticastStep::Add, 0, "cuMulticastAddDevice", [1, 1]),
    (MulticastStep::Add, 1, "cuMulticastAddDevice", [1, 1]),
    (MulticastStep::Bind, 0, "cuMulticastBindMem", [1, 1]),
    (MulticastStep::Bind, 1, "cuMulticastBindMem", [1, 1]),
    (MulticastStep::Map, 1, "cuMemAddressReserve", [1, 2]),
    (MulticastStep::Map, 0, "cuMemMap", [1, 2]),
    (MulticastStep::Map, 1, "cuMemSetAccess", [2, 2]),
];

#[test]
fn what_is_refused_on_one_rank_is_done_without_on_all() {
    on_ranks(&[THERE], &options(true), |rank| {
        let (kept, _mapped) = rank.rendezvous();
        for (step, refused, call, nth) in REFUSALS {
            let before = rank.held();
            let nth = nth[usize::from(rank.processes)];
            let rule = format!("fail {refused}:{call}@{nth}=CUDA_ERROR_NOT_PERMITTED");
            let (tensor, memory) = rank.rendezvous_while(&rule);
            rank.tell("clear");
            let reason = memory.multicast_ptr().unwrap_err();
            let told = match &reason {
                NoMulticast::Failed { rank, step: at, reason }
                    if (*rank, *at) == (refused, step) =>
                {
                    reason.contains(call) && reason.contains("CUDA_ERROR_NOT_PERMITTED (800)")
                }
                _ => false,
            };
            assert!(told, "{step:?} of rank {refused}: {reason}");
            assert_eq!(reason.kind(), Kind::Unsupported);
            assert_eq!(reason.ranks().iter().collect::<Vec<_>>(), [refused]);
            let of_operations = rank.group.multicast_base(&tensor).unwrap();
            assert_eq!(of_operations.unwrap_err(), reason);
            rank.assert_mapped(&tensor, &memory);
            drop((tensor, memory));
            rank.wait_for_the_same(&before);
            // Nothing is the worse for it.
            let (tensor, memory) = rank.rendezvous();
            memory.multicast_ptr().unwrap();
            drop((tensor, memory));
            rank.wait_for_the_same(&before);
        }
        drop(kept);
    });
}

#[test]
fn what_is_not_ready_yet_is_tried_again_by_all_together() {
    const LATER: &str = "CUDA_ERROR_SYSTEM_NOT_READY";
    on_ranks(&[THERE], &options(true), |rank| {
        let (kept, _mapped) = rank.rendezvous();
        let before = rank.held();
        // What is refused, as above, and what is counted on each rank: who had succeeded, even in half a
        // step, does not do it again.
        for (call, nth, refused, counted, calls) in [
            ("cuMulticastCreate", [1, 1], 0, "cuMulticastCreate", [2, 0]),
            ("cuMemExportToShareableHandle", [1, 2], 0, "cuMulticastCreate", [1, 0]),
            ("cuMulticastAddDevice", [1, 1], 0, "cuMulticastAddDevice", [2, 1]),
            ("cuMulticastAddDevice", [1, 1], 1, "cuMulticastAddDevice", [1, 2]),
            ("cuMulticastAddDevice", [1, 1], 1, "cuMulticastGetGranularity", [1, 1]),
            ("cuMulticastBindMem", [1, 1], 1, "cuMulticastBindMem", [1, 2]),
            ("cuMemMap", [1, 2], 1, "cuMulticastBindMem", [1, 1]),
        ] {
            rank.tell("reset-counts");
            let nth = nth[usize::from(rank.processes)];
            let rule = format!("fail {refused}:{call}@{nth}={LATER}");
            let (tensor, memory) = rank.rendezvous_while(&rule);
            rank.tell("clear");
            memory.multicast_ptr().unwrap_or_else(|e| panic!("{call} of rank {refused}: {e}"));
            rank.assert_called(counted, calls);
            rank.assert_called(&format!("failed:{call}"), [0, 1].map(|r| u64::from(r == refused)));
            drop((tensor, memory));
            rank.wait_for_the_same(&before);
        }
        // Not for ever.
        rank.tell("reset-counts");
        let rule = format!("fail 1:cuMulticastBindMem={LATER}");
        let (tensor, memory) = rank.rendezvous_while(&rule);
        rank.tell("clear");
        let reason = memory.multicast_ptr().unwrap_err();
        let bind = |at: &MulticastStep| *at == MulticastStep::Bind;
        assert!(
            matches!(&reason, NoMulticast::Failed { rank: 1, step, .. } if bind(step)),
            "{reason}"
        );
        rank.assert_called("cuMulticastBindMem", [1, 4]);
        drop((tensor, memory));
        rank.wait_for_the_same(&before);
        drop(kept);
    });
}

#[test]
fn whoever_cannot_or_may_not_makes_no_call_for_it() {
    let off = |name, value| {
        let why = format!("rank 0: multicast is off: {name} is {value}");
        (vec![THERE, (name, value)], true, why)
    };
    let shared = "ranks 0, 1 share a device, and multicast needs one for each rank";
    let not_asked = "the group was made without multicast: Options::multicast is false";
    let cases = [
        off("SYMMEM_MULTICAST", "0"),
        off("NCCL_NVLS_ENABLE", "0"),
        off("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        off("NVSHMEM_DISABLE_NVLS", "1"),
        (vec![THERE, ("SYMMEM_FAKE_CUDA_DEVICES", "1")], true, shared.to_owned()),
        (vec![], true, "the devices of ranks 0, 1 have no multicast".to_owned()),
        (vec![THERE], false, not_asked.to_owned()),
    ];
    for (at, (environment, asked, why)) in cases.into_iter().enumerate() {
        let case = at.to_string();
        if rig::is_child() && env::var("CASE").as_ref() != Ok(&case) {
            continue;
        }
        let environment = [environment, vec![("CASE", &*case)]].concat();
        on_ranks(&environment, &options(asked), |rank| {
            let (tensor, memory) = rank.rendezvous();
            assert_eq!(memory.multicast_ptr().unwrap_err().to_string(), why);
            rank.assert_mapped(&tensor, &memory);
            assert_eq!(rank.control.count("cuMulticast*"), 0);
        });
    }
}

#[test]
fn a_group_of_one_has_none() {
    rig::isolated(&[THERE], |control| {
        let alone = Threads::new(1).options(options(true)).devices(vec![Device::cuda(0).unwrap()]);
        let body = |group: Group| {
            let tensor = Tensor::<u32>::zeros(group.device(), &[WORDS]).unwrap();
            let memory = group.rendezvous(&tensor, &PATIENT).unwrap();
            assert_eq!(memory.multicast_ptr(), Err(NoMulticast::Alone));
        };
        alone.run(body).unwrap();
        assert_eq!(control.count("cuMulticast*"), 0);
    });
}
