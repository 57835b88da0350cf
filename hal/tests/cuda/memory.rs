//! Memory: what is allocated, shared, opened, registered.

use std::sync::Arc;

use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{
    AccessError, AllocError, Device, DevicePtr, ExportError, Fault as _, ImportError, KeepAlive,
    Kind, Memory, RangeError, StreamMode,
};

use super::{LONG, fill, gpu, nothing, word, words};

#[test]
fn memory_is_zero_and_can_be_copied_to_its_ends() {
    let Some(device) = gpu() else { return };
    for size in [0, 1, 4096, 2 << 20, (2 << 20) + 1] {
        for private in [false, true] {
            let bytes = Bytes::new(size);
            let memory =
                if private { device.allocate_private(bytes) } else { device.allocate(bytes) };
            let memory = memory.unwrap();
            assert_eq!((memory.bytes(), memory.backend()), (bytes, BackendKind::Cuda));
            assert!(!memory.base().is_null() && memory.host_segment().is_none());
            let mut all = vec![1; size as usize];
            memory.read(Bytes::ZERO, &mut all).unwrap();
            assert!(all.iter().all(|b| *b == 0), "{size} bytes are not zero");
            memory.write(bytes, &[]).unwrap();
            let expected = AccessError::Range(RangeError {
                offset: bytes,
                length: Bytes::new(1),
                size: bytes,
            });
            assert_eq!(memory.write(bytes, &[1]).unwrap_err(), expected);
            assert_eq!(memory.read(bytes, &mut [0]).unwrap_err(), expected);
            if size > 0 {
                memory.write(Bytes::new(size - 1), &[7]).unwrap();
                memory.read(Bytes::ZERO, &mut all).unwrap();
                assert_eq!(all.iter().map(|b| u64::from(*b)).sum::<u64>(), 7);
                assert_eq!(all.last(), Some(&7));
            }
        }
    }
}

#[test]
fn words_are_filled_at_a_distance() {
    let Some(device) = gpu() else { return };
    for device in [device, Device::host(), Device::stub(0)] {
        let memory = device.allocate(Bytes::new(64)).unwrap();
        memory.fill32(Bytes::new(8), Bytes::new(16), 5, 4).unwrap();
        let expected = [0, 0, 5, 0].repeat(4);
        assert_eq!(words(&memory, 16), expected);
        memory.fill32(Bytes::new(4), Bytes::new(4), 6, 2).unwrap();
        assert_eq!(words(&memory, 4), [0, 6, 6, 0]);
        for (offset, pitch, count) in [(52, 16, 2), (2, 4, 1), (0, 6, 2), (64, 4, 1)] {
            let filled = memory.fill32(Bytes::new(offset), Bytes::new(pitch), 9, count);
            assert!(matches!(filled, Err(AccessError::Range(_))), "{offset} {pitch} {count}");
        }
        memory.fill32(Bytes::new(64), Bytes::new(4), 9, 0).unwrap();
        assert!(!words(&memory, 16).contains(&9));
    }
}

#[test]
fn too_much_says_how_much_there_is() {
    let Some(device) = gpu() else { return };
    for bytes in [Bytes::new(1 << 60), Bytes::new(u64::MAX)] {
        let error = device.allocate(bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        let AllocError::Exhausted { needed, available, .. } = &error else { panic!("{error}") };
        assert_eq!(*needed, bytes);
        assert!(*available < bytes && *available > Bytes::ZERO, "{error}");
    }
}

#[test]
fn what_is_exported_is_the_same_memory() {
    let Some(device) = gpu() else { return };
    let bytes = Bytes::new(5000);
    let memory = device.allocate(bytes).unwrap();
    let peers = device.import(memory.export().unwrap(), bytes).unwrap();
    assert_ne!(peers.base(), memory.base());
    memory.write(Bytes::new(4996), &9u32.to_ne_bytes()).unwrap();
    let mut seen = [0; 4];
    peers.read(Bytes::new(4996), &mut seen).unwrap();
    assert_eq!(u32::from_ne_bytes(seen), 9);
    assert!(peers.survives_peer_loss());
    assert!(matches!(peers.export(), Err(ExportError::NotOwner)));
    let private = device.allocate_private(bytes).unwrap();
    assert!(matches!(private.export(), Err(ExportError::NotOwner)));
    // The owner's goes first: the importer's stays.
    drop(memory);
    peers.read(Bytes::new(4996), &mut seen).unwrap();
    assert_eq!(u32::from_ne_bytes(seen), 9);
    // A descriptor of something else.
    let other = Device::host().allocate(bytes).unwrap();
    let error = device.import(other.export().unwrap(), bytes).unwrap_err();
    assert!(matches!(error, ImportError::Device { .. }), "{error}");
    // Bytes that are not there.
    let small = device.allocate(Bytes::new(1)).unwrap();
    assert!(device.import(small.export().unwrap(), Bytes::mib(64)).is_err());
}

#[test]
fn a_fabric_handle_is_made_where_the_device_says_so() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    let exported = memory.export_fabric();
    assert_eq!(exported.is_ok(), device.capabilities().fabric, "{exported:?}");
    if let Ok(shared) = exported {
        let peers = device.import(shared, memory.bytes()).unwrap();
        memory.write(Bytes::ZERO, &[3]).unwrap();
        assert_eq!(words(&peers, 1)[0].to_ne_bytes()[0], 3);
    }
}

#[test]
fn another_device_opens_the_same_mapping() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(4)).unwrap();
    assert_eq!(device.open(&memory).unwrap().base(), memory.base());
    let host = Device::host().allocate(Bytes::kib(4)).unwrap();
    assert!(matches!(device.open(&host), Err(ImportError::Unsupported { .. })));
    let Ok(other) = Device::cuda(1) else { return eprintln!("skipped: one device") };
    if other.can_access_peer(device.uuid()).is_err() {
        return eprintln!("skipped: no path between the two");
    }
    let opened = other.open(&memory).unwrap();
    assert_eq!(opened.base(), memory.base());
    let stream = other.stream(StreamMode::Worker).unwrap();
    fill(&stream, &opened, 3, 8, 1);
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 5), [0, 0, 0, 8, 0]);
    let private = device.allocate_private(Bytes::kib(4)).unwrap();
    assert!(matches!(other.open(&private), Err(ImportError::Unsupported { .. })));
}

#[test]
fn foreign_memory_tells_how_it_can_be_shared() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(Bytes::kib(8)).unwrap();
    let kept: KeepAlive = Arc::new(());
    let of = |address, bytes, keep| {
        // SAFETY: part of `memory`, which outlives it.
        unsafe { Memory::from_raw(&device, address, bytes, keep) }
    };
    let foreign = of(memory.base(), Bytes::kib(4), Some(kept.clone())).unwrap();
    memory.write(Bytes::ZERO, &4u32.to_ne_bytes()).unwrap();
    assert_eq!(words(&foreign, 1), [4]);
    let peers = device.import(foreign.export().unwrap(), Bytes::kib(4)).unwrap();
    assert_eq!(words(&peers, 1), [4]);
    let middle = of(word(&memory, 64), Bytes::kib(4), None).unwrap();
    assert!(matches!(middle.export(), Err(ExportError::NotShareable { .. })));
    assert_eq!(Arc::strong_count(&kept), 2);
    drop(foreign);
    assert_eq!(Arc::strong_count(&kept), 1);
    let local = 0u64;
    let here = DevicePtr::new(core::ptr::from_ref(&local).addr() as u64);
    assert!(matches!(of(here, Bytes::new(8), None), Err(ImportError::Unsupported { .. })));
}

#[test]
fn kernels_find_memory_of_the_cpu() {
    let Some(device) = gpu() else { return };
    let memory = Device::host().allocate(Bytes::new(100)).unwrap();
    let there = device.map_host(&memory).unwrap();
    assert_eq!(device.map_host(&memory).unwrap(), there);
    let stream = device.stream(StreamMode::Worker).unwrap();
    // SAFETY: the memory is mapped until after the stream was waited for.
    let _ = unsafe { stream.fill32(there, 6, 25, &nothing) }.unwrap();
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 25), [6; 25]);
    let own = device.allocate(Bytes::new(4)).unwrap();
    assert!(matches!(device.map_host(&own), Err(ImportError::Unsupported { .. })));
}
