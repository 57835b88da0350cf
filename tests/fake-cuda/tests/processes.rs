//! Handles that travel to another process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "each calls the library under test")]

mod rig;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;
use std::{env, ptr};

use rig::{Control, isolated};
use symmem_sys::cuda::Driver;
use symmem_sys::cuda::bindings::*;

macro_rules! say {
    ($name:ident($($argument:expr),* $(,)?)) => {
        unsafe { (Driver::get().unwrap().$name().unwrap())($($argument),*) }
    };
}

macro_rules! do_ {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(say!($name($($argument),*)), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

const GRANULARITY: usize = 2 << 20;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// The kind of handle that a child is to import.
const KIND: &str = "SYMMEM_TEST_KIND";

fn start(ordinal: i32) {
    let mut context = ptr::null_mut();
    do_!(cuInit(0));
    do_!(cuDevicePrimaryCtxRetain(&raw mut context, ordinal));
    do_!(cuCtxSetCurrent(context));
}

fn identity(ordinal: i32) -> CUuuid {
    let mut uuid = CUuuid::default();
    do_!(cuDeviceGetUuid_v2(&raw mut uuid, ordinal));
    uuid
}

fn hex(bytes: &[i8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> [i8; 64] {
    let mut bytes = [0; 64];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..][..2], 16).unwrap().cast_signed();
    }
    bytes
}

fn properties() -> CUmemAllocationProp {
    let mut prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(POSIX.0 | FABRIC.0),
        ..Default::default()
    };
    prop.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop
}

fn place(handle: CUmemGenericAllocationHandle, device: i32) -> CUdeviceptr {
    let mut base = 0;
    let mut location = properties().location;
    location.id = device;
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    do_!(cuMemAddressReserve(&raw mut base, GRANULARITY, 0, 0, 0));
    do_!(cuMemMap(base, GRANULARITY, 0, handle, 0));
    do_!(cuMemSetAccess(base, GRANULARITY, &CUmemAccessDesc { location, flags }, 1));
    base
}

/// One process exports a word, the other adds one to it, and then finds the handle dead.
fn exchange(kind: &str) {
    match env::var(KIND) {
        Ok(kind) => import(&kind),
        Err(_) => isolated(&[("SYMMEM_FAKE_CUDA_FABRIC", "1")], |control| export(kind, control)),
    }
}

fn export(kind: &str, control: &Control) {
    start(0);
    let (mut handle, mut base, mut told) = (0, 0, String::new());
    let mut command = rig::child(&[(KIND, kind)]);
    if kind == "ipc" {
        do_!(cuMemAlloc_v2(&raw mut base, 4096));
        let mut ipc = CUipcMemHandle::default();
        do_!(cuIpcGetMemHandle(&raw mut ipc, base));
        told = hex(&ipc.reserved);
    } else {
        do_!(cuMemCreate(&raw mut handle, GRANULARITY, &properties(), 0));
        base = place(handle, 0);
        let mut ipc = CUipcMemHandle::default();
        assert_eq!(say!(cuIpcGetMemHandle(&raw mut ipc, base)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if kind == "fabric" {
        let mut fabric = [0_i8; 64];
        do_!(cuMemExportToShareableHandle(fabric.as_mut_ptr().cast(), handle, FABRIC, 0));
        told = hex(&fabric);
    }
    if kind == "posix" {
        let mut descriptor = -1;
        do_!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0));
        // SAFETY: the driver made it and gave it away.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        rig::inherit(&mut command, descriptor);
    }
    do_!(cuMemsetD32Async(base, 41, 1, ptr::null_mut()));
    do_!(cuCtxSynchronize());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    writeln!(input, "{} {told}", hex(&identity(0).bytes)).unwrap();
    let mut text = String::new();
    while !text.contains("imported") {
        assert_ne!(output.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let mut word = 0_u32;
    do_!(cuMemcpyDtoH_v2((&raw mut word).cast(), base, 4));
    assert_eq!(word, 42);
    if kind == "ipc" {
        do_!(cuMemFree_v2(base));
    } else {
        do_!(cuMemUnmap(base, GRANULARITY));
        do_!(cuMemAddressFree(base, GRANULARITY));
        do_!(cuMemRelease(handle));
    }
    assert_eq!(control.all_live(), 0);
    writeln!(input, "gone").unwrap();
    output.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success() && text.contains("1 passed"), "{text}");
}

fn import(kind: &str) {
    let control = Control::open();
    start(1);
    let mut lines = std::io::stdin().lines();
    let told = lines.next().unwrap().unwrap();
    let (device, told) = told.split_once(' ').unwrap();
    assert_eq!(device, hex(&identity(0).bytes));
    let import = |handle: *mut u64| match kind {
        "posix" => {
            let descriptor = ptr::without_provenance_mut(rig::INHERITED as usize);
            say!(cuMemImportFromShareableHandle(handle, descriptor, POSIX))
        }
        "fabric" => {
            let mut fabric = bytes(told);
            say!(cuMemImportFromShareableHandle(handle, fabric.as_mut_ptr().cast(), FABRIC))
        }
        _ => say!(cuIpcOpenMemHandle_v2(handle, CUipcMemHandle { reserved: bytes(told) }, 1)),
    };
    let mut handle = 0;
    assert_eq!(import(&raw mut handle), CUresult::CUDA_SUCCESS);
    let base = if kind == "ipc" { handle } else { place(handle, 1) };
    let mut word = 0_u32;
    do_!(cuMemcpyDtoH_v2((&raw mut word).cast(), base, 4));
    do_!(cuMemsetD32Async(base, word + 1, 1, ptr::null_mut()));
    do_!(cuCtxSynchronize());
    println!("imported");
    assert_eq!(lines.next().unwrap().unwrap(), "gone");
    // What is mapped stays. What names the exporter's memory does not; a descriptor is the memory.
    do_!(cuMemcpyDtoH_v2((&raw mut word).cast(), base, 4));
    assert_eq!(word, 42);
    if kind != "posix" {
        assert_eq!(import(&mut 0), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if kind == "ipc" {
        do_!(cuIpcCloseMemHandle(base));
    } else {
        do_!(cuMemUnmap(base, GRANULARITY));
        do_!(cuMemAddressFree(base, GRANULARITY));
        do_!(cuMemRelease(handle));
    }
    assert_eq!(control.all_live(), 0);
}

#[test]
fn a_descriptor() {
    exchange("posix");
}

#[test]
fn a_fabric_handle() {
    exchange("fabric");
}

#[test]
fn a_legacy_handle() {
    exchange("ipc");
}
