//! What is compiled, and what of it is loaded.

use std::sync::{LazyLock, OnceLock};

use linkme::distributed_slice;
use symmem_collectives::gpu::{LINES_CUH, NUMERICS_CUH, PAYLOAD_CUH};
use symmem_hal::kernels::{KernelSource, KernelUnits, SYMMEM_CUH, Unit, source_hash};
use symmem_hal::types::BackendKind;
use symmem_hal::{Device, Function, LoadError};
use symmem_mem::stamps::{STAMPS, Stamp};
use symmem_sync::gpu::{SYMMEM_LANE_CUH, SYMMEM_STALLS_CUH, SYMMEM_SYNC_CUH};

use super::plan::{GpuPlan, OnGpu};
use crate::landing::plan::{ReceiveBackPlan, ReceivePlan, SendBackPlan, SendPlan};
use crate::routing::plan::{CombinePlan, DispatchPlan};

macro_rules! text {
    ($name:literal) => {
        ($name, include_str!(concat!("../../kernels/", $name)))
    };
}

/// What ranks tell each other before rows move: name and text.
pub(super) const MESSAGES_CUH: (&str, &str) = text!("messages.cuh");

/// What exchanges by splits know.
pub(super) const VDEV_CUH: (&str, &str) = text!("vdev.cuh");

/// The argument blocks of kernels of routed rows.
pub(super) const ROUTED_CUH: (&str, &str) = text!("routed.cuh");

/// Where routed rows go.
pub(super) const ROUTING_CUH: (&str, &str) = text!("routing.cuh");

/// Sums of rows.
pub(super) const COMBINE_CUH: (&str, &str) = text!("combine.cuh");

macro_rules! source {
    ($name:ident, $file:literal, $($header:ident),*) => {
        static $name: KernelSource = KernelSource {
            name: "symmem-moe",
            file: text!($file),
            headers: &[
                SYMMEM_CUH,
                SYMMEM_LANE_CUH,
                SYMMEM_SYNC_CUH,
                SYMMEM_STALLS_CUH,
                PAYLOAD_CUH,
                MESSAGES_CUH,
                $($header),*
            ],
        };
    };
}

source!(VDEV, "vdev.cu", LINES_CUH, VDEV_CUH);
source!(DISPATCH, "dispatch.cu", NUMERICS_CUH, ROUTED_CUH, ROUTING_CUH);
source!(COMBINE, "combine.cu", NUMERICS_CUH, ROUTED_CUH, ROUTING_CUH, COMBINE_CUH);
source!(LANDING, "landing.cu", NUMERICS_CUH, ROUTED_CUH, ROUTING_CUH, COMBINE_CUH);

/// In the order of [`KERNELS`].
const COMPILED: [Unit<'static>; 4] = [
    Unit { source: &VDEV, defines: &[] },
    Unit { source: &DISPATCH, defines: &[] },
    Unit { source: &COMBINE, defines: &[] },
    Unit { source: &LANDING, defines: &[] },
];

static HASH: LazyLock<String> =
    LazyLock::new(|| source_hash(&[&VDEV, &DISPATCH, &COMBINE, &LANDING]));

#[distributed_slice(STAMPS)]
static STAMP: Stamp = Stamp {
    name: "the kernels of symmem-moe",
    value: |backend| (backend == BackendKind::Cuda).then(|| HASH.clone()),
};

/// What can be compiled of this crate.
pub static UNITS: KernelUnits =
    KernelUnits { name: "moe", headers: &[], each: |visit| COMPILED.iter().for_each(visit) };

/// A kernel, by the number of its unit, its name, and the bytes of its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    unit: usize,
    at: usize,
}

/// The kernels of each unit.
const KERNELS: [&[(&str, usize)]; 4] = [
    &[("all_to_all_vdev", size_of::<GpuPlan>())],
    &[("dispatch", size_of::<OnGpu<DispatchPlan>>())],
    &[("combine", size_of::<OnGpu<CombinePlan>>())],
    &[
        ("dispatch_send", size_of::<OnGpu<SendPlan>>()),
        ("dispatch_receive", size_of::<OnGpu<ReceivePlan>>()),
        ("combine_send", size_of::<OnGpu<SendBackPlan>>()),
        ("combine_receive", size_of::<OnGpu<ReceiveBackPlan>>()),
    ],
];

impl Kernel {
    pub const ALL_TO_ALL_VDEV: Kernel = Kernel { unit: 0, at: 0 };
    pub const DISPATCH: Kernel = Kernel { unit: 1, at: 0 };
    pub const COMBINE: Kernel = Kernel { unit: 2, at: 0 };
    pub const DISPATCH_SEND: Kernel = Kernel { unit: 3, at: 0 };
    pub const DISPATCH_RECEIVE: Kernel = Kernel { unit: 3, at: 1 };
    pub const COMBINE_SEND: Kernel = Kernel { unit: 3, at: 2 };
    pub const COMBINE_RECEIVE: Kernel = Kernel { unit: 3, at: 3 };
}

/// The kernels that a group has loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    /// By unit.
    loaded: [OnceLock<Vec<Function>>; COMPILED.len()],
}

impl Kernels {
    pub(crate) fn new(device: &Device) -> Self {
        Kernels { device: device.clone(), loaded: Default::default() }
    }

    /// A kernel, with all others of its unit, loaded if `may_load`: `None` if it would have to be.
    pub(super) fn get(
        &self,
        kernel: Kernel,
        may_load: bool,
    ) -> Result<Option<Function>, LoadError> {
        let place = &self.loaded[kernel.unit];
        if place.get().is_none() && may_load {
            let module = self.device.compile(&COMPILED[kernel.unit])?;
            let functions = KERNELS[kernel.unit].iter();
            let functions = functions.map(|(name, args)| module.device_function(name, *args));
            // Whoever comes second has loaded the same.
            let _ = place.set(functions.collect::<Result<_, _>>()?);
        }
        Ok(place.get().and_then(|functions| functions.get(kernel.at)).copied())
    }

    /// Loads all.
    pub(crate) fn prepare(&self) -> Result<(), LoadError> {
        (0..COMPILED.len()).try_for_each(|unit| self.get(Kernel { unit, at: 0 }, true).map(|_| ()))
    }
}
