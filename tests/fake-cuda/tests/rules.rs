//! The library by itself: what it refuses, what it makes fail, what it counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "each calls the library under test")]
#![allow(non_snake_case)]

mod rig;

use std::ffi::c_void;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rig::isolated;
use symmem_sys::cuda::Driver;
use symmem_sys::cuda::bindings::*;

static DRIVER: LazyLock<&Driver> = LazyLock::new(|| Driver::get().unwrap());

/// Calls a function of the driver: what it says.
macro_rules! say {
    ($name:ident($($argument:expr),* $(,)?)) => {
        unsafe { (DRIVER.$name().unwrap())($($argument),*) }
    };
}

/// As [`say!`], and it is well.
macro_rules! do_ {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(say!($name($($argument),*)), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

/// As [`say!`], and it fails so.
macro_rules! refused {
    ($code:ident, $name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(say!($name($($argument),*)), CUresult::$code, stringify!($name))
    };
}

const GRANULARITY: usize = 2 << 20;
const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Makes a device's context current.
fn start(ordinal: i32) {
    let mut context = ptr::null_mut();
    do_!(cuInit(0));
    do_!(cuDevicePrimaryCtxRetain(&raw mut context, ordinal));
    do_!(cuCtxSetCurrent(context));
}

fn properties(device: i32) -> CUmemAllocationProp {
    let mut prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX,
        ..Default::default()
    };
    prop.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop
}

fn grant(device: i32) -> CUmemAccessDesc {
    let location = properties(device).location;
    CUmemAccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

struct Mapped {
    base: CUdeviceptr,
    handle: CUmemGenericAllocationHandle,
}

/// Memory of a device, which that device may access.
fn map(device: i32) -> Mapped {
    let (mut base, mut handle) = (0, 0);
    do_!(cuMemCreate(&raw mut handle, GRANULARITY, &properties(device), 0));
    do_!(cuMemAddressReserve(&raw mut base, GRANULARITY, 0, 0, 0));
    do_!(cuMemMap(base, GRANULARITY, 0, handle, 0));
    do_!(cuMemSetAccess(base, GRANULARITY, &grant(device), 1));
    Mapped { base, handle }
}

fn unmap(mapped: &Mapped) {
    do_!(cuMemUnmap(mapped.base, GRANULARITY));
    do_!(cuMemAddressFree(mapped.base, GRANULARITY));
    do_!(cuMemRelease(mapped.handle));
}

fn stream(flags: u32) -> CUstream {
    let mut stream = ptr::null_mut();
    do_!(cuStreamCreate(&raw mut stream, flags));
    stream
}

fn event() -> CUevent {
    let mut event = ptr::null_mut();
    do_!(cuEventCreate(&raw mut event, 2));
    event
}

fn read(base: CUdeviceptr) -> u32 {
    let mut value = 0_u32;
    do_!(cuMemcpyDtoH_v2((&raw mut value).cast(), base, 4));
    value
}

#[test]
fn memory_is_never_zero_at_first_and_never_there_again() {
    isolated(&[], |control| {
        refused!(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&mut 0));
        start(0);
        let mapped = map(0);
        assert_eq!(read(mapped.base), 0xa5a5_a5a5);
        do_!(cuMemsetD32Async(mapped.base, 7, 2, ptr::null_mut()));
        assert_eq!(read(mapped.base + 4), 7);
        assert_eq!(control.live("mappings"), 1);
        unmap(&mapped);
        assert_eq!(control.all_live(), 0);
        // Both the call and everything after it.
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD32Async(mapped.base, 7, 2, ptr::null_mut()));
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    });
}

#[test]
fn plain_memory_ends_where_it_was_said_to() {
    isolated(&[], |control| {
        start(0);
        let mut base = 0;
        do_!(cuMemAlloc_v2(&raw mut base, 100));
        do_!(cuMemsetD8Async(base, 1, 100, ptr::null_mut()));
        do_!(cuMemFree_v2(base));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(base));
        assert_eq!(control.all_live(), 0);
        do_!(cuMemAlloc_v2(&raw mut base, 100));
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD8Async(base, 1, 101, ptr::null_mut()));
    });
}

#[test]
fn pooled_memory_goes_in_the_order_of_its_stream() {
    isolated(&[], |control| {
        start(0);
        let (stream, mut base) = (stream(1), 0);
        do_!(cuMemAllocAsync(&raw mut base, 100, stream));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(base));
        control.tell("hold");
        do_!(cuMemsetD8Async(base, 1, 100, stream));
        do_!(cuMemFreeAsync(base, stream));
        assert_eq!(control.live("allocations"), 1);
        control.tell("go");
        do_!(cuStreamSynchronize(stream));
        assert_eq!(control.live("allocations"), 0);
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(base, stream));
    });
}

#[test]
fn the_budget_is_kept() {
    isolated(&[("SYMMEM_FAKE_CUDA_MEMORY", "4194304")], |control| {
        start(0);
        let (mut free, mut total) = (0, 0);
        let kept = map(0);
        do_!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!((free, total), (GRANULARITY, 2 * GRANULARITY));
        let mut handle = 0;
        let mut create = |size| say!(cuMemCreate(&raw mut handle, size, &properties(0), 0));
        assert_eq!(create(2 * GRANULARITY), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(create(GRANULARITY + 1), CUresult::CUDA_ERROR_INVALID_VALUE);
        control.tell("budget 0 8388608");
        assert_eq!(create(2 * GRANULARITY), CUresult::CUDA_SUCCESS);
        unmap(&kept);
        do_!(cuMemRelease(handle));
        do_!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(free, total);
    });
}

#[test]
fn access_is_by_device_and_by_pair() {
    let pairs = [("SYMMEM_FAKE_CUDA_DEVICES", "3"), ("SYMMEM_FAKE_CUDA_P2P", "0-2:no")];
    isolated(&pairs, |_| {
        start(0);
        let mapped = map(0);
        let mut able = -1;
        do_!(cuDeviceCanAccessPeer(&raw mut able, 0, 1));
        assert_eq!(able, 1);
        do_!(cuDeviceCanAccessPeer(&raw mut able, 2, 0));
        assert_eq!(able, 0);
        let give = |device| say!(cuMemSetAccess(mapped.base, GRANULARITY, &grant(device), 1));
        assert_eq!(give(2), CUresult::CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(give(1), CUresult::CUDA_SUCCESS);
        start(1);
        do_!(cuMemsetD8Async(mapped.base, 1, 1, ptr::null_mut()));
        do_!(cuCtxSynchronize());
        start(2);
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD8Async(mapped.base, 1, 1, ptr::null_mut()));
        // That broke the third device alone.
        start(0);
        assert_eq!(read(mapped.base) & 0xff, 1);
    });
}

#[test]
fn calls_fail_as_told() {
    let told = "cuMemCreate@2=CUDA_ERROR_OUT_OF_MEMORY;1:cuStream*=CUDA_ERROR_NOT_SUPPORTED";
    isolated(&[("SYMMEM_FAKE_CUDA_FAIL", told)], |control| {
        start(0);
        let first = map(0);
        let mut handle = 0;
        let mut create = || say!(cuMemCreate(&raw mut handle, GRANULARITY, &properties(0), 0));
        assert_eq!(create(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(create(), CUresult::CUDA_SUCCESS);
        assert_eq!(control.count("cuMemCreate"), 3);
        assert_eq!(control.count("cuMulticast*"), 0);
        do_!(cuStreamDestroy_v2(stream(0)));
        start(1);
        refused!(CUDA_ERROR_NOT_SUPPORTED, cuStreamCreate(&mut ptr::null_mut(), 0));

        start(0);
        control.tell("fail *@2=CUDA_ERROR_LAUNCH_FAILED,sticky");
        do_!(cuMemUnmap(first.base, GRANULARITY));
        refused!(CUDA_ERROR_LAUNCH_FAILED, cuMemAddressFree(first.base, GRANULARITY));
        refused!(CUDA_ERROR_LAUNCH_FAILED, cuMemAddressFree(first.base, GRANULARITY));
        control.tell("clear");
        do_!(cuMemAddressFree(first.base, GRANULARITY));
    });
}

#[test]
fn streams_are_in_order_and_work_behind_the_callers_back() {
    isolated(&[], |control| {
        start(0);
        let (mapped, one, two, event) = (map(0), stream(1), stream(1), event());
        control.tell("hold");
        do_!(cuMemsetD32Async(mapped.base, 1, 1, one));
        do_!(cuEventRecord(event, one));
        do_!(cuStreamWaitEvent(two, event, 0));
        do_!(cuMemcpyDtoDAsync_v2(mapped.base + 4, mapped.base, 4, two));
        refused!(CUDA_ERROR_NOT_READY, cuStreamQuery(two));
        refused!(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        control.tell("go");
        do_!(cuStreamSynchronize(two));
        do_!(cuEventQuery(event));
        assert_eq!(read(mapped.base + 4), 1);
        do_!(cuStreamDestroy_v2(one));
        do_!(cuStreamDestroy_v2(two));
        do_!(cuEventDestroy_v2(event));
        refused!(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(one));
        unmap(&mapped);
        assert_eq!(control.all_live(), 0);
    });
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    isolated(&[], |control| {
        start(0);
        let (mapped, blocking) = (map(0), stream(0));
        control.tell("hold");
        do_!(cuMemsetD32Async(mapped.base, 1, 1, blocking));
        do_!(cuMemcpyDtoDAsync_v2(mapped.base + 4, mapped.base, 4, ptr::null_mut()));
        do_!(cuMemcpyDtoDAsync_v2(mapped.base + 8, mapped.base + 4, 4, blocking));
        control.tell("go");
        do_!(cuStreamSynchronize(blocking));
        assert_eq!(read(mapped.base + 8), 1);
    });
}

#[test]
fn memory_unmapped_under_pending_work_breaks_the_context() {
    isolated(&[], |control| {
        start(0);
        let (mapped, stream) = (map(0), stream(1));
        control.tell("hold");
        do_!(cuMemsetD32Async(mapped.base, 1, 1, stream));
        do_!(cuMemUnmap(mapped.base, GRANULARITY));
        control.tell("go");
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    });
}

#[test]
fn a_wait_for_a_value_ends() {
    isolated(&[("SYMMEM_FAKE_CUDA_WAIT_MS", "20")], |_| {
        start(0);
        let (mapped, one, two) = (map(0), stream(1), stream(1));
        do_!(cuMemsetD32Async(mapped.base, 0, 1, one));
        do_!(cuStreamSynchronize(one));
        do_!(cuStreamWriteValue32_v2(two, mapped.base, 5, 0));
        do_!(cuStreamWaitValue32_v2(one, mapped.base, 5, 0));
        do_!(cuStreamSynchronize(one));
        do_!(cuStreamWaitValue32_v2(one, mapped.base, 6, 0));
        refused!(CUDA_ERROR_LAUNCH_TIMEOUT, cuStreamSynchronize(one));
    });
}

static ENDED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn end(data: *mut c_void) {
    // The driver is out of bounds here.
    assert_eq!(say!(cuCtxSynchronize()), CUresult::CUDA_ERROR_NOT_PERMITTED);
    ENDED.fetch_add(data.addr() as u64, Ordering::SeqCst);
}

#[test]
fn a_capture_joins_streams_and_keeps_objects_alive() {
    isolated(&[], |control| {
        start(0);
        let (mapped, one, two) = (map(0), stream(1), stream(1));
        let (fork, join) = (event(), event());
        do_!(cuMemsetD32Async(mapped.base, 0, 4, one));
        do_!(cuStreamSynchronize(one));
        let local = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        do_!(cuStreamBeginCapture_v2(one, local));
        do_!(cuMemsetD32Async(mapped.base, 3, 1, one));
        do_!(cuEventRecord(fork, one));
        do_!(cuStreamWaitEvent(two, fork, 0));
        do_!(cuMemcpyDtoDAsync_v2(mapped.base + 4, mapped.base, 4, two));
        do_!(cuEventRecord(join, two));
        do_!(cuStreamWaitEvent(one, join, 0));
        let (mut status, mut id, mut graph) = (CUstreamCaptureStatus(0), 0, ptr::null_mut());
        let (mut nodes, mut count) = (ptr::null(), 0);
        do_!(cuStreamGetCaptureInfo_v2(
            one,
            &raw mut status,
            &raw mut id,
            &raw mut graph,
            &raw mut nodes,
            &raw mut count
        ));
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_eq!(count, 2);
        let mut object = ptr::null_mut();
        let data = ptr::without_provenance_mut(9);
        do_!(cuUserObjectCreate(&raw mut object, data, Some(end), 1, 1));
        do_!(cuGraphRetainUserObject(graph, object, 1, 1));
        let (mut ended, mut exec) = (ptr::null_mut(), ptr::null_mut());
        do_!(cuStreamEndCapture(one, &raw mut ended));
        assert_eq!(ended, graph);
        do_!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        do_!(cuGraphDestroy(graph));
        // Nothing was done yet.
        assert_eq!(read(mapped.base + 4), 0);
        do_!(cuGraphLaunch(exec, one));
        do_!(cuStreamSynchronize(one));
        assert_eq!(read(mapped.base + 4), 3);

        control.tell("settle");
        assert_eq!((ENDED.load(Ordering::SeqCst), control.live("objects")), (0, 1));
        control.tell("hold");
        do_!(cuGraphLaunch(exec, one));
        do_!(cuGraphExecDestroy(exec));
        assert_eq!(control.live("objects"), 1, "the launch keeps it");
        control.tell("go");
        do_!(cuStreamSynchronize(one));
        control.tell("settle");
        assert_eq!((ENDED.load(Ordering::SeqCst), control.live("objects")), (9, 0));
        assert_eq!(control.live("graphs"), 0);
    });
}

#[test]
fn what_ends_a_capture() {
    isolated(&[], |control| {
        use CUstreamCaptureMode as Mode;
        start(0);
        let (free, blocking, other, event) = (stream(1), stream(0), stream(1), event());
        let capture = |stream: CUstream, mode: Mode, disturb: &dyn Fn()| {
            let mut graph = ptr::null_mut();
            do_!(cuStreamBeginCapture_v2(stream, mode));
            disturb();
            let ended = say!(cuStreamEndCapture(stream, &raw mut graph));
            if ended == CUresult::CUDA_SUCCESS {
                do_!(cuGraphDestroy(graph));
            }
            ended
        };
        let invalid = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        let (global, local, relaxed) = (
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        );
        let allocate = || say!(cuMemAlloc_v2(&mut 0, 8));
        let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

        let synchronize = || {
            refused!(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(free));
        };
        assert_eq!(capture(free, relaxed, &synchronize), invalid);
        let refuse = || assert_eq!(allocate(), unsupported);
        assert_eq!(capture(free, local, &refuse), invalid);
        let allow = || assert_eq!(allocate(), CUresult::CUDA_SUCCESS);
        assert_eq!(capture(free, relaxed, &allow), CUresult::CUDA_SUCCESS);
        let elsewhere = |expected: CUresult| {
            let mut context = ptr::null_mut();
            do_!(cuCtxGetCurrent(&raw mut context));
            let context = context.addr();
            let call = move || {
                do_!(cuCtxSetCurrent(ptr::without_provenance_mut(context)));
                say!(cuMemAlloc_v2(&mut 0, 8))
            };
            assert_eq!(std::thread::spawn(call).join().unwrap(), expected);
        };
        assert_eq!(capture(free, global, &|| elsewhere(unsupported)), invalid);
        let spared = || elsewhere(CUresult::CUDA_SUCCESS);
        assert_eq!(capture(free, local, &spared), CUresult::CUDA_SUCCESS);
        let aside = || {
            let mut mode = relaxed;
            do_!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
            assert_eq!((mode, allocate()), (global, CUresult::CUDA_SUCCESS));
            do_!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        };
        assert_eq!(capture(free, global, &aside), CUresult::CUDA_SUCCESS);
        let legacy = || {
            refused!(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuEventRecord(event, ptr::null_mut()));
        };
        assert_eq!(capture(blocking, local, &legacy), invalid);
        do_!(cuEventRecord(event, other));
        let outside = || {
            refused!(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(free, event, 0));
        };
        assert_eq!(capture(free, local, &outside), invalid);
        let forked = || {
            do_!(cuEventRecord(event, free));
            do_!(cuStreamWaitEvent(other, event, 0));
            do_!(cuLaunchHostFunc(other, Some(end), ptr::null_mut()));
        };
        let unjoined = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        assert_eq!(capture(free, local, &forked), unjoined);
        assert_eq!(control.live("graphs"), 0);
        do_!(cuStreamSynchronize(other));
    });
}

#[test]
fn multicast_objects_have_the_real_ones_pitfalls() {
    isolated(&[("SYMMEM_FAKE_CUDA_MULTICAST", "1")], |control| {
        start(0);
        let (zero, one) = (map(0), map(1));
        let prop = CUmulticastObjectProp {
            numDevices: 2,
            size: GRANULARITY,
            handleTypes: u64::from(POSIX.0),
            flags: 0,
        };
        let (mut object, mut descriptor, mut imported) = (0, -1, 0);
        do_!(cuMulticastCreate(&raw mut object, &raw const prop));
        do_!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), object, POSIX, 0));
        let import = |handle: *mut u64| {
            let descriptor = ptr::without_provenance_mut(descriptor as usize);
            say!(cuMemImportFromShareableHandle(handle, descriptor, POSIX))
        };
        assert_eq!(import(&raw mut imported), CUresult::CUDA_SUCCESS);
        let bind = |to, memory| say!(cuMulticastBindMem(to, 0, memory, 0, GRANULARITY, 0));
        do_!(cuMulticastAddDevice(object, 0));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(object, 0));
        assert_eq!(bind(object, zero.handle), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        do_!(cuMulticastAddDevice(imported, 1));
        assert_eq!(bind(object, zero.handle), CUresult::CUDA_SUCCESS);
        assert_eq!(bind(imported, one.handle), CUresult::CUDA_SUCCESS);
        let mut base = 0;
        do_!(cuMemAddressReserve(&raw mut base, GRANULARITY, 0, 0, 0));
        do_!(cuMemMap(base, GRANULARITY, 0, object, 0));
        do_!(cuMemSetAccess(base, GRANULARITY, &grant(0), 1));

        do_!(cuMulticastUnbind(object, 0, 0, GRANULARITY));
        unmap(&zero);
        unmap(&one);
        refused!(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind(imported, 1, 0, GRANULARITY));
        do_!(cuMemUnmap(base, GRANULARITY));
        do_!(cuMemAddressFree(base, GRANULARITY));
        do_!(cuMemRelease(object));
        assert_eq!(import(&mut 0), CUresult::CUDA_ERROR_INVALID_VALUE, "its creator let it go");
        do_!(cuMemRelease(imported));
        assert_eq!(control.all_live(), 0);
        assert!(control.count("cuMulticast*") > 0);
    });
}

#[test]
fn launches_are_checked_and_do_nothing() {
    isolated(&[], |_| {
        start(0);
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        do_!(cuModuleLoadData(&raw mut module, c"anything".as_ptr().cast()));
        do_!(cuModuleGetFunction(&raw mut function, module, c"any".as_ptr()));
        let mut argument = 0_u64;
        let mut parameters = [(&raw mut argument).cast::<c_void>()];
        let mut launch = |grid, block, shared| {
            let parameters = parameters.as_mut_ptr();
            let (stream, extra) = (ptr::null_mut(), ptr::null_mut());
            say!(cuLaunchKernel(
                function, grid, 1, 1, block, 1, 1, shared, stream, parameters, extra
            ))
        };
        assert_eq!(launch(132, 1024, 48 << 10), CUresult::CUDA_SUCCESS);
        for (grid, block, shared) in [(0, 1, 0), (1, 1025, 0), (1, 1, (48 << 10) + 1), (1, 0, 0)] {
            assert_eq!(launch(grid, block, shared), CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut blocks = 0;
        do_!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, 512, 0));
        assert_eq!(blocks, 4);
        do_!(cuModuleUnload(module));
        assert_eq!(launch(1, 1, 0), CUresult::CUDA_ERROR_INVALID_HANDLE);
    });
}
