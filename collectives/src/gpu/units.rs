//! What is compiled, and what of it is loaded.

use std::sync::{LazyLock, OnceLock};

use linkme::distributed_slice;
use symmem_hal::kernels::{KernelSource, KernelUnits, SYMMEM_CUH, Unit, source_hash};
use symmem_hal::types::{BackendKind, DType, ReduceOp};
use symmem_hal::{Device, Function, LoadError};
use symmem_mem::stamps::{STAMPS, Stamp};
use symmem_sync::gpu::{SYMMEM_LANE_CUH, SYMMEM_STALLS_CUH, SYMMEM_SYNC_CUH};

use super::multimem::Switched;
use super::plan::GpuPlan;

/// How kernels reach payload, and share an operation among their warps: for the layers above, too.
#[doc(hidden)]
pub const PAYLOAD_CUH: (&str, &str) = ("payload.cuh", include_str!("../../kernels/payload.cuh"));
/// The header of all kernels of this crate: name and text.
pub(super) const PLAN_CUH: (&str, &str) = ("plan.cuh", include_str!("../../kernels/plan.cuh"));
/// Payload in lines that arrive whole: for the layers above, too.
#[doc(hidden)]
pub const LINES_CUH: (&str, &str) = ("lines.cuh", include_str!("../../kernels/lines.cuh"));
/// How elements are converted and reduced: for the layers above, too.
#[doc(hidden)]
pub const NUMERICS_CUH: (&str, &str) = ("numerics.cuh", include_str!("../../kernels/numerics.cuh"));

/// Operations that reduce.
static REDUCE: KernelSource = KernelSource {
    name: "symmem-collectives",
    file: ("reduce.cu", include_str!("../../kernels/reduce.cu")),
    headers: &[
        SYMMEM_CUH,
        SYMMEM_LANE_CUH,
        SYMMEM_SYNC_CUH,
        SYMMEM_STALLS_CUH,
        PAYLOAD_CUH,
        PLAN_CUH,
        LINES_CUH,
        NUMERICS_CUH,
    ],
};

/// Operations that move data and change none of it.
static EXCHANGE: KernelSource = KernelSource {
    name: "symmem-collectives",
    file: ("exchange.cu", include_str!("../../kernels/exchange.cu")),
    headers: &[
        SYMMEM_CUH,
        SYMMEM_LANE_CUH,
        SYMMEM_SYNC_CUH,
        SYMMEM_STALLS_CUH,
        PAYLOAD_CUH,
        PLAN_CUH,
    ],
};

/// Operations by the switch, of sums in an order of its own.
static MULTIMEM: KernelSource = KernelSource {
    name: "symmem-collectives",
    file: ("multimem.cu", include_str!("../../kernels/multimem.cu")),
    headers: &[
        SYMMEM_CUH,
        SYMMEM_LANE_CUH,
        SYMMEM_SYNC_CUH,
        SYMMEM_STALLS_CUH,
        PAYLOAD_CUH,
        PLAN_CUH,
    ],
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
        visit(&SWITCHED);
        for dtype in DType::ALL {
            with_unit(dtype, None, |unit| visit(unit));
            for op in ReduceOp::ALL.into_iter().filter(|op| is_common(dtype, *op)) {
                with_unit(dtype, Some(op), |unit| visit(unit));
            }
        }
    },
};

const MOVING: Unit<'static> = Unit { source: &EXCHANGE, defines: &[] };
const SWITCHED: Unit<'static> = Unit { source: &MULTIMEM, defines: &[] };

/// Codes of types and operators, as texts.
const CODES: [&str; 15] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"];

/// Whether a reduction has a unit of its own: with kernels for 2, 4 and 8 ranks, and lines. Models
/// are trained and served with it.
///
/// All others of a type share one, which is told the operator when it runs: that is where nine tenths
/// of the compilation of a unit of its own for each would go.
pub(super) fn is_common(dtype: DType, op: ReduceOp) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
        && matches!(op, ReduceOp::Sum | ReduceOp::Avg)
}

/// The unit of a type: of one operator, or of all that the type has.
fn with_unit<R>(dtype: DType, op: Option<ReduceOp>, then: impl FnOnce(&Unit<'_>) -> R) -> R {
    let code = |code: u8| CODES[usize::from(code)];
    let dtype = ("SYMMEM_DTYPE", code(dtype.code()));
    match op {
        Some(op) => {
            then(&Unit { source: &REDUCE, defines: &[dtype, ("SYMMEM_OP", code(op.code()))] })
        }
        None => then(&Unit { source: &REDUCE, defines: &[dtype] }),
    }
}

/// One algorithm's kernels: any addresses and any number of ranks, or whole vectors of a known one where
/// the reduction [has those](is_common).
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub any: Function,
    pub whole: Function,
}

/// The kernels of one type and operator, or of all operators that have no kernels of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reducing {
    pub packets: Widths,
    pub pushed: Widths,
    pub two_shot: Widths,
    /// Where the reduction [has kernels for numbers of ranks](is_common).
    pub lines: Option<Function>,
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
    switched: OnceLock<Switched>,
    /// By the codes of type and operator, 0 for all that have no unit of their own.
    reducing: [[OnceLock<Reducing>; 9]; 15],
}

impl Kernels {
    pub(crate) fn new(device: &Device, world: usize) -> Self {
        Kernels {
            device: device.clone(),
            world,
            moving: OnceLock::new(),
            switched: OnceLock::new(),
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

    /// As [`moving`](Self::moving), by the switch.
    pub(super) fn switched(&self, may_load: bool) -> Result<Option<&Switched>, LoadError> {
        load(&self.switched, may_load, || Switched::load(&self.device.compile(&SWITCHED)?))
    }

    /// As [`moving`](Self::moving), of a reduction.
    pub(super) fn reducing(
        &self,
        dtype: DType,
        op: ReduceOp,
        may_load: bool,
    ) -> Result<Option<&Reducing>, LoadError> {
        let own = Some(op).filter(|op| is_common(dtype, *op));
        let place = &self.reducing[usize::from(dtype.code())][own.map_or(0, |op| op.code().into())];
        load(place, may_load, || {
            let module = with_unit(dtype, own, |unit| self.device.compile(unit))?;
            let function = |name: &str| module.device_function(name, size_of::<GpuPlan>());
            let world = if matches!(self.world, 2 | 4 | 8) { self.world } else { 0 };
            let widths = |name: &str| {
                let any = function(&format!("{name}_0"))?;
                let whole = match own {
                    Some(_) => function(&format!("{name}_{world}"))?,
                    None => any,
                };
                Ok::<_, LoadError>(Widths { any, whole })
            };
            let lines = match own {
                Some(_) => Some(function(&format!("reduce_lines_{world}"))?),
                None => None,
            };
            Ok(Reducing {
                packets: widths("reduce_packets")?,
                pushed: widths("reduce_pushed")?,
                two_shot: widths("reduce_two_shot")?,
                lines,
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
    fn every_type_has_a_unit_and_so_have_common_reductions() {
        let (mut units, mut moving) = (HashSet::new(), 0);
        (UNITS.each)(&mut |unit| match unit.defines {
            [] => moving += 1,
            defines => assert!(units.insert(format!("{defines:?}")), "{unit} twice"),
        });
        assert_eq!(moving, 2);
        assert_eq!(units.len(), DType::ALL.len() + 3 * 2);
        for dtype in DType::ALL {
            let has = |unit: &Unit<'_>| units.contains(&format!("{:?}", unit.defines));
            assert!(with_unit(dtype, None, has));
            for op in ReduceOp::ALL.into_iter().filter(|op| is_common(dtype, *op)) {
                assert!(op.check(dtype).is_ok() && with_unit(dtype, Some(op), has));
            }
        }
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
