//! The kernels of signals and barriers, as sources and loaded.

use std::sync::LazyLock;

use linkme::distributed_slice;
use symmem_hal::kernels::{KernelSource, KernelUnits, SYMMEM_CUH, Unit, source_hash};
use symmem_hal::types::BackendKind;
use symmem_hal::{Device, Function, LoadError};
use symmem_mem::stamps::{STAMPS, Stamp};

use super::args::{SymmemPut, SymmemSignal};

/// The public header of what a lane is made of, which that of its operations includes: name and text.
pub const SYMMEM_LANE_CUH: (&str, &str) =
    ("symmem_lane.cuh", include_str!("../../kernels/symmem_lane.cuh"));

/// The public header of lane operations: name and text.
pub const SYMMEM_SYNC_CUH: (&str, &str) =
    ("symmem_sync.cuh", include_str!("../../kernels/symmem_sync.cuh"));

/// What it includes in kernels that are compiled to stall.
#[doc(hidden)]
pub const SYMMEM_STALLS_CUH: (&str, &str) =
    ("symmem_stalls.cuh", include_str!("../../kernels/symmem_stalls.cuh"));

/// The kernels of this crate.
pub static SIGNALS: KernelSource = KernelSource {
    name: "symmem-sync",
    file: ("signals.cu", include_str!("../../kernels/signals.cu")),
    headers: &[SYMMEM_CUH, SYMMEM_LANE_CUH, SYMMEM_SYNC_CUH, SYMMEM_STALLS_CUH],
};

/// What can be compiled of this crate.
pub static UNITS: KernelUnits = KernelUnits {
    name: "sync",
    headers: &[SYMMEM_LANE_CUH, SYMMEM_SYNC_CUH],
    each: |visit| visit(&Unit { source: &SIGNALS, defines: &[] }),
};

static HASH: LazyLock<String> = LazyLock::new(|| source_hash(&[&SIGNALS]));

#[distributed_slice(STAMPS)]
static STAMP: Stamp = Stamp {
    name: "the kernels of symmem-sync",
    value: |backend| (backend == BackendKind::Cuda).then(|| HASH.clone()),
};

/// The kernels, loaded on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    pub barrier: Function,
    pub put: Function,
    pub await_empty: Function,
    pub put_with_signal: Function,
    pub wait: Function,
    pub reset: Function,
}

impl Functions {
    pub(super) fn load(device: &Device) -> Result<Self, LoadError> {
        let module = device.compile(&Unit { source: &SIGNALS, defines: &[] })?;
        let signal = |name| module.device_function(name, size_of::<SymmemSignal>());
        let put = |name| module.device_function(name, size_of::<SymmemPut>());
        Ok(Functions {
            barrier: signal("symmem_barrier")?,
            put: signal("symmem_put_signal")?,
            await_empty: signal("symmem_await_empty")?,
            put_with_signal: put("symmem_put_with_signal")?,
            wait: signal("symmem_wait_signal")?,
            reset: signal("symmem_reset_channel")?,
        })
    }
}
