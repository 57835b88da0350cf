//! An all-reduce with everything around it that can be looked at.

use symmem_collectives::{Algorithm, Call, CallError, Collective, Collectives as _};
use symmem_hal::types::{Bytes, DType, Layout, ReduceOp};
use symmem_hal::{Stream, SyncError};
use symmem_mem::{Allocation, Failure, Group, View};
use symmem_sync::Lanes as _;

use crate::model::reduce::reduce;
use crate::runner::{Context, PATIENT, TestError, Verdict};
use crate::suite::sync::{behind, stream_of};
use crate::support::random::Random;
use crate::{check, check_eq};

/// Bytes before and after each view that nobody may touch.
const GUARD: u64 = 256;

/// What lies there, and in outputs before they are written.
const POISON: u8 = 0xa5;

/// One all-reduce to be checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub dtype: DType,
    pub op: ReduceOp,
    pub count: u64,
    pub algorithm: Algorithm,
    pub placement: Placement,
    /// Where input and output begin, in elements from an aligned address.
    pub offsets: (u64, u64),
}

/// Where input and output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// In memory that only this rank has.
    Apart,
    /// The same memory, which only this rank has.
    InPlace,
    /// Input and output in symmetric memory.
    Symmetric,
    /// The same symmetric memory.
    SymmetricInPlace,
}

impl Placement {
    pub(super) const ALL: [Placement; 4] =
        [Placement::Apart, Placement::InPlace, Placement::Symmetric, Placement::SymmetricInPlace];

    fn is_in_place(self) -> bool {
        matches!(self, Placement::InPlace | Placement::SymmetricInPlace)
    }
}

impl Case {
    /// A sum of f32, apart, by the algorithm of the table.
    pub(super) const fn new(dtype: DType, op: ReduceOp, count: u64) -> Self {
        Case {
            dtype,
            op,
            count,
            algorithm: Algorithm::Auto,
            placement: Placement::Apart,
            offsets: (0, 0),
        }
    }

    fn bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }
}

/// A group with memory for cases of up to so many bytes.
pub(super) struct Bench<'c> {
    pub context: &'c Context,
    pub group: Group,
    pub stream: Stream,
    private: [Allocation; 2],
    symmetric: [Allocation; 2],
    bytes: u64,
    cases: std::cell::Cell<u64>,
}

impl<'c> Bench<'c> {
    /// Collective.
    #[track_caller]
    pub(super) fn new(context: &'c Context, group: Group, bytes: u64) -> Result<Self, TestError> {
        let room = Bytes::new(bytes + 2 * GUARD + 64 * 8);
        let allocation = || Allocation::new(context.device(), room);
        let (private, symmetric) = ([allocation()?, allocation()?], [allocation()?, allocation()?]);
        for allocation in &symmetric {
            let all = View::new(allocation, Bytes::ZERO, DType::U8, Layout::flat(room.get()))?;
            group.rendezvous(&all, &group.wait())?;
        }
        let stream = stream_of(&group)?;
        let cases = std::cell::Cell::new(0);
        Ok(Bench { context, group, stream, private, symmetric, bytes, cases })
    }

    /// The algorithms that can take this many bytes: the table's choice and each by name.
    pub(super) fn algorithms(&self, bytes: u64) -> Result<Vec<Algorithm>, TestError> {
        let packets = self.group.lane()?.layout().packet_capacity().get();
        let fits = |a: &Algorithm| *a != Algorithm::Packet || bytes <= packets;
        Ok(Algorithm::ALL.into_iter().filter(fits).collect())
    }

    /// Runs a case on fresh random data by every algorithm that can take it.
    pub(super) fn check_all(&self, case: Case) -> Verdict {
        self.check_placed(case, &[case.placement])
    }

    /// Runs a case on fresh random data by every algorithm that can take it, in several placements.
    /// All must come to the one result.
    pub(super) fn check_placed(&self, case: Case, placements: &[Placement]) -> Verdict {
        let inputs = self.inputs(&case);
        let expected = reduce(case.dtype, case.op, &inputs);
        for algorithm in self.algorithms(case.bytes())? {
            for &placement in placements {
                self.run(Case { algorithm, placement, ..case }, &inputs, &expected)?;
            }
        }
        Ok(())
    }

    /// Runs a case on fresh random data.
    pub(super) fn check(&self, case: Case) -> Verdict {
        self.check_inputs(case, &self.inputs(&case))
    }

    /// Runs a case on given data, by rank.
    pub(super) fn check_inputs(&self, case: Case, inputs: &[Vec<u8>]) -> Verdict {
        self.run(case, inputs, &reduce(case.dtype, case.op, inputs))
    }

    /// What each rank puts into the next case.
    fn inputs(&self, case: &Case) -> Vec<Vec<u8>> {
        let number = self.cases.get();
        self.cases.set(number + 1);
        let seed = self.context.seed();
        let ranks = 0..self.context.size() as u64;
        ranks.map(|rank| random(case.dtype, case.count, seed, number, rank)).collect()
    }

    /// Runs a case and looks at every byte that it may and may not have touched.
    fn run(&self, case: Case, inputs: &[Vec<u8>], expected: &[u8]) -> Verdict {
        self.context.step(format_args!("{case:?}"));
        let mine = &inputs[self.context.rank()];
        let (input, output) = self.views(&case)?;
        self.poison(&input)?;
        self.poison(&output)?;
        write(&input, mine)?;
        let operation = self.group.all_reduce(&input).into(&output);
        run(operation.op(case.op).algorithm(case.algorithm), &self.stream)?;
        self.compare(&case, &output, expected)?;
        if !case.placement.is_in_place() {
            check!(read(&input)? == *mine, "{case:?}: the input has changed");
            self.check_guards(&case, "input", &input)?;
        }
        self.check_guards(&case, "output", &output)
    }

    /// Input and output of a case, both as views of its type.
    fn views(&self, case: &Case) -> Result<(View, View), TestError> {
        let size = case.dtype.size() as u64;
        check!(case.bytes() <= self.bytes, "{case:?} does not fit in {} bytes", self.bytes);
        let [input, output] = match case.placement {
            Placement::Apart | Placement::InPlace => &self.private,
            Placement::Symmetric | Placement::SymmetricInPlace => &self.symmetric,
        };
        let view = |allocation, offset| {
            let offset = Bytes::new(GUARD + offset * size);
            View::new(allocation, offset, case.dtype, Layout::flat(case.count))
        };
        let input = view(input, case.offsets.0)?;
        if case.placement.is_in_place() {
            return Ok((input.clone(), input));
        }
        Ok((input, view(output, case.offsets.1)?))
    }

    /// Fills a view and the guards around it.
    fn poison(&self, view: &View) -> Verdict {
        let bytes = vec![POISON; (view.bytes().get() + 2 * GUARD) as usize];
        view.memory().write(Bytes::new(view.offset().get() - GUARD), &bytes)?;
        Ok(())
    }

    fn check_guards(&self, case: &Case, what: &str, view: &View) -> Verdict {
        let start = view.offset().get();
        for (place, at) in [("before", start - GUARD), ("after", start + view.bytes().get())] {
            let mut guard = [0; GUARD as usize];
            view.memory().read(Bytes::new(at), &mut guard)?;
            if let Some(i) = guard.iter().position(|b| *b != POISON) {
                return Err(TestError::failed(format!(
                    "{case:?}: byte {i} {place} the {what} was touched: {:#x}",
                    guard[i]
                )));
            }
        }
        Ok(())
    }

    fn compare(&self, case: &Case, output: &View, expected: &[u8]) -> Verdict {
        let found = read(output)?;
        let size = case.dtype.size();
        let elements = || expected.chunks_exact(size).zip(found.chunks_exact(size)).enumerate();
        if let Some((index, (expected, found))) = elements().find(|(_, (e, f))| e != f) {
            let wrong = elements().filter(|(_, (e, f))| e != f).count();
            let hex =
                |bytes: &[u8]| bytes.iter().rev().map(|b| format!("{b:02x}")).collect::<String>();
            return Err(TestError::failed(format!(
                "{case:?}: element {index}: expected {}, found {} ({wrong} of {} differ)",
                hex(expected),
                hex(found),
                case.count
            )));
        }
        check_eq!(found.len(), expected.len());
        Ok(())
    }
}

/// A count for a large case: less where many ranks share the cores, since every rank reduces every
/// rank's input once more, slowly.
pub(super) fn affordable(context: &Context, count: u64) -> u64 {
    let ranks = context.size() as u64;
    count / (ranks * ranks / 64).max(1)
}

/// Issues a collective and waits until it has happened: the same on streams that run inline and on
/// those that do not. What failed on the stream is the error of the call that failed.
pub(super) fn run<O: Collective>(call: Call<'_, O>, stream: &Stream) -> Result<(), O::Error> {
    call.on(stream)?;
    match stream.synchronize(&PATIENT) {
        Ok(()) => Ok(()),
        Err(SyncError::Unhealthy(fault)) => Err(match behind::<Failure>(&*fault) {
            Some(failure) => failure.into(),
            None => CallError::from(SyncError::Unhealthy(fault)).into(),
        }),
        Err(error) => Err(CallError::from(error).into()),
    }
}

/// Waits for a stream; what failed on it is the error.
pub(super) fn synchronize(stream: &Stream) -> Verdict {
    Ok(stream.synchronize(&PATIENT)?)
}

/// The bytes of a view without gaps.
pub(super) fn read(view: &View) -> Result<Vec<u8>, TestError> {
    let mut bytes = vec![0; view.bytes().to_usize().unwrap_or(0)];
    view.memory().read(view.offset(), &mut bytes)?;
    Ok(bytes)
}

/// Writes the bytes of a view without gaps.
pub(super) fn write(view: &View, bytes: &[u8]) -> Verdict {
    check_eq!(view.bytes(), Bytes::from(bytes.len()));
    view.memory().write(view.offset(), bytes)?;
    Ok(())
}

/// What a rank puts into a case: numbers of moderate size most of the time, so that sums mean
/// something; at some indices any bits, or the values where rounding and signs go wrong.
pub(super) fn random(dtype: DType, count: u64, seed: u64, case: u64, rank: u64) -> Vec<u8> {
    let size = dtype.size();
    let mut own = Random::new(seed, &[case, rank]);
    let mut common = Random::new(seed, &[case, u64::MAX]);
    let specials = specials(dtype);
    let mut bytes = Vec::with_capacity(count as usize * size);
    for _ in 0..count {
        let code = match common.below(16) {
            0 if own.below(2) == 0 => specials[own.below(specials.len() as u64) as usize],
            1 => own.next(),
            _ => moderate(dtype, own.next()),
        };
        bytes.extend_from_slice(&code.to_le_bytes()[..size]);
    }
    bytes
}

/// Sign, exponent and mantissa fields of a float type.
fn fields(dtype: DType) -> Option<(u32, u32)> {
    match dtype {
        DType::F64 => Some((11, 52)),
        DType::F32 => Some((8, 23)),
        DType::F16 => Some((5, 10)),
        DType::BF16 => Some((8, 7)),
        DType::F8E4M3 => Some((4, 3)),
        DType::F8E5M2 => Some((5, 2)),
        _ => None,
    }
}

/// Integers of any size; floats between 1/16 and 16 in magnitude.
fn moderate(dtype: DType, random: u64) -> u64 {
    let Some((exponent, mantissa)) = fields(dtype) else { return random };
    let bias = (1u64 << (exponent - 1)) - 1;
    let sign = (random >> 63) << (exponent + mantissa);
    let field = bias - 4 + (random >> 60 & 7);
    sign | field << mantissa | random & ((1 << mantissa) - 1)
}

/// Zeros, ones, the ends of each range of codes and what lies beside them, infinities and NaNs of
/// either sign and payload.
pub(super) fn specials(dtype: DType) -> Vec<u64> {
    let bits = 8 * dtype.size() as u32;
    let top = 1u64 << (bits - 1);
    let mut codes = vec![0, 1, 2, 3, top - 1, top - 2];
    if let Some((exponent, mantissa)) = fields(dtype) {
        let unit = 1u64 << mantissa;
        let bias = (1u64 << (exponent - 1)) - 1;
        let infinity = ((1u64 << exponent) - 1) << mantissa;
        codes.extend([unit - 1, unit, unit + 1, infinity - 1, infinity, infinity + 1]);
        // A quiet NaN; 1, the numbers beside it, 2; half a unit in the last place of 1.
        codes.extend([infinity | unit >> 1, infinity | unit >> 1 | 1]);
        codes.extend([bias << mantissa, (bias << mantissa) + 1, (bias << mantissa) - 1]);
        codes.extend([
            (bias + 1) << mantissa,
            bias.saturating_sub(u64::from(mantissa) + 1) << mantissa,
        ]);
    }
    codes.iter().flat_map(|code| [*code, code | top]).collect()
}
