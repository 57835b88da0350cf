//! What is generated for each library.

/// One library: its header and what to take from it beside the functions of its table.
pub struct Library {
    /// The folder under `sys/src`.
    pub module: &'static str,
    pub header: &'static str,
    /// A header of versioned function pointer types, which tells when a symbol came.
    pub typedefs: Option<&'static str>,
    /// The package that ships the header, and the release that the committed file is made from.
    pub package: &'static str,
    /// SHA-256 of that release's header.
    pub sha256: &'static str,
    /// Preprocessor names set while the header is read.
    pub defines: &'static [&'static str],
    /// The type every function returns; ignoring it is a warning.
    pub status: &'static str,
    /// Types that no signature mentions: flags that travel as plain integers.
    pub types: &'static [&'static str],
    /// Constants, as patterns.
    pub constants: &'static [&'static str],
}

pub const LIBRARIES: [Library; 2] = [
    Library {
        module: "cuda",
        header: "cuda.h",
        typedefs: Some("cudaTypedefs.h"),
        package: "nvidia-cuda-runtime 13.0.96",
        sha256: "64025f81a9d6d2b10e9e11654f3523e5b046d01b883f0b9ca474e463274b80d4",
        // Without these the header renames functions (cuMemAlloc becomes cuMemAlloc_v2) and hides
        // older forms. With them every exported symbol is declared under its real name; the second
        // keeps enumerations free of the *_MAX entries that differ from version to version.
        defines: &["__CUDA_API_VERSION_INTERNAL", "__CUDA_API_VERSION_INTERNAL_ODR"],
        status: "cudaError_enum",
        types: &[
            "CUctx_flags",
            "CUdriverProcAddress_flags",
            "CUevent_flags",
            "CUevent_record_flags",
            "CUevent_wait_flags",
            "CUgraphInstantiate_flags",
            "CUgraphDebugDot_flags",
            "CUipcMem_flags",
            "CUmemRangeFlags",
            "CUoccupancy_flags",
            "CUstreamUpdateCaptureDependencies_flags",
            "CUstreamWaitValue_flags",
            "CUstreamWriteValue_flags",
            "CUstream_flags",
            "CUuserObjectRetain_flags",
            "CUuserObject_flags",
        ],
        constants: &[
            "CUDA_VERSION",
            "CU_IPC_HANDLE_SIZE",
            "CU_MEMHOSTALLOC_.*",
            "CU_MEMHOSTREGISTER_.*",
            "CU_MEM_CREATE_USAGE_.*",
        ],
    },
    Library {
        module: "nvrtc",
        header: "nvrtc.h",
        typedefs: None,
        package: "nvidia-cuda-nvrtc 13.0.88",
        sha256: "9e4415b5ff5a2c58ec2b1a02eefcc743187c94ce48b00743c68092efe8c0f86e",
        defines: &[],
        status: "nvrtcResult",
        types: &[],
        constants: &[],
    },
];
