//! How memory gets from rank to rank where these are processes: by descriptors, fabric handles, and
//! the older handles of memory that another library allocated.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "each calls the library under test")]

mod rig;

use std::io::Read as _;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use symmem_hal::types::{Bytes, DType, Layout};
use symmem_hal::{Device, DevicePtr, Fault as _, KeepAlive, Kind, Wait};
use symmem_mem::bootstrap::Bootstrap;
use symmem_mem::launch::{Processes, StartError};
use symmem_mem::{
    Allocation, ForeignError, Group, Options, RendezvousError, Tensor, View, collect,
};
use symmem_sys::cuda::Driver;
use symmem_sys::cuda::bindings::*;

macro_rules! do_ {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(
            unsafe { (Driver::get().unwrap().$name().unwrap())($($argument),*) },
            CUresult::CUDA_SUCCESS,
            stringify!($name)
        )
    };
}

const RANKS: usize = 2;
const WORDS: u64 = 1000;
const BYTES: Bytes = Bytes::new(4 * WORDS);
const PATIENT: Wait = Wait::seconds(60);
const GRANULARITY: usize = 2 << 20;

/// Two ranks, each a process with a device of its own.
fn ranks(environment: &[(&str, &str)], body: impl FnOnce(Result<Group, StartError>)) {
    if rig::is_child() {
        let bootstrap = Bootstrap::from_env().unwrap();
        let device = Device::cuda(bootstrap.rank as u32).unwrap();
        let options = Options { workspace: Bytes::mib(2), ..Options::default() };
        return body(Group::join(&bootstrap, &device, &options, &PATIENT));
    }
    let child = rig::child(environment);
    let mut processes = Processes::new(child.get_program(), RANKS).args(child.get_args()).piped();
    for (name, value) in child.get_envs() {
        processes = processes.env(name, value.unwrap());
    }
    let mut job = processes.spawn().unwrap();
    let ends = job.wait(&PATIENT).unwrap();
    for (rank, end) in ends.iter().enumerate() {
        let child = job.child(rank).unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(end.success() && text.contains("1 passed"), "rank {rank}, {end}:\n{text}");
    }
}

fn meet(group: &Group) {
    group.split(None, 0, &PATIENT).unwrap();
}

/// Each rank writes the other's memory, which is as large as a view's.
fn swap(group: &Group, mine: &View) {
    let me = group.rank().index();
    let handle = group.rendezvous(mine, &PATIENT).unwrap();
    let source = Tensor::<u32>::zeros(group.device(), &[WORDS]).unwrap();
    source.write(&vec![me as u32 + 1; WORDS as usize]).unwrap();
    let stream = group.device().default_stream().unwrap();
    handle.put(&source, group.rank_at(1 - me).unwrap()).on(&stream).unwrap();
    stream.synchronize(&PATIENT).unwrap();
    meet(group);
    let mut found = vec![0; WORDS as usize];
    mine.read(&mut found).unwrap();
    assert_eq!(found, vec![2 - me as u32; WORDS as usize]);
    meet(group);
}

fn words(allocation: &Allocation) -> View {
    View::new(allocation, Bytes::ZERO, DType::U32, Layout::flat(WORDS)).unwrap()
}

fn swap_own(group: Result<Group, StartError>) {
    let group = group.unwrap();
    swap(&group, &words(&Allocation::new(group.device(), BYTES).unwrap()));
}

#[test]
fn memory_goes_by_descriptors() {
    ranks(&[], swap_own);
}

#[test]
fn memory_goes_by_fabric_handles_where_there_are_no_descriptors() {
    let environment = [("SYMMEM_FAKE_CUDA_DESCRIPTORS", "0"), ("SYMMEM_FAKE_CUDA_FABRIC", "1")];
    ranks(&environment, swap_own);
}

#[test]
fn without_either_there_is_no_group() {
    ranks(&[("SYMMEM_FAKE_CUDA_DESCRIPTORS", "0")], |group| {
        let error = group.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        let text =
            "rank 0 cannot reach the memory of rank 1: neither descriptors nor fabric handles";
        assert!(error.to_string().contains(text), "{error}");
    });
}

/// Memory of another library.
struct Plain(u64);

impl Plain {
    fn new(bytes: usize) -> Self {
        let mut base = 0;
        do_!(cuMemAlloc_v2(&raw mut base, bytes));
        Plain(base)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        do_!(cuMemFree_v2(self.0));
    }
}

fn foreign(
    group: &Group,
    address: u64,
    keep: Option<KeepAlive>,
) -> Result<Allocation, ForeignError> {
    unsafe { Allocation::from_raw(group.device(), DevicePtr::new(address), BYTES, keep) }
}

#[test]
fn memory_of_another_library_is_shared_where_it_lies() {
    ranks(&[], |group| {
        let group = group.unwrap();
        group.device().make_current().unwrap();
        let plain = Arc::new(Plain::new(64 << 10));
        let error = foreign(&group, plain.0 + 8, None).unwrap_err();
        assert!(matches!(error, ForeignError::Unaligned { .. }), "{error}");
        // Each rank's begins elsewhere.
        let address = plain.0 + 4096 * (1 + group.rank().index() as u64);
        for _ in 0..3 {
            let mine = foreign(&group, address, Some(plain.clone())).unwrap();
            for other in [address, address + BYTES.get() - 16, address - BYTES.get() + 16] {
                let error = foreign(&group, other, None).unwrap_err();
                assert!(
                    matches!(error, ForeignError::Overlaps { base, other, .. }
                        if base == address && other == BYTES),
                    "{error}"
                );
            }
            let beside = [address + BYTES.get(), address - BYTES.get()];
            let beside = beside.map(|other| foreign(&group, other, None).unwrap());
            assert_eq!(Allocation::containing(DevicePtr::new(address)).as_ref(), Some(&mine));
            drop(beside);
            swap(&group, &words(&mine));
        }
    });
}

#[test]
fn memory_of_another_library_is_held_until_every_rank_has_let_go_of_it() {
    ranks(&[], |group| {
        let group = group.unwrap();
        group.device().make_current().unwrap();
        let plain = Arc::new(Plain::new(64 << 10));
        let held = Arc::downgrade(&plain);
        let mine = foreign(&group, plain.0, Some(plain)).unwrap();
        let handle = group.rendezvous(words(&mine), &PATIENT).unwrap();
        let mut all = Some((mine, handle));
        if group.rank().index() == 0 {
            all = None;
            collect();
            assert_eq!(held.strong_count(), 1, "the other rank has it mapped");
        }
        meet(&group);
        drop(all);
        let start = Instant::now();
        while held.strong_count() > 0 {
            assert!(start.elapsed().as_secs() < 30, "the memory is still held");
            collect();
            std::thread::yield_now();
        }
        meet(&group);
    });
}

#[test]
fn what_is_no_memory_of_the_device_is_refused() {
    ranks(&[], |group| {
        let group = group.unwrap();
        let error = foreign(&group, 4096, None).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains("4000 B at 0x1000"), "{error}");
    });
}

/// Mapped by page tables, as expandable segments are.
fn mapped(handles: CUmemAllocationHandleType) -> u64 {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let mut properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handles,
        ..Default::default()
    };
    properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 1;
    let (mut handle, mut base) = (0, 0);
    do_!(cuMemCreate(&raw mut handle, GRANULARITY, &raw const properties, 0));
    do_!(cuMemAddressReserve(&raw mut base, GRANULARITY, 0, 0, 0));
    do_!(cuMemMap(base, GRANULARITY, 0, handle, 0));
    let access = CUmemAccessDesc { location: properties.location, flags };
    do_!(cuMemSetAccess(base, GRANULARITY, &raw const access, 1));
    base
}

#[test]
fn memory_that_cannot_leave_says_why_and_fails_the_rendezvous_of_all() {
    ranks(&[], |group| {
        let group = group.unwrap();
        group.device().make_current().unwrap();
        let pooled = || {
            let mut base = 0;
            do_!(cuMemAllocAsync(&raw mut base, 8192, ptr::null_mut()));
            do_!(cuCtxSynchronize());
            base
        };
        let descriptors = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let closed: [(&dyn Fn() -> u64, &str); 3] = [
            (&pooled, "it comes from an allocator whose memory cannot be shared"),
            (
                &|| mapped(CUmemAllocationHandleType(0)),
                "its allocation was made without descriptors and fabric handles",
            ),
            (&|| mapped(descriptors) + 4096, "it is not the beginning of one mapped allocation"),
        ];
        let own = || Allocation::new(group.device(), BYTES).unwrap();
        for (allocate, why) in closed {
            let mine = match group.rank().index() {
                0 => own(),
                _ => foreign(&group, allocate(), None).unwrap(),
            };
            let error = group.rendezvous(words(&mine), &PATIENT).unwrap_err();
            let RendezvousError::Map { ranks, reason, kind } = &error else { panic!("{error}") };
            assert_eq!(ranks.iter().collect::<Vec<_>>(), [1], "{error}");
            match group.rank().index() {
                0 => assert_eq!(*reason, None),
                _ => {
                    assert_eq!(*kind, Kind::Unsupported);
                    assert!(
                        error.to_string().contains(&format!("cannot be exported: {why}")),
                        "{error}"
                    );
                }
            }
        }
        // All of what may leave does.
        let mine = match group.rank().index() {
            0 => own(),
            _ => foreign(&group, mapped(descriptors), None).unwrap(),
        };
        swap(&group, &words(&mine));
    });
}
