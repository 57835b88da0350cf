//! What some kernels take for granted of a device.
#![allow(unsafe_code, reason = "kernels follow the addresses in their argument block")]

use std::sync::Arc;

use symmem_hal::kernels::{KernelSource, SYMMEM_CUH, Unit};
use symmem_hal::types::BackendKind;
use symmem_hal::{DevicePtr, Grid, KeepAlive, Launch, StreamMode};
use symmem_mem::Tensor;
use symmem_sync::{Channel, Signals as _};

use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[test!(lines_arrive_whole).only_on(&[BackendKind::Cuda])];

static SOURCE: KernelSource = KernelSource {
    name: "symmem-tests",
    file: ("lines.cu", include_str!("../../../kernels/lines.cu")),
    headers: &[SYMMEM_CUH],
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Lines {
    lines: DevicePtr,
    counts: DevicePtr,
    rounds: u64,
}

const GRID: Grid =
    Grid { blocks: 16, threads: 256, shared: 0, dependent: false, cooperative: false };

/// Every rank stores lines into the next one's memory, over and over, and loads its own meanwhile.
fn lines_arrive_whole(context: &Context) -> Verdict {
    let group = context.group()?;
    if !group.whole_lines() {
        return Err(TestError::skipped("lines are not known to arrive whole on these devices"));
    }
    let (device, size) = (context.device(), u64::from(GRID.blocks * GRID.threads) * 16);
    let shared = Tensor::<u32>::zeros(device, &[size])?;
    let counts = Tensor::<u64>::zeros(device, &[2])?;
    let handle = group.rendezvous(&shared, &PATIENT)?;
    let module = device.compile(&Unit { source: &SOURCE, defines: &[] })?;
    let next = handle.buffer_ptrs()[(context.rank() + 1) % context.size()];
    let streams = [device.stream(StreamMode::Worker)?, device.stream(StreamMode::Worker)?];
    let keep: Vec<KeepAlive> = vec![Arc::new(handle.clone()), Arc::new(counts.as_ref().clone())];
    group.barrier(Channel(0)).wait(&PATIENT).run()?;
    let of = |lines| Lines { lines, counts: counts.ptr(), rounds: 50_000 };
    for (name, stream, args) in
        [("store_lines", &streams[0], of(next)), ("load_lines", &streams[1], of(shared.ptr()))]
    {
        let function = module.device_function(name, size_of::<Lines>())?;
        // SAFETY: both kernels take Lines, of as many lines as the grid has warps, 16 each, in memory that
        // `keep` holds.
        unsafe { stream.launch(Launch::new(function, &args, &PATIENT, &keep).grid(GRID)) }?;
    }
    for stream in &streams {
        stream.synchronize(&PATIENT)?;
    }
    let found = counts.to_vec()?;
    check!(found[0] > 0, "nothing was stored meanwhile");
    check_eq!(found[1], 0, "words of torn lines, in {} changes", found[0]);
    group.barrier(Channel(0)).wait(&PATIENT).run()?;
    Ok(())
}
