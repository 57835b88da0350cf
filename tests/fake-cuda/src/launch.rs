//! Launches and occupancy. A launch is checked, takes its place in the stream, and does nothing. Its
//! kernel's name is kept, and as much of its arguments as a test says they have.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use symmem_sys::cuda::bindings::{
    CUfunction, CUlaunchAttributeID as AttributeId, CUlaunchConfig, CUresult as Code, CUstream,
};

use crate::counts;
use crate::device::{BLOCKS_UNIT, SHARED_UNIT, THREADS_BLOCK, THREADS_UNIT, UNITS};
use crate::entry::{Outcome, export, fetch, put};
use crate::module::{FUNCTIONS, Function};
use crate::stream::{self, Work};
use crate::table::handle;

/// What the driver keeps of a block's shared memory.
const SHARED_RESERVED: usize = 1 << 10;

/// Words of a kernel's first argument that are kept.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Keeps so many bytes of the first argument of each launch from now on, which must have them.
pub(crate) fn keep_arguments(bytes: usize) {
    KEPT.store(bytes / size_of::<u64>(), Ordering::Relaxed);
}

/// What of a launch's arguments a test wants to know.
fn words(parameters: *mut *mut c_void) -> Outcome<Vec<u64>> {
    let kept = KEPT.load(Ordering::Relaxed);
    if parameters.is_null() || kept == 0 {
        return Ok(Vec::new());
    }
    let first = fetch!(parameters).cast::<u64>();
    // SAFETY: the test vouches that every argument until it says otherwise has as many words; the
    // caller of the launch, for the argument.
    Ok((0..kept).map(|word| unsafe { first.add(word).read_unaligned() }).collect())
}

/// Blocks of a function that fit a multiprocessor at once.
fn resident(function: &Function, threads: usize, shared: usize) -> usize {
    if threads == 0 || threads > THREADS_BLOCK || shared > function.shared.load(Ordering::Relaxed) {
        return 0;
    }
    let warps = threads.next_multiple_of(32);
    (THREADS_UNIT / warps).min(BLOCKS_UNIT).min(SHARED_UNIT / (shared + SHARED_RESERVED))
}

struct Shape {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    cooperative: bool,
}

fn launch(
    function: CUfunction,
    shape: &Shape,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let (function, stream) = (FUNCTIONS.get(handle(function))?, stream::of(stream)?);
    if function.device != stream.device {
        return Err(Code::CUDA_ERROR_INVALID_HANDLE);
    }
    let product = |sizes: [c_uint; 3]| sizes.iter().map(|&size| u64::from(size)).product::<u64>();
    let (blocks, threads) = (product(shape.grid), product(shape.block));
    let [x, y, z] = shape.grid;
    let fits =
        x <= c_int::MAX.cast_unsigned() && y <= 65_535 && z <= 65_535 && shape.block[2] <= 64;
    if blocks == 0 || threads == 0 || threads > THREADS_BLOCK as u64 || !fits {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    if shape.shared as usize > function.shared.load(Ordering::Relaxed) {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // A kernel's parameters are one block of arguments or more: how many, only its code knows.
    if !parameters.is_null() && fetch!(parameters).is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    if !parameters.is_null() && !extra.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    let together = resident(&function, threads as usize, shape.shared as usize) * UNITS as usize;
    if shape.cooperative && blocks > together as u64 {
        return Err(Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    let words = words(parameters)?;
    stream.issue(Work::Kernel)?;
    counts::add_launch(function.name.to_string_lossy().into_owned(), words);
    Ok(())
}

fn is_cooperative(config: &CUlaunchConfig) -> Outcome<bool> {
    let mut cooperative = false;
    for index in 0..config.numAttrs as usize {
        // SAFETY: the caller vouches for as many attributes as the configuration says.
        let attribute = fetch!(unsafe { config.attrs.add(index) });
        if attribute.id == AttributeId::CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
            // SAFETY: the id says that this field of the union was written.
            cooperative = unsafe { attribute.value.cooperative } != 0;
        }
    }
    Ok(cooperative)
}

fn occupancy(function: CUfunction, threads: c_int, shared: usize) -> Outcome<c_int> {
    let function = FUNCTIONS.get(handle(function))?;
    let threads = usize::try_from(threads).map_err(|_| Code::CUDA_ERROR_INVALID_VALUE)?;
    Ok(c_int::try_from(resident(&function, threads, shared)).unwrap_or(c_int::MAX))
}

export! {
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, cooperative: false };
        launch(function, &shape, stream, parameters, extra)?;
    }

    fn cuLaunchCooperativeKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, cooperative: true };
        launch(function, &shape, stream, parameters, core::ptr::null_mut())?;
    }

    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let config = fetch!(config);
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared: config.sharedMemBytes,
            cooperative: is_cooperative(&config)?,
        };
        launch(function, &shape, config.hStream, parameters, extra)?;
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: CUfunction,
        threads: c_int,
        shared: usize,
    ) {
        put!(blocks, occupancy(function, threads, shared)?);
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int,
        function: CUfunction,
        threads: c_int,
        shared: usize,
        _flags: c_uint,
    ) {
        put!(blocks, occupancy(function, threads, shared)?);
    }
}
