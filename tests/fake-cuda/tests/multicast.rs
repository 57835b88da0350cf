//! symmem's multicast objects on the library: every step may fail on any device, whatever the
//! attribute said, and leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use rig::{each_call_fails, isolated};
use symmem_hal::types::Bytes;
use symmem_hal::{Device, Fault, Kind, Memory, Multicast, MulticastError, MulticastMapping};

const SIZE: Bytes = Bytes::kib(100);
const THERE: (&str, &str) = ("SYMMEM_FAKE_CUDA_MULTICAST", "1");

fn cuda(ordinal: u32) -> Device {
    Device::cuda(ordinal).unwrap()
}

/// What two ranks do, each on its device, in the order in which one waits for the other.
fn make(
    devices: &[Device; 2],
    memories: &[Memory; 2],
) -> Result<Vec<(Multicast, MulticastMapping)>, MulticastError> {
    let [zero, one] = devices;
    let first = Multicast::create(zero, 2, SIZE)?;
    let second = Multicast::import(one, 2, SIZE, &first.export()?)?;
    first.add(zero)?;
    second.add(one)?;
    first.bind(zero, &memories[0])?;
    second.bind(one, &memories[1])?;
    let mapped = [first.map(zero)?, second.map(one)?];
    Ok([first, second].into_iter().zip(mapped).collect())
}

#[test]
fn any_call_of_making_an_object_may_fail() {
    isolated(&[THERE], |control| {
        let devices = [cuda(0), cuda(1)];
        let memories = [0, 1].map(|rank: usize| devices[rank].allocate(SIZE).unwrap());
        each_call_fails(control, || make(&devices, &memories));
        // The memory is no worse for it.
        memories[1].write(Bytes::ZERO, &[1]).unwrap();
    });
}

#[test]
fn what_the_attribute_promised_may_be_refused_on_one_device_and_granted_later() {
    isolated(&[THERE], |control| {
        let devices = [cuda(0), cuda(1)];
        let memories = [0, 1].map(|rank: usize| devices[rank].allocate(SIZE).unwrap());
        assert!(devices.iter().all(|device| device.capabilities().multicast));
        let before = control.held();
        for step in ["cuMulticastCreate", "cuMulticastAddDevice@2", "cuMulticastBindMem@2"] {
            control.tell(&format!("fail {step}=CUDA_ERROR_SYSTEM_NOT_READY"));
            let error = make(&devices, &memories).unwrap_err();
            control.tell("clear");
            assert_eq!(error.kind(), Kind::Unsupported, "{step}: {error}");
            assert!(error.to_string().contains("CUDA_ERROR_SYSTEM_NOT_READY (802)"), "{error}");
            assert_eq!(control.held(), before, "{step}");
            drop(make(&devices, &memories).unwrap());
            assert_eq!(control.held(), before, "{step}");
        }
    });
}

#[test]
fn an_object_outlives_the_callers_memory_and_ends_in_order() {
    isolated(&[THERE], |control| {
        let devices = [cuda(0), cuda(1)];
        let before = control.held();
        let memories = [0, 1].map(|rank: usize| devices[rank].allocate(SIZE).unwrap());
        let made = make(&devices, &memories).unwrap();
        assert!(made.iter().all(|(object, mapping)| mapping.bytes() == object.bytes()));
        // Bound memory has to be there when it is unbound.
        drop(memories);
        drop(made);
        assert_eq!(control.count("cuMulticastUnbind"), 2);
        assert_eq!(control.held(), before);
    });
}

#[test]
fn memory_is_bound_only_after_all_devices() {
    isolated(&[THERE], |_| {
        let device = cuda(0);
        let memory = device.allocate(SIZE).unwrap();
        let object = Multicast::create(&device, 2, SIZE).unwrap();
        object.add(&device).unwrap();
        let error = object.bind(&device, &memory).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_STATE"), "{error}");
        // Not this device's.
        let other = cuda(1).allocate(SIZE).unwrap();
        let error = object.bind(&device, &other).unwrap_err();
        assert!(matches!(error, MulticastError::Memory { .. }), "{error}");
    });
}

#[test]
fn a_switch_that_is_off_means_no_call_at_all() {
    for switch in [
        ("SYMMEM_MULTICAST", "0"),
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ] {
        isolated(&[THERE, switch], |control| {
            let device = cuda(0);
            assert!(!device.capabilities().multicast);
            let error = Multicast::create(&device, 2, SIZE).unwrap_err();
            assert!(matches!(error, MulticastError::Off { .. }), "{error}");
            assert_eq!(control.count("cuMulticast*"), 0);
        });
        if rig::is_child() {
            return;
        }
    }
}

#[test]
fn a_device_without_says_so() {
    isolated(&[], |control| {
        let error = Multicast::create(&cuda(0), 2, SIZE).unwrap_err();
        assert!(matches!(error, MulticastError::Unsupported { .. }), "{error}");
        assert_eq!(control.count("cuMulticast*"), 0);
    });
}
