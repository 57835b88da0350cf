//! What is compiled, and what of it is loaded.

use std::sync::{LazyLock, OnceLock};

use linkme::distributed_slice;
use symmem_collectives::gpu::PAYLOAD_CUH;
use symmem_hal::kernels::{KernelSource, KernelUnits, SYMMEM_CUH, Unit, source_hash};
use symmem_hal::types::BackendKind;
use symmem_hal::{Device, Function, LoadError};
use symmem_mem::stamps::{STAMPS, Stamp};
use symmem_sync::gpu::{SYMMEM_LANE_CUH, SYMMEM_STALLS_CUH, SYMMEM_SYNC_CUH};

use super::plan::GpuPlan;

/// What exchanges by splits know: name and text.
pub(super) const VDEV_CUH: (&str, &str) = ("vdev.cuh", include_str!("../../kernels/vdev.cuh"));

/// Exchanges by splits.
static VDEV: KernelSource = KernelSource {
    name: "symmem-moe",
    file: ("vdev.cu", include_str!("../../kernels/vdev.cu")),
    headers: &[
        SYMMEM_CUH,
        SYMMEM_LANE_CUH,
        SYMMEM_SYNC_CUH,
        SYMMEM_STALLS_CUH,
        PAYLOAD_CUH,
        VDEV_CUH,
    ],
};

const EXCHANGES: Unit<'static> = Unit { source: &VDEV, defines: &[] };

static HASH: LazyLock<String> = LazyLock::new(|| source_hash(&[&VDEV]));

#[distributed_slice(STAMPS)]
static STAMP: Stamp = Stamp {
    name: "the kernels of symmem-moe",
    value: |backend| (backend == BackendKind::Cuda).then(|| HASH.clone()),
};

/// What can be compiled of this crate.
pub static UNITS: KernelUnits =
    KernelUnits { name: "moe", headers: &[], each: |visit| visit(&EXCHANGES) };

/// The kernels that a group has loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    all_to_all_vdev: OnceLock<Function>,
}

impl Kernels {
    pub(crate) fn new(device: &Device) -> Self {
        Kernels { device: device.clone(), all_to_all_vdev: OnceLock::new() }
    }

    /// The kernel of exchanges by splits, loaded if `may_load`: `None` if it would have to be.
    pub(crate) fn all_to_all_vdev(&self, may_load: bool) -> Result<Option<Function>, LoadError> {
        let place = &self.all_to_all_vdev;
        if place.get().is_none() && may_load {
            let module = self.device.compile(&EXCHANGES)?;
            // Whoever comes second has loaded the same.
            let _ = place.set(module.device_function("all_to_all_vdev", size_of::<GpuPlan>())?);
        }
        Ok(place.get().copied())
    }
}
