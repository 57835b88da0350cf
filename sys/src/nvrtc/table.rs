//! NVRTC's table.
//!
//! Unsafe is allowed here because resolving a symbol gives it a type that only the header vouches
//! for, and because the version is asked of the library itself.
#![allow(unsafe_code, non_snake_case)]

use core::ffi::c_int;

use super::bindings::{self, nvrtcResult};
use crate::loader::{Folder, Spec, Version, table};

/// Where NVRTC is looked for.
const LIBRARY: Spec = Spec {
    name: "NVRTC",
    variable: "SYMMEM_NVRTC_LIBRARY",
    sonames: &["libnvrtc.so.13", "libnvrtc.so.12"],
    folders: &[
        Folder::Below("CUDA_HOME", "lib64"),
        Folder::Below("CUDA_PATH", "lib64"),
        Folder::Below("CONDA_PREFIX", "lib"),
        Folder::Fixed("/usr/local/cuda/lib64"),
        Folder::Fixed("/usr/local/cuda-13/lib64"),
        Folder::Fixed("/usr/local/cuda-12/lib64"),
        Folder::Fixed("/opt/cuda/lib64"),
        Folder::Multiarch,
        Folder::Fixed("/usr/lib64"),
    ],
    packages: &["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"],
    // NVRTC opens its built-in functions by bare name at the first compilation, and so misses them
    // in a folder that the dynamic linker does not search, such as a Python package's.
    companion: Some("libnvrtc-builtins.so."),
    anchor: "nvrtcVersion",
};

/// The version of the toolkit that NVRTC belongs to.
fn read_version(nvrtc: &Nvrtc) -> Option<Version> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the function writes one int through each pointer, which are valid during the call.
    let status = unsafe { (nvrtc.nvrtcVersion?)(&raw mut major, &raw mut minor) };
    if status != nvrtcResult::NVRTC_SUCCESS {
        return None;
    }
    Some(Version { major: major.try_into().ok()?, minor: minor.try_into().ok()? })
}

table! {
    /// NVRTC's functions: the whole C interface.
    pub struct Nvrtc in bindings from LIBRARY {
        nvrtcAddNameExpression,
        nvrtcCompileProgram,
        nvrtcCreateProgram,
        nvrtcDestroyProgram,
        nvrtcGetCUBIN,
        nvrtcGetCUBINSize,
        nvrtcGetErrorString,
        nvrtcGetLTOIR,
        nvrtcGetLTOIRSize,
        nvrtcGetLoweredName,
        nvrtcGetNumSupportedArchs,
        nvrtcGetOptiXIR,
        nvrtcGetOptiXIRSize,
        nvrtcGetPCHCreateStatus,
        nvrtcGetPCHHeapSize,
        nvrtcGetPCHHeapSizeRequired,
        nvrtcGetPTX,
        nvrtcGetPTXSize,
        nvrtcGetProgramLog,
        nvrtcGetProgramLogSize,
        nvrtcGetSupportedArchs,
        nvrtcSetFlowCallback,
        nvrtcSetPCHHeapSize,
        nvrtcVersion,
    }
}
