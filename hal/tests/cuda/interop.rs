//! What is shared with cudarc.

use std::sync::Arc;

use symmem_hal::types::Bytes;
use symmem_hal::{Device, Memory, Stream, StreamMode};

use super::{LONG, fill, gpu, runs_kernels, words};

/// cudarc opens the driver of the machine itself, so that this is a test for a GPU.
#[test]
fn cudarc_and_this_library_share_contexts_streams_and_memory() {
    let Some(device) = gpu() else { return };
    if !runs_kernels() {
        return eprintln!("skipped: cudarc does not use the driver in software");
    }
    let context = device.to_cudarc().unwrap();
    assert_eq!(Device::from_cudarc(&context).unwrap().uuid(), device.uuid());
    let theirs = context.new_stream().unwrap();
    let stream = Stream::from_cudarc(&theirs).unwrap();
    assert_eq!(stream.as_raw().unwrap(), theirs.cu_stream().cast());
    // Their memory here.
    let slice = Arc::new(theirs.clone_htod(&[1u32, 2, 3, 4]).unwrap());
    let memory = Memory::from_cudarc(slice.clone()).unwrap();
    fill(&stream, &memory, 1, 9, 2);
    assert_eq!(theirs.clone_dtoh(&*slice).unwrap(), [1, 9, 9, 4]);
    assert!(memory.export().is_err());
    drop(slice);
    stream.synchronize(&LONG).unwrap();
    assert_eq!(words(&memory, 4), [1, 9, 9, 4]);
    // This library's memory there, on a stream of this library's.
    let own = device.allocate(Bytes::new(64)).unwrap();
    let worker = device.stream(StreamMode::Worker).unwrap();
    // SAFETY: the stream outlives all that uses it.
    let lent = unsafe { worker.to_cudarc() }.unwrap();
    let mut view = own.to_cudarc::<u32>(&lent, Bytes::new(16), 4).unwrap();
    lent.memcpy_htod(&[5u32, 6, 7, 8], &mut view.view_mut()).unwrap();
    assert_eq!(lent.clone_dtoh(&view.view()).unwrap(), [5, 6, 7, 8]);
    drop(view);
    worker.synchronize(&LONG).unwrap();
    assert_eq!(words(&own, 9), [0, 0, 0, 0, 5, 6, 7, 8, 0]);
    assert!(own.to_cudarc::<u32>(&lent, Bytes::new(52), 4).is_err());
    assert!(own.to_cudarc::<u32>(&lent, Bytes::new(2), 4).is_err());
    assert!(Device::host().to_cudarc().is_err());
}
