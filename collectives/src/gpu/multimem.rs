//! What the switch between GPUs does: where, and by which kernels.

use symmem_hal::types::{Bytes, DType, ReduceOp};
use symmem_hal::{DevicePtr, Function, LoadError, Module};
use symmem_mem::call::Operation;
use symmem_mem::{Determinism, Group};

use super::plan::GpuPlan;
use super::shape::VECTOR;
use crate::call::{Buffer, NoMultimem, Request};

/// The addresses that a kernel is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(super) input: DevicePtr,
    pub(super) output: DevicePtr,
}

impl Addresses {
    /// This rank's own memory.
    pub(super) fn own(request: &Request<'_>) -> Self {
        Addresses { input: request.input.ptr(), output: request.output.ptr() }
    }
}

/// Where the switch reads and writes: multicast addresses, but for what only this rank's own memory has
/// a part in, the input of an all-gather and the output of a reduce.
pub(crate) fn multimem(group: &Group, request: &Request<'_>) -> Result<Addresses, NoMultimem> {
    let Request { operation, input, output, op, .. } = request;
    if let Some(op) = op {
        if *op != ReduceOp::Sum {
            return Err(NoMultimem::Operator(*op));
        }
        if place(input.dtype()).is_none() {
            return Err(NoMultimem::Type(input.dtype()));
        }
    }
    let part = Bytes(request.geometry.part());
    whole("input", input, part)?;
    whole("output", output, part)?;
    Ok(match operation {
        Operation::AllGather => {
            Addresses { input: input.ptr(), output: multicast(group, "output", output)? }
        }
        Operation::Reduce => {
            Addresses { input: multicast(group, "input", input)?, output: output.ptr() }
        }
        _ => Addresses {
            input: multicast(group, "input", input)?,
            output: multicast(group, "output", output)?,
        },
    })
}

/// That a buffer, of as many bytes or of blocks of as many, is whole vectors.
fn whole(what: &'static str, buffer: &Buffer<'_>, bytes: Bytes) -> Result<(), NoMultimem> {
    let (offset, vector) = (buffer.offset(), Bytes(VECTOR));
    // Memory begins at a multiple of as many.
    if offset.get().is_multiple_of(VECTOR) && bytes.get().is_multiple_of(VECTOR) {
        Ok(())
    } else {
        Err(NoMultimem::Vectors { what, offset, bytes, vector })
    }
}

/// The address of a buffer on all ranks.
fn multicast(
    group: &Group,
    what: &'static str,
    buffer: &Buffer<'_>,
) -> Result<DevicePtr, NoMultimem> {
    let base = buffer.view().and_then(|view| group.multicast_base(view));
    let base = base.ok_or(NoMultimem::NotSymmetric { what })?;
    let base = base.map_err(|why| NoMultimem::Multicast { what, why })?;
    Ok(base.checked_add(buffer.offset()).unwrap_or(DevicePtr::NULL))
}

/// Whether a group can come to need the kernels below.
pub(super) fn is_open_to(group: &Group) -> bool {
    let options = group.options();
    options.determinism == Determinism::Relaxed
        && options.multicast
        && group.device().capabilities().multicast
}

/// Types that the switch adds, as kernels name them.
const SUMS: [(DType, &str); 3] = [(DType::F32, "f32"), (DType::F16, "f16"), (DType::BF16, "bf16")];

fn place(dtype: DType) -> Option<usize> {
    SUMS.iter().position(|(known, _)| *known == dtype)
}

/// The kernels by the switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switched {
    /// By type, as in [`SUMS`].
    all_reduce: [Function; 3],
    reduce: [Function; 3],
    all_gather: Function,
}

impl Switched {
    /// Devices before sm_90 have none of them.
    pub(super) fn load(module: &Module) -> Result<Self, LoadError> {
        let function = |name: &str| module.device_function(name, size_of::<GpuPlan>());
        let sums = |name: &str| {
            let [a, b, c] = SUMS.map(|(_, dtype)| function(&format!("multimem_{name}_{dtype}")));
            Ok::<_, LoadError>([a?, b?, c?])
        };
        Ok(Switched {
            all_reduce: sums("all_reduce")?,
            reduce: sums("reduce")?,
            all_gather: function("multimem_all_gather")?,
        })
    }

    /// The kernel of a request that [`multimem`] has let pass.
    pub(super) fn function(&self, request: &Request<'_>) -> Function {
        let sum = place(request.input.dtype()).unwrap_or_default();
        match request.operation {
            Operation::AllGather => self.all_gather,
            Operation::Reduce => self.reduce[sum],
            _ => self.all_reduce[sum],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_named_as_types_are() {
        for (place_of, (dtype, name)) in SUMS.into_iter().enumerate() {
            assert_eq!((dtype.name(), place(dtype)), (name, Some(place_of)));
        }
        assert_eq!(place(DType::F64), None);
        assert_eq!(place(DType::F8E4M3), None);
    }
}
