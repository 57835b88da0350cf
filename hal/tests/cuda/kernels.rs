//! Compiled kernels.

use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{
    Device, DevicePtr, Grid, KernelSource, Launch, Launched, LoadError, StreamMode, SyncError,
    Unit, bytemuck,
};

use super::{LONG, gpu, runs_kernels, words};

static STEPS: KernelSource = KernelSource {
    name: "hal-tests-steps",
    file: (
        "steps.cu",
        r#"
struct Step { unsigned* word; unsigned factor; unsigned shared; };
extern "C" __global__ void step(const __grid_constant__ Step step) {
    extern __shared__ unsigned scratch[];
    WAIT;
    if (threadIdx.x == 0) scratch[step.shared / 4 - 1] = step.factor;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == blockDim.x - 1)
        *step.word = *step.word * scratch[step.shared / 4 - 1] + gridDim.x;
}
"#,
    ),
    headers: &[],
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Step {
    word: DevicePtr,
    factor: u32,
    shared: u32,
}

#[test]
fn kernels_are_compiled_once_and_launched_with_their_arguments() {
    let Some(device) = gpu() else { return };
    let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\")";
    let arch = device.capabilities().arch.unwrap();
    let wait = if arch >= (9, 0) { wait } else { "(void)0" };
    let defines = [("WAIT", wait)];
    let unit = Unit { source: &STEPS, defines: &defines };
    let module = match device.compile(&unit) {
        Ok(module) => module,
        Err(error @ LoadError::NoCode { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let function = module.device_function("step", size_of::<Step>()).unwrap();
    assert_eq!((function.args(), function.backend()), (16, BackendKind::Cuda));
    if runs_kernels() {
        let missing = module.device_function("stride", 16).unwrap_err();
        assert!(matches!(missing, LoadError::NoKernel { .. }), "{missing}");
        let other = module.device_function("step", 24).unwrap_err();
        assert!(matches!(other, LoadError::Arguments { expected: 24, found: 16, .. }), "{other}");
        let units = device.capabilities().units;
        assert!(function.resident_blocks(32, 0) >= units);
        assert!(function.resident_blocks(1024, 100 << 10) < function.resident_blocks(32, 0));
    }
    let again = device.compile(&unit).unwrap().device_function("step", 16).unwrap();
    let (memory, stream) =
        (device.allocate(Bytes::new(64)).unwrap(), device.stream(StreamMode::Worker).unwrap());
    let launch = |factor, grid: Grid| {
        let args = Step { word: memory.base(), factor, shared: grid.shared };
        // SAFETY: `step` takes a `Step`; the memory outlives the stream's work and the graph.
        unsafe { stream.launch(Launch::new(again, &args, &LONG, &[]).grid(grid)) }
    };
    let grid = Grid { blocks: 3, threads: 64, shared: 64, ..Grid::default() };
    let large = Grid { shared: 100 << 10, ..grid };
    assert_eq!(launch(1, grid).unwrap(), Launched::Queued);
    launch(2, large).unwrap();
    launch(3, Grid { dependent: arch >= (9, 0), ..grid }).unwrap();
    launch(4, Grid { cooperative: true, blocks: 2, ..grid }).unwrap();
    stream.synchronize(&LONG).unwrap();
    let expected = ((3 * 2 + 3) * 3 + 3) * 4 + 2;
    if runs_kernels() {
        assert_eq!(words(&memory, 2), [expected, 0]);
    }
    stream.begin_capture().unwrap();
    assert_eq!(launch(5, grid).unwrap(), Launched::Recorded);
    launch(6, Grid { dependent: arch >= (9, 0), ..grid }).unwrap();
    let graph = stream.end_capture().unwrap();
    assert_eq!((graph.nodes(), graph.edges()), (2, vec![(0, 1)]));
    graph.launch(&stream, &LONG).unwrap();
    stream.synchronize(&LONG).unwrap();
    if runs_kernels() {
        assert_eq!(words(&memory, 1), [(expected * 5 + 3) * 6 + 3]);
        // More than the device has: refused, and the stream goes on.
        let refused = launch(1, Grid { threads: 4096, ..grid }).unwrap_err();
        assert!(matches!(refused, SyncError::Device(_)), "{refused}");
        let refused = launch(1, Grid { cooperative: true, blocks: 1 << 20, ..grid }).unwrap_err();
        assert!(matches!(refused, SyncError::Device(_)), "{refused}");
        launch(0, grid).unwrap();
        stream.synchronize(&LONG).unwrap();
        assert_eq!(words(&memory, 1), [3]);
    }
    let host = Device::host().stream(StreamMode::Inline).unwrap();
    let args = Step { word: memory.base(), factor: 1, shared: 64 };
    // SAFETY: refused.
    let refused = unsafe { host.launch(Launch::new(again, &args, &LONG, &[])) };
    assert!(matches!(refused, Err(SyncError::OtherBackend)));
}
