//! symmem's devices on the library: allocation, handles, peers, host memory, graphs, and what is left
//! when any one call of the driver fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "test memory outlives what is done to it")]

mod rig;

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rig::{Control, each_call_fails, isolated};
use symmem_hal::types::{Bytes, DeviceUuid};
use symmem_hal::{
    AllocError, Device, Fault, Kind, Memory, PeerAccessError, Shareable, Stream, StreamMode,
};

const SIZE: Bytes = Bytes::kib(100);

fn cuda(ordinal: u32) -> Device {
    Device::cuda(ordinal).unwrap()
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![1; memory.bytes().to_usize().unwrap()];
    memory.read(Bytes::ZERO, &mut bytes).unwrap();
    bytes
}

fn descriptor(memory: &Memory) -> OwnedFd {
    match memory.export().unwrap() {
        Shareable::Fd(descriptor) => descriptor,
        other => panic!("{other:?}"),
    }
}

#[test]
fn devices_say_what_they_are() {
    isolated(&[("SYMMEM_FAKE_CUDA_DEVICES", "3")], |_| {
        assert_eq!(Device::cuda_count().unwrap(), 3);
        let identities: Vec<DeviceUuid> = (0..3).map(|ordinal| cuda(ordinal).uuid()).collect();
        assert!(identities[0] != identities[1] && identities[1] != identities[2]);
        assert_eq!(Device::cuda_by_uuid(identities[2]).unwrap().name(), cuda(2).name());
        let can = cuda(0).capabilities();
        assert_eq!((can.units, can.arch, can.multicast), (132, Some((9, 0)), false));
        assert!(can.shareable && can.virtual_memory && can.peer_atomics && can.stream_memory_ops);
        assert!(!can.fabric);
        assert!(Device::cuda(3).is_err());
        assert!(Device::cuda_by_uuid(DeviceUuid([0; 16])).is_err());
    });
}

#[test]
fn a_machine_without_devices_is_an_error_that_says_so() {
    isolated(&[("SYMMEM_FAKE_CUDA_DEVICES", "0")], |_| {
        let error = Device::cuda(0).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE"), "{error}");
    });
}

#[test]
fn allocations_are_zero_and_given_back() {
    isolated(&[], |control| {
        let device = cuda(0);
        drop(device.allocate(SIZE).unwrap());
        let before = control.held();
        for bytes in [Bytes::new(1), SIZE, Bytes::mib(2), Bytes::mib(5)] {
            for memory in [device.allocate(bytes).unwrap(), device.allocate_private(bytes).unwrap()]
            {
                assert!(memory.bytes() >= bytes);
                assert!(contents(&memory).iter().all(|byte| *byte == 0));
                memory.write(Bytes::new(bytes.get() - 1), &[7]).unwrap();
                let mut byte = [0];
                memory.read(Bytes::new(bytes.get() - 1), &mut byte).unwrap();
                assert_eq!(byte, [7]);
            }
        }
        assert_eq!(control.held(), before);
    });
}

#[test]
fn an_allocation_too_many_says_what_is_left() {
    isolated(&[("SYMMEM_FAKE_CUDA_MEMORY", "8388608")], |_| {
        let device = cuda(0);
        let kept = device.allocate(Bytes::mib(4)).unwrap();
        match device.allocate(Bytes::mib(6)).unwrap_err() {
            AllocError::Exhausted { needed, available, .. } => {
                assert_eq!((needed, available), (Bytes::mib(6), Bytes::mib(4)));
            }
            other => panic!("{other:?}"),
        }
        drop(kept);
        drop(device.allocate(Bytes::mib(6)).unwrap());
    });
}

#[test]
fn any_call_of_an_allocation_may_fail() {
    isolated(&[], |control| {
        let device = cuda(0);
        each_call_fails(control, || device.allocate(SIZE));
        each_call_fails(control, || device.allocate_private(SIZE));
    });
}

#[test]
fn any_call_of_an_allocation_without_pools_may_fail() {
    isolated(&[("SYMMEM_FAKE_CUDA_POOLS", "0")], |control| {
        let device = cuda(0);
        each_call_fails(control, || device.allocate_private(SIZE));
    });
}

#[test]
fn any_call_of_an_import_may_fail() {
    isolated(&[], |control| {
        let (zero, one) = (cuda(0), cuda(1));
        let memory = zero.allocate(SIZE).unwrap();
        let import = || one.import(Shareable::Fd(descriptor(&memory)), SIZE);
        drop(import().unwrap());
        // The export is not what fails.
        let mut ready = Vec::new();
        for _ in 0..100 {
            ready.push(descriptor(&memory));
        }
        each_call_fails(control, || one.import(Shareable::Fd(ready.pop().unwrap()), SIZE));
    });
}

#[test]
fn any_call_of_mapping_the_hosts_memory_may_fail() {
    isolated(&[], |control| {
        let device = cuda(0);
        let map = || {
            let memory = Device::host().allocate(SIZE).unwrap();
            device.map_host(&memory).map(|_| memory)
        };
        each_call_fails(control, map);
    });
}

#[test]
fn a_host_segment_is_registered_once_and_as_long_as_it_lives() {
    isolated(&[], |control| {
        let (zero, one) = (cuda(0), cuda(1));
        let memory = Device::host().allocate(SIZE).unwrap();
        let address = zero.map_host(&memory).unwrap();
        assert_eq!(zero.map_host(&memory.clone()).unwrap(), address);
        assert_eq!(one.map_host(&memory).unwrap(), address);
        assert_eq!(control.count("cuMemHostRegister_v2"), 1);
        assert_eq!(control.live("registrations"), 1);
        drop(memory);
        assert_eq!(control.live("registrations"), 0);
    });
}

#[test]
fn peer_access_is_an_answer_per_pair() {
    let pairs = [("SYMMEM_FAKE_CUDA_DEVICES", "3"), ("SYMMEM_FAKE_CUDA_P2P", "0-2:no")];
    isolated(&pairs, |_| {
        let devices: Vec<Device> = (0..3).map(cuda).collect();
        for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 2), (2, 1)] {
            devices[from].can_access_peer(devices[to].uuid()).unwrap();
        }
        for (from, to) in [(0, 2), (2, 0)] {
            let error = devices[from].can_access_peer(devices[to].uuid()).unwrap_err();
            assert!(matches!(error, PeerAccessError::NoPath { .. }), "{error}");
            assert!(error.to_string().contains(&devices[to].uuid().to_string()), "{error}");
        }
        let unknown = devices[0].can_access_peer(DeviceUuid([9; 16])).unwrap_err();
        assert!(matches!(unknown, PeerAccessError::NotVisible { .. }), "{unknown}");

        // The same, where it is done.
        let memory = devices[2].allocate(SIZE).unwrap();
        assert_eq!(devices[1].open(&memory).unwrap().base(), memory.base());
        assert!(devices[0].open(&memory).is_err());
        assert!(devices[0].import(Shareable::Fd(descriptor(&memory)), SIZE).is_err());
    });
}

#[test]
fn multicast_is_there_by_the_attribute_and_gone_by_a_switch() {
    let switches = [
        ("SYMMEM_MULTICAST", "0"),
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ];
    if rig::is_child() {
        let control = Control::open();
        let device = cuda(0);
        let off = switches.iter().any(|(name, value)| env::var(name).is_ok_and(|v| v == *value));
        assert_eq!(device.capabilities().multicast, !off);
        let memory = device.allocate(SIZE).unwrap();
        drop(cuda(1).import(Shareable::Fd(descriptor(&memory)), SIZE).unwrap());
        if off {
            assert_eq!(control.count("cuMulticast*"), 0);
        }
        return;
    }
    let there = ("SYMMEM_FAKE_CUDA_MULTICAST", "1");
    rig::succeeded(&rig::child(&[there]).output().unwrap());
    for switch in switches {
        rig::succeeded(&rig::child(&[there, switch]).output().unwrap());
    }
}

#[test]
fn memory_travels_to_another_process() {
    const ROLE: &str = "SYMMEM_TEST_IMPORTS";
    if env::var(ROLE).is_ok() {
        let mut lines = std::io::stdin().lines();
        let device = cuda(1);
        let descriptor = unsafe { OwnedFd::from_raw_fd(rig::INHERITED) };
        // Not what was announced.
        let copy = Shareable::Fd(descriptor.try_clone().unwrap());
        assert!(device.import(copy, Bytes::mib(64)).is_err());
        let memory = device.import(Shareable::Fd(descriptor), SIZE).unwrap();
        let mut word = [0; 4];
        memory.read(Bytes::new(8), &mut word).unwrap();
        word[0] += 1;
        memory.write(Bytes::new(8), &word).unwrap();
        println!("imported from {}", cuda(0).uuid());
        assert_eq!(lines.next().unwrap().unwrap(), "gone");
        memory.read(Bytes::new(8), &mut word).unwrap();
        assert_eq!(word, [42, 2, 3, 4]);
        drop(memory);
        return assert_eq!(Control::open().live("mappings"), 0);
    }
    isolated(&[], |control| {
        let device = cuda(0);
        let memory = device.allocate(SIZE).unwrap();
        memory.write(Bytes::new(8), &[41, 2, 3, 4]).unwrap();
        let mut command = rig::child(&[(ROLE, "1")]);
        rig::inherit(&mut command, descriptor(&memory));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        while !text.contains("imported") {
            assert_ne!(output.read_line(&mut text).unwrap(), 0, "{text}");
        }
        // Processes agree on who is who.
        assert!(text.contains(&device.uuid().to_string()), "{text}");
        let mut word = [0; 4];
        memory.read(Bytes::new(8), &mut word).unwrap();
        assert_eq!(word, [42, 2, 3, 4]);
        drop(memory);
        assert_eq!(control.live("mappings"), 0);
        writeln!(input, "gone").unwrap();
        output.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success() && text.contains("1 passed"), "{text}");
    });
}

#[test]
fn a_device_that_failed_for_good_can_still_be_left() {
    isolated(&[], |control| {
        let (device, other) = (cuda(0), cuda(1));
        let memory = device.allocate(SIZE).unwrap();
        let host = Device::host().allocate(SIZE).unwrap();
        device.map_host(&host).unwrap();
        let stream = device.default_stream().unwrap();
        control.tell("fail 0:cuMem*@1=CUDA_ERROR_ILLEGAL_ADDRESS,sticky");
        let error = memory.write(Bytes::ZERO, &[1]).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        let later = device.allocate(SIZE).unwrap_err();
        assert_eq!(later.kind(), Kind::Device, "{later}");
        drop((memory, stream, host));
        // Nobody else's trouble.
        let memory = other.allocate(SIZE).unwrap();
        memory.write(Bytes::ZERO, &[1]).unwrap();
    });
}

/// A stream that has recorded one fill.
fn capturing(device: &Device, memory: &Memory) -> Stream {
    let stream = device.stream(StreamMode::Worker).unwrap();
    stream.begin_capture().unwrap();
    let _ = unsafe { stream.fill32(memory.base(), 1, 1, &Vec::new) }.unwrap();
    stream
}

#[test]
fn a_graph_is_not_destroyed_on_its_way_to_the_device_whatever_fails() {
    isolated(&[], |control| {
        let device = cuda(0);
        let memory = device.allocate(SIZE).unwrap();
        for call in ["nothing", "cuEventRecord", "cuStreamQuery"] {
            let stream = capturing(&device, &memory);
            control.tell("hold");
            control.tell("reset-counts");
            control.tell(&format!("fail {call}@1=CUDA_ERROR_OUT_OF_MEMORY"));
            thread::scope(|s| {
                let graph = s.spawn(|| drop(stream.end_capture()));
                while control.count("cuGraphUpload") == 0 {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_millis(50));
                let early = control.count("cuGraphExecDestroy");
                control.tell("clear");
                graph.join().unwrap();
                assert_eq!(early, 0, "destroyed under its upload: {call} failed");
            });
            assert_eq!(control.count("cuGraphExecDestroy"), 1, "never destroyed: {call} failed");
        }
    });
}

#[test]
fn a_graph_of_which_nobody_tells_where_it_is_is_never_destroyed() {
    isolated(&[], |control| {
        let device = cuda(0);
        let memory = device.allocate(SIZE).unwrap();
        let stream = capturing(&device, &memory);
        control.tell("reset-counts");
        control.tell("fail cuStreamQuery=CUDA_ERROR_OUT_OF_MEMORY");
        let graph = stream.end_capture().unwrap();
        assert_eq!(control.count("failed:cuStreamQuery"), 1);
        drop(graph);
        assert_eq!(control.count("cuGraphExecDestroy"), 0);
        control.tell("clear");
        drop(capturing(&device, &memory).end_capture().unwrap());
        assert_eq!(control.count("cuGraphExecDestroy"), 1);
    });
}
