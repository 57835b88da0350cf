//! The driver's table.
//!
//! Unsafe is allowed here because resolving a symbol gives it a type that only the header vouches
//! for, and because the version is asked of the library itself.
#![allow(unsafe_code, non_snake_case)]

use core::ffi::c_int;

use super::bindings::{self, CUresult};
use crate::loader::{Folder, Spec, Version, table};

/// Where the CUDA driver is looked for.
///
/// Only under its name with a version: the unversioned `libcuda.so` in a toolkit's `stubs` folder is
/// there to link against and answers every call with an error.
const LIBRARY: Spec = Spec {
    name: "CUDA driver",
    variable: "SYMMEM_CUDA_LIBRARY",
    sonames: &["libcuda.so.1"],
    folders: &[
        Folder::Multiarch,
        Folder::Fixed("/usr/lib64"),
        Folder::Fixed("/usr/lib"),
        Folder::Fixed("/usr/lib/wsl/lib"),
        Folder::Fixed("/usr/local/nvidia/lib64"),
        Folder::Fixed("/run/opengl-driver/lib"),
    ],
    packages: &[],
    companion: None,
    anchor: "cuDriverGetVersion",
};

/// The highest CUDA version that the driver serves. It may be asked before `cuInit`.
fn read_version(driver: &Driver) -> Option<Version> {
    let mut number: c_int = 0;
    // SAFETY: the function writes one int through the pointer, which is valid during the call, and
    // needs no initialised driver.
    let status = unsafe { (driver.cuDriverGetVersion?)(&raw mut number) };
    (status == CUresult::CUDA_SUCCESS)
        .then(|| u32::try_from(number).ok().map(Version::from_cuda))?
}

table! {
    /// The CUDA driver's functions, under the names that the library exports.
    ///
    /// A suffix as in `cuMemAlloc_v2` is part of the name: it fixes the signature for good, while
    /// the header's plain name moves from release to release.
    pub struct Driver in bindings from LIBRARY {
        // Errors, versions, start.
        cuDriverGetVersion,
        cuGetErrorName,
        cuGetErrorString,
        cuGetProcAddress_v2,
        cuInit,

        // Devices.
        cuDeviceCanAccessPeer,
        cuDeviceGet,
        cuDeviceGetAttribute,
        cuDeviceGetByPCIBusId,
        cuDeviceGetCount,
        cuDeviceGetHostAtomicCapabilities,
        cuDeviceGetName,
        cuDeviceGetP2PAtomicCapabilities,
        cuDeviceGetP2PAttribute,
        cuDeviceGetPCIBusId,
        cuDeviceGetUuid_v2,
        cuDeviceTotalMem_v2,

        // Contexts.
        cuCtxDisablePeerAccess,
        cuCtxEnablePeerAccess,
        cuCtxGetCurrent,
        cuCtxGetDevice,
        cuCtxGetFlags,
        cuCtxGetId,
        cuCtxGetLimit,
        cuCtxGetStreamPriorityRange,
        cuCtxPopCurrent_v2,
        cuCtxPushCurrent_v2,
        cuCtxSetCurrent,
        cuCtxSetLimit,
        cuCtxSynchronize,
        cuDevicePrimaryCtxGetState,
        cuDevicePrimaryCtxRelease_v2,
        cuDevicePrimaryCtxRetain,

        // Streams.
        cuLaunchHostFunc,
        cuStreamCreate,
        cuStreamCreateWithPriority,
        cuStreamDestroy_v2,
        cuStreamGetCtx,
        cuStreamGetDevice,
        cuStreamGetFlags,
        cuStreamGetId,
        cuStreamGetPriority,
        cuStreamQuery,
        cuStreamSynchronize,
        cuStreamWaitEvent,

        // Events.
        cuEventCreate,
        cuEventDestroy_v2,
        cuEventElapsedTime,
        cuEventElapsedTime_v2,
        cuEventQuery,
        cuEventRecord,
        cuEventRecordWithFlags,
        cuEventSynchronize,

        // Capture and graphs.
        cuGraphAddDependencies,
        cuGraphAddDependencies_v2,
        cuGraphAddEmptyNode,
        cuGraphClone,
        cuGraphCreate,
        cuGraphDebugDotPrint,
        cuGraphDestroy,
        cuGraphExecDestroy,
        cuGraphExecUpdate_v2,
        cuGraphGetEdges,
        cuGraphGetEdges_v2,
        cuGraphGetNodes,
        cuGraphInstantiateWithFlags,
        cuGraphInstantiateWithParams,
        cuGraphLaunch,
        cuGraphNodeGetType,
        cuGraphReleaseUserObject,
        cuGraphRetainUserObject,
        cuGraphUpload,
        cuStreamBeginCaptureToGraph,
        cuStreamBeginCapture_v2,
        cuStreamEndCapture,
        cuStreamGetCaptureInfo_v2,
        cuStreamGetCaptureInfo_v3,
        cuStreamIsCapturing,
        cuStreamUpdateCaptureDependencies,
        cuStreamUpdateCaptureDependencies_v2,
        cuThreadExchangeStreamCaptureMode,
        cuUserObjectCreate,
        cuUserObjectRelease,
        cuUserObjectRetain,

        // Memory: plain, host, and what a pointer is.
        cuMemAllocAsync,
        cuMemAlloc_v2,
        cuMemFreeAsync,
        cuMemFreeHost,
        cuMemFree_v2,
        cuMemGetAddressRange_v2,
        cuMemGetInfo_v2,
        cuMemHostAlloc,
        cuMemHostGetDevicePointer_v2,
        cuMemHostGetFlags,
        cuMemHostRegister_v2,
        cuMemHostUnregister,
        cuPointerGetAttribute,
        cuPointerGetAttributes,
        cuPointerSetAttribute,

        // Virtual memory and handles that can be shared.
        cuMemAddressFree,
        cuMemAddressReserve,
        cuMemCreate,
        cuMemExportToShareableHandle,
        cuMemGetAccess,
        cuMemGetAllocationGranularity,
        cuMemGetAllocationPropertiesFromHandle,
        cuMemGetHandleForAddressRange,
        cuMemImportFromShareableHandle,
        cuMemMap,
        cuMemRelease,
        cuMemRetainAllocationHandle,
        cuMemSetAccess,
        cuMemUnmap,

        // Legacy handles between processes.
        cuIpcCloseMemHandle,
        cuIpcGetEventHandle,
        cuIpcGetMemHandle,
        cuIpcOpenEventHandle,
        cuIpcOpenMemHandle_v2,

        // Multicast.
        cuMulticastAddDevice,
        cuMulticastBindAddr,
        cuMulticastBindMem,
        cuMulticastCreate,
        cuMulticastGetGranularity,
        cuMulticastUnbind,

        // Operations of a stream on words in memory.
        cuStreamBatchMemOp_v2,
        cuStreamWaitValue32_v2,
        cuStreamWaitValue64_v2,
        cuStreamWriteValue32_v2,
        cuStreamWriteValue64_v2,

        // Copies and fills.
        cuMemcpy,
        cuMemcpy2DAsync_v2,
        cuMemcpyAsync,
        cuMemcpyBatchAsync,
        cuMemcpyBatchAsync_v2,
        cuMemcpyDtoDAsync_v2,
        cuMemcpyDtoHAsync_v2,
        cuMemcpyDtoH_v2,
        cuMemcpyHtoDAsync_v2,
        cuMemcpyHtoD_v2,
        cuMemcpyPeerAsync,
        cuMemsetD2D32Async,
        cuMemsetD16Async,
        cuMemsetD32Async,
        cuMemsetD8Async,

        // Modules, libraries, functions.
        cuFuncGetAttribute,
        cuFuncGetModule,
        cuFuncGetName,
        cuFuncGetParamInfo,
        cuFuncIsLoaded,
        cuFuncLoad,
        cuFuncSetAttribute,
        cuKernelGetAttribute,
        cuKernelGetFunction,
        cuKernelSetAttribute,
        cuLibraryGetGlobal,
        cuLibraryGetKernel,
        cuLibraryGetModule,
        cuLibraryLoadData,
        cuLibraryUnload,
        cuModuleGetFunction,
        cuModuleGetGlobal_v2,
        cuModuleGetLoadingMode,
        cuModuleLoadData,
        cuModuleLoadDataEx,
        cuModuleUnload,

        // Launches and occupancy.
        cuLaunchCooperativeKernel,
        cuLaunchKernel,
        cuLaunchKernelEx,
        cuOccupancyAvailableDynamicSMemPerBlock,
        cuOccupancyMaxActiveBlocksPerMultiprocessor,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
        cuOccupancyMaxActiveClusters,
        cuOccupancyMaxPotentialBlockSize,
        cuOccupancyMaxPotentialClusterSize,
    }
}
