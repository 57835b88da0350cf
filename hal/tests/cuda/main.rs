//! The CUDA backend beside its contract: on the driver that the loader finds, be it of a GPU or one
//! in software that `SYMMEM_CUDA_LIBRARY` names. Copies and fills are enough to see order, captures and
//! lifetimes on either; kernels run on a GPU alone. Without a driver each test says so and passes.
#![cfg(feature = "cuda")]
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests copy by addresses; a failed set-up fails the test"
)]

mod captures;
#[cfg(feature = "cudarc")]
mod interop;
mod kernels;
mod memory;
mod streams;

use std::time::{Duration, Instant};

use symmem_hal::types::{BackendKind, Bytes, DeviceUuid};
use symmem_hal::{
    Device, DeviceError, DevicePtr, Fault as _, KeepAlive, Kind, Launched, Memory, PeerAccessError,
    Stream, StreamMode, Wait,
};
use symmem_sys::cuda::Driver;

const LONG: Wait = Wait::seconds(30);

/// The first device, if there is a driver.
fn gpu() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(DeviceError::NotFound(reason)) => {
            eprintln!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn nothing() -> Vec<KeepAlive> {
    Vec::new()
}

fn words(memory: &Memory, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    memory.read(Bytes::ZERO, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect()
}

fn word(memory: &Memory, index: u64) -> DevicePtr {
    memory.base().checked_add(Bytes::new(index * 4)).unwrap()
}

fn fill(stream: &Stream, memory: &Memory, index: u64, value: u32, count: u64) -> Launched {
    // SAFETY: the tests wait for the stream, or launch the graph, while the memory lives.
    unsafe { stream.fill32(word(memory, index), value, count, &nothing) }.unwrap()
}

fn copy(stream: &Stream, memory: &Memory, to: u64, from: u64, count: u64) -> Launched {
    let bytes = Bytes::new(count * 4);
    // SAFETY: as in `fill`.
    unsafe { stream.copy(word(memory, to), word(memory, from), bytes, &nothing) }.unwrap()
}

fn soon(mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not happen");
        std::thread::yield_now();
    }
}

/// A driver in software that runs no kernels.
fn runs_kernels() -> bool {
    !Driver::get().unwrap().path().to_string_lossy().contains("fake")
}

#[test]
fn a_missing_driver_names_what_was_searched() {
    if let Err(error @ DeviceError::NotFound(_)) = Device::cuda(0) {
        assert!(error.to_string().contains("SYMMEM_CUDA_LIBRARY"), "{error}");
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        assert_eq!(error.kind(), Kind::Unsupported);
    }
}

#[test]
fn devices_are_found_by_ordinal_and_identity() {
    let Some(device) = gpu() else { return };
    let found = Device::cuda_count().unwrap();
    assert_eq!(Device::cuda_by_uuid(device.uuid()).unwrap().uuid(), device.uuid());
    assert_eq!(device.kind(), BackendKind::Cuda);
    assert!(device.capabilities().units > 0 && device.capabilities().arch.is_some());
    let Err(DeviceError::NoDevice { wanted, found: said, .. }) = Device::cuda(found) else {
        panic!("there is one more device than there are");
    };
    assert_eq!((wanted, said), (found, found));
    let other = DeviceUuid([0x5a; 16]);
    let error = Device::cuda_by_uuid(other).unwrap_err();
    assert!(matches!(error, DeviceError::NoUuid { .. }), "{error}");
    device.can_access_peer(device.uuid()).unwrap();
    let error = device.can_access_peer(other).unwrap_err();
    assert!(matches!(error, PeerAccessError::NotVisible { .. }), "{error}");
}

#[test]
fn calls_leave_the_current_context_as_it_was() {
    let Some(device) = gpu() else { return };
    let current = || {
        let mut context = core::ptr::null_mut();
        // SAFETY: writes one handle.
        let _ = unsafe { (Driver::get().unwrap().cuCtxGetCurrent().unwrap())(&raw mut context) };
        context
    };
    let before = current();
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let stream = device.stream(StreamMode::Worker).unwrap();
    fill(&stream, &memory, 0, 1, 1);
    stream.synchronize(&LONG).unwrap();
    drop((memory, stream));
    assert_eq!(current(), before);
}
