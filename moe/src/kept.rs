//! What this layer keeps with a group.

use symmem_collectives::CallError;
use symmem_hal::types::BackendKind;
use symmem_hal::{Device, Function, LoadError};
use symmem_mem::call::Operation;
use symmem_mem::{Group, Layer};
use symmem_sync::PrepareError;

#[cfg(feature = "cuda")]
use crate::gpu;
use crate::host;
use crate::verdict::Status;

/// Kernels, and what became of calls.
#[derive(Debug)]
pub(crate) struct Kept {
    pub kernels: Kernels,
    pub status: Status,
}

/// What runs operations.
#[derive(Debug)]
pub(crate) enum Kernels {
    /// In the order of [`host::OPERATIONS`].
    Cpu(Vec<Function>),
    #[cfg(feature = "cuda")]
    Gpu(gpu::Kernels),
}

impl Kept {
    /// Looked up once in the life of a group.
    pub(crate) fn of(group: &Group) -> Result<&Kept, CallError> {
        let slot = group.slot(Layer::Moe, || {
            let status = Status::new(group)?;
            Ok::<_, CallError>(Kept { kernels: Kernels::of(group.device())?, status })
        })?;
        slot.ok_or(CallError::Prepare(PrepareError::SlotTaken))
    }
}

impl Kernels {
    fn of(device: &Device) -> Result<Self, CallError> {
        #[cfg(feature = "cuda")]
        if device.kind() == BackendKind::Cuda {
            return Ok(Kernels::Gpu(gpu::Kernels::new(device)));
        }
        let module = device.load(&host::KERNELS)?;
        let kernels = host::OPERATIONS.iter().map(|operation| module.function(operation.name()));
        Ok(Kernels::Cpu(kernels.collect::<Result<_, _>>()?))
    }

    /// Loads all kernels.
    pub(crate) fn prepare(&self) -> Result<(), CallError> {
        match self {
            Kernels::Cpu(_) => Ok(()),
            #[cfg(feature = "cuda")]
            Kernels::Gpu(kernels) => Ok(kernels.prepare()?),
        }
    }

    /// The kernel of an operation on a CPU.
    pub(crate) fn function(&self, operation: Operation) -> Result<Function, CallError> {
        let found = match self {
            Kernels::Cpu(kernels) => {
                let at = host::OPERATIONS.iter().position(|o| *o == operation);
                at.and_then(|at| kernels.get(at)).copied()
            }
            #[cfg(feature = "cuda")]
            Kernels::Gpu(_) => None,
        };
        let backend = match self {
            Kernels::Cpu(_) => BackendKind::Host,
            #[cfg(feature = "cuda")]
            Kernels::Gpu(_) => BackendKind::Cuda,
        };
        let (set, name) = (host::KERNELS.name, operation.name().to_owned());
        found.ok_or_else(|| LoadError::NoKernel { set, name, backend }.into())
    }
}
