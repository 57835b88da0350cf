//! What is compiled, and what of it is loaded.

use std::sync::{LazyLock, OnceLock};

use linkme::distributed_slice;
use symmem_hal::kernels::{KernelSource, KernelUnits, SYMMEM_CUH, Unit, source_hash};
use symmem_hal::types::{BackendKind, DType, ReduceOp};
use symmem_hal::{Device, Function, LoadError};
use symmem_mem::stamps::{STAMPS, Stamp};
use symmem_sync::gpu::SYMMEM_SYNC_CUH;

use super::plan::GpuPlan;

/// The header of all kernels of this crate: name and text.
pub(super) const PLAN_CUH: (&str, &str) = ("plan.cuh", include_str!("../../kernels/plan.cuh"));
const NUMERICS_CUH: (&str, &str) = ("numerics.cuh", include_str!("../../kernels/numerics.cuh"));

/// Operations that reduce.
static REDUCE: KernelSource = KernelSource {
    name: "symmem-collectives",
    file: ("reduce.cu", include_str!("../../kernels/reduce.cu")),
    headers: &[SYMMEM_CUH, SYMMEM_SYNC_CUH, PLAN_CUH, NUMERICS_CUH],
};

/// Operations that move data and change none of it.
static EXCHANGE: KernelSource = KernelSource {
    name: "symmem-collectives",
    file: ("exchange.cu", include_str!("../../kernels/exchange.cu")),
    headers: &[SYMMEM_CUH, SYMMEM_SYNC_CUH, PLAN_CUH],
};

/// Operations by the switch, of sums in an order of its own.
static MULTIMEM: KernelSource = KernelSource {
    name: "symmem-collectives",
    file: ("multimem.cu", include_str!("../../kernels/multimem.cu")),
    headers: &[SYMMEM_CUH, SYMMEM_SYNC_CUH, PLAN_CUH],
};

static HASH: LazyLock<String> = LazyLock::new(|| source_hash(&[&REDUCE, &EXCHANGE, &MULTIMEM]));

#[distributed_slice(STAMPS)]
static STAMP: Stamp = Stamp {
    name: "the kernels of symmem-collectives",
    value: |backend| (backend == BackendKind::Cuda).then(|| HASH.clone()),
};

/// What can be compiled of this crate.
pub static UNITS: KernelUnits = KernelUnits {
    name: "collectives",
    headers: &[],
    each: |visit| {
        visit(&MOVING);
        visit(&Unit { source: &MULTIMEM, defines: &[] });
        for (dtype, op) in pairs().filter(|pair| same_code(*pair) == *pair) {
            with_unit(dtype, op, |unit| visit(unit));
        }
    },
};

const MOVING: Unit<'static> = Unit { source: &EXCHANGE, defines: &[] };

/// Codes of types and operators, as texts.
const CODES: [&str; 15] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"];

/// Every reduction that there is.
fn pairs() -> impl Iterator<Item = (DType, ReduceOp)> {
    let all = DType::ALL.into_iter().flat_map(|d| ReduceOp::ALL.into_iter().map(move |op| (d, op)));
    all.filter(|(dtype, op)| op.check(*dtype).is_ok())
}

/// The reduction whose machine code also does for this one: sums and products wrap alike whatever the
/// sign, and bits are combined by the word.
fn same_code((dtype, op): (DType, ReduceOp)) -> (DType, ReduceOp) {
    let unsigned = match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        other => other,
    };
    match op {
        ReduceOp::Sum | ReduceOp::Product => (unsigned, op),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => (DType::U32, op),
        _ => (dtype, op),
    }
}

fn with_unit<R>(dtype: DType, op: ReduceOp, then: impl FnOnce(&Unit<'_>) -> R) -> R {
    let code = |code: u8| CODES[usize::from(code)];
    let defines = [("SYMMEM_DTYPE", code(dtype.code())), ("SYMMEM_OP", code(op.code()))];
    then(&Unit { source: &REDUCE, defines: &defines })
}

/// One algorithm's kernels: any addresses, or whole vectors of a known number of ranks, which 8-bit
/// floats do not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub any: Function,
    pub whole: Function,
}

/// The kernels of one type and operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reducing {
    pub packets: Widths,
    pub pushed: Widths,
    pub two_shot: Widths,
    /// Not of 8-bit floats.
    pub dense: Option<Function>,
    pub blocks: Function,
    pub staged: Function,
}

/// The kernels that move data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moving {
    pub packets: Function,
    pub staged: Function,
    pub direct: Function,
    pub meet: Function,
    pub part: Function,
}

/// The kernels that a group has loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    world: usize,
    moving: OnceLock<Moving>,
    /// By the codes of type and operator.
    reducing: [[OnceLock<Reducing>; 9]; 15],
}

impl Kernels {
    pub(crate) fn new(device: &Device, world: usize) -> Self {
        Kernels {
            device: device.clone(),
            world,
            moving: OnceLock::new(),
            reducing: Default::default(),
        }
    }

    /// The kernels that move data, loaded if `may_load`: `None` if they would have to be.
    pub(super) fn moving(&self, may_load: bool) -> Result<Option<&Moving>, LoadError> {
        load(&self.moving, may_load, || {
            let module = self.device.compile(&MOVING)?;
            let function = |name| module.device_function(name, size_of::<GpuPlan>());
            Ok(Moving {
                packets: function("exchange_packets")?,
                staged: function("exchange_staged")?,
                direct: function("exchange_direct")?,
                meet: function("exchange_meet")?,
                part: function("exchange_part")?,
            })
        })
    }

    /// As [`moving`](Self::moving), of a reduction.
    pub(super) fn reducing(
        &self,
        dtype: DType,
        op: ReduceOp,
        may_load: bool,
    ) -> Result<Option<&Reducing>, LoadError> {
        let (dtype, op) = same_code((dtype, op));
        let place = &self.reducing[usize::from(dtype.code())][usize::from(op.code())];
        load(place, may_load, || {
            let module = with_unit(dtype, op, |unit| self.device.compile(unit))?;
            let function = |name: &str| module.device_function(name, size_of::<GpuPlan>());
            let is_narrow = matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
            let world = if matches!(self.world, 2 | 4 | 8) { self.world } else { 0 };
            let widths = |name: &str| {
                let any = function(&format!("{name}_0"))?;
                let whole = match is_narrow {
                    false => function(&format!("{name}_{world}"))?,
                    true => any,
                };
                Ok::<_, LoadError>(Widths { any, whole })
            };
            let dense = match is_narrow {
                false => Some(function(&format!("reduce_dense_{world}"))?),
                true => None,
            };
            Ok(Reducing {
                packets: widths("reduce_packets")?,
                pushed: widths("reduce_pushed")?,
                two_shot: widths("reduce_two_shot")?,
                dense,
                blocks: function("reduce_blocks")?,
                staged: function("reduce_staged")?,
            })
        })
    }
}

fn load<T>(
    place: &OnceLock<T>,
    may_load: bool,
    make: impl FnOnce() -> Result<T, LoadError>,
) -> Result<Option<&T>, LoadError> {
    if place.get().is_none() && may_load {
        // Whoever comes second has loaded the same.
        let _ = place.set(make()?);
    }
    Ok(place.get())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reduction_has_a_unit_and_every_unit_is_one() {
        let (mut units, mut moving) = (HashSet::new(), 0);
        (UNITS.each)(&mut |unit| match unit.defines {
            [] => moving += 1,
            defines => assert!(units.insert(format!("{defines:?}")), "{unit} twice"),
        });
        assert_eq!(moving, 2);
        for pair in pairs() {
            let (dtype, op) = same_code(pair);
            assert!(op.check(dtype).is_ok());
            assert!(with_unit(dtype, op, |unit| units.contains(&format!("{:?}", unit.defines))));
        }
        // Floats, sums and products of widths, the rest of integers, bits.
        assert_eq!(units.len(), 6 * 5 + 4 * 2 + 8 * 3 + 3);
    }

    #[test]
    fn codes_are_those_of_the_kernels() {
        let text = NUMERICS_CUH.1;
        let list = |head: &str, first: &str| {
            let body = text.split_once(head).unwrap().1.split_once('}').unwrap().0;
            body.replace(first, first.split_once(' ').unwrap().0)
        };
        let types = list("enum DType {", "F64 = 1").to_lowercase();
        let ours = DType::ALL.map(|d| d.name()).join(", ");
        assert_eq!(types.trim(), ours);
        let ops = list("enum Op {", "SUM = 1").to_lowercase();
        assert_eq!(ops.trim(), ReduceOp::ALL.map(|op| op.name()).join(", "));
        for (place, code) in CODES.iter().enumerate() {
            assert_eq!(*code, place.to_string());
        }
        assert!(DType::ALL.iter().enumerate().all(|(i, d)| usize::from(d.code()) == i + 1));
        assert!(ReduceOp::ALL.iter().enumerate().all(|(i, op)| usize::from(op.code()) == i + 1));
    }
}
