//! A collective with everything around it that can be looked at.

use symmem_collectives::{Algorithm, Call, CallError, Collective, Collectives as _};
use symmem_hal::types::{Bytes, DType, Layout, ReduceOp};
use symmem_hal::{Stream, SyncError};
use symmem_mem::call::Operation;
use symmem_mem::{Allocation, Failure, Group, View};
use symmem_sync::Lanes as _;

use super::data::random;
use crate::model::collective::{self, Shape};
use crate::runner::{Context, PATIENT, TestError, Verdict};
use crate::suite::sync::{behind, stream_of};
use crate::{check, check_eq};

/// Bytes before and after each view that nobody may touch.
const GUARD: u64 = 256;

/// What lies there, and in outputs before they are written.
const POISON: u8 = 0xa5;

/// One collective to be checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub operation: Operation,
    pub dtype: DType,
    pub op: ReduceOp,
    /// Elements of a part: what one rank has for one other, or for all.
    pub count: u64,
    pub shape: Shape,
    pub root: usize,
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
    /// The output in symmetric memory.
    SymmetricOutput,
}

impl Placement {
    pub(super) const ALL: [Placement; 5] = [
        Placement::Apart,
        Placement::InPlace,
        Placement::Symmetric,
        Placement::SymmetricInPlace,
        Placement::SymmetricOutput,
    ];

    /// One of all, by number.
    pub(super) fn number(n: usize) -> Self {
        Self::ALL[n % Self::ALL.len()]
    }

    pub(super) fn is_in_place(self) -> bool {
        matches!(self, Placement::InPlace | Placement::SymmetricInPlace)
    }
}

impl Case {
    /// An all-reduce, apart, by the algorithm of the table.
    pub(super) const fn new(dtype: DType, op: ReduceOp, count: u64) -> Self {
        Self::of(Operation::AllReduce, dtype, op, count)
    }

    /// A flat collective from or to rank 0, apart, by the algorithm of the table.
    pub(super) const fn of(operation: Operation, dtype: DType, op: ReduceOp, count: u64) -> Self {
        Case {
            operation,
            dtype,
            op,
            count,
            shape: Shape::Flat,
            root: 0,
            algorithm: Algorithm::Auto,
            placement: Placement::Apart,
            offsets: (0, 0),
        }
    }

    /// Whether it can be done there.
    fn can_be(&self, placement: Placement) -> bool {
        self.shape == Shape::Flat || !placement.is_in_place()
    }

    /// Elements of input and output.
    fn elements(&self, ranks: u64) -> (u64, u64) {
        let (input, output) = collective::parts(self.operation, ranks);
        (input * self.count, output * self.count)
    }

    /// Bytes of the larger of a rank's buffers.
    pub(super) fn bytes(&self, ranks: usize) -> u64 {
        let (input, output) = self.elements(ranks as u64);
        input.max(output) * self.dtype.size() as u64
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

/// The memory of one case.
struct Place {
    /// Both buffers in place, else the input.
    whole: View,
    input: View,
    output: View,
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

    /// The algorithms that can take a case: the table's choice and each by name.
    pub(super) fn algorithms(&self, case: &Case) -> Result<Vec<Algorithm>, TestError> {
        let packets = self.group.lane()?.layout().packet_capacity().get();
        let sent = case.elements(self.context.size() as u64).0 * case.dtype.size() as u64;
        let named = Algorithm::of(case.operation).iter().copied();
        let fitting = named.filter(|a| *a != Algorithm::Packet || sent <= packets);
        Ok([Algorithm::Auto].into_iter().chain(fitting).collect())
    }

    /// Runs a case on fresh random data by every algorithm that can take it.
    pub(super) fn check_all(&self, case: Case) -> Verdict {
        self.check_placed(case, &[case.placement])
    }

    /// Runs a case on fresh random data by every algorithm that can take it, in several placements.
    /// All must come to the one result.
    pub(super) fn check_placed(&self, case: Case, placements: &[Placement]) -> Verdict {
        let inputs = self.inputs(&case);
        let expected = self.expected(&case, &inputs);
        for algorithm in self.algorithms(&case)? {
            for &placement in placements {
                let case = Case { algorithm, placement, ..case };
                self.run(case, &inputs, expected.as_deref())?;
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
        self.run(case, inputs, self.expected(&case, inputs).as_deref())
    }

    /// Issues a case on whatever lies in its memory; how the group failed, if it did.
    pub(super) fn attempt(&self, case: Case) -> Result<Result<(), Failure>, TestError> {
        let issued = self.issue(&case, &self.place(&case)?);
        match self.group.check() {
            Err(failure) => Ok(Err(failure)),
            Ok(()) => issued.map(Ok),
        }
    }

    /// What each rank puts into the next case.
    pub(super) fn inputs(&self, case: &Case) -> Vec<Vec<u8>> {
        let number = self.cases.get();
        self.cases.set(number + 1);
        let seed = self.context.seed();
        let ranks = self.context.size() as u64;
        let count = case.elements(ranks).0;
        (0..ranks).map(|rank| random(case.dtype, count, seed, number, rank)).collect()
    }

    /// What this rank is to get; `None` for nothing at all.
    fn expected(&self, case: &Case, inputs: &[Vec<u8>]) -> Option<Vec<u8>> {
        let collective = collective::Collective {
            operation: case.operation,
            dtype: case.dtype,
            op: case.op,
            shape: case.shape,
            root: case.root,
        };
        collective.output(self.context.rank(), inputs)
    }

    /// Runs a case and looks at every byte that it may and may not have touched.
    fn run(&self, case: Case, inputs: &[Vec<u8>], expected: Option<&[u8]>) -> Verdict {
        if !case.can_be(case.placement) {
            return Ok(());
        }
        self.context.step(format_args!("{case:?}"));
        let mine = &inputs[self.context.rank()];
        let place = self.place(&case)?;
        self.poison(&place.whole)?;
        self.poison(&place.output)?;
        write(&place.input, mine)?;
        self.issue(&case, &place)?;
        if case.placement.is_in_place() {
            let mut memory = vec![POISON; place.whole.bytes().get() as usize];
            let start = |view: &View| (view.offset().get() - place.whole.offset().get()) as usize;
            memory[start(&place.input)..][..mine.len()].copy_from_slice(mine);
            if let Some(expected) = expected {
                memory[start(&place.output)..][..expected.len()].copy_from_slice(expected);
            }
            self.compare(&case, &place.whole, &memory)?;
            return self.check_guards(&case, "memory", &place.whole);
        }
        match expected {
            Some(expected) => self.compare(&case, &place.output, expected)?,
            None => {
                let untouched = read(&place.output)?.iter().all(|b| *b == POISON);
                check!(untouched, "{case:?}: a rank that gets nothing was written to");
            }
        }
        check!(read(&place.input)? == *mine, "{case:?}: the input has changed");
        self.check_guards(&case, "input", &place.input)?;
        self.check_guards(&case, "output", &place.output)
    }

    fn issue(&self, case: &Case, place: &Place) -> Verdict {
        let Bench { group, stream, .. } = self;
        let Place { whole, input, output } = place;
        let root = group.rank_at(case.root)?;
        // In private memory in place as it is by default, else in so many words.
        let implied = case.placement == Placement::InPlace;
        let (op, by) = (case.op, case.algorithm);
        match case.operation {
            Operation::AllReduce => {
                let call = group.all_reduce(input).op(op).algorithm(by);
                run(if implied { call } else { call.into(output) }, stream)?;
            }
            Operation::AllGather => {
                let call = group.all_gather(if implied { whole } else { input }).algorithm(by);
                run(if implied { call } else { call.into(output) }, stream)?;
            }
            Operation::ReduceScatter => {
                let call = group.reduce_scatter(input).op(op).algorithm(by);
                let call = if case.shape == Shape::Flat { call } else { call.last_dim() };
                run(if implied { call } else { call.into(output) }, stream)?;
            }
            Operation::Broadcast => {
                let call = group.broadcast(input, root).algorithm(by);
                run(if implied { call } else { call.into(output) }, stream)?;
            }
            Operation::Reduce => {
                let call = group.reduce(input, root).op(op).algorithm(by);
                run(if implied { call } else { call.into(output) }, stream)?;
            }
            Operation::AllToAll => {
                let call = group.all_to_all(input).algorithm(by);
                run(if implied { call } else { call.into(output) }, stream)?;
            }
            Operation::AllToAllNd => {
                let call = group.all_to_all_nd(input, output).algorithm(by);
                let scatter = if let Shape::Dims(dims) = case.shape { dims.scatter } else { 1 };
                run(call.dims(scatter, 1 - scatter), stream)?;
            }
            other => return Err(TestError::failed(format!("no harness for {other:?}"))),
        }
        Ok(())
    }

    /// Where the buffers of a case are, all as views of its type.
    fn place(&self, case: &Case) -> Result<Place, TestError> {
        let (size, ranks) = (case.dtype.size() as u64, self.context.size());
        let bytes = case.bytes(ranks);
        check!(bytes <= self.bytes, "{case:?} does not fit in {} bytes", self.bytes);
        let [input, output] = match case.placement {
            Placement::Apart | Placement::InPlace => [&self.private[0], &self.private[1]],
            Placement::Symmetric | Placement::SymmetricInPlace => {
                [&self.symmetric[0], &self.symmetric[1]]
            }
            Placement::SymmetricOutput => [&self.private[0], &self.symmetric[1]],
        };
        let view = |allocation, offset, layout| {
            View::new(allocation, Bytes::new(GUARD + offset * size), case.dtype, layout)
        };
        let (inputs, outputs) = case.elements(ranks as u64);
        if case.placement.is_in_place() {
            let whole = view(input, case.offsets.0, Layout::flat(inputs.max(outputs)))?;
            let block = |elements: u64| match elements == whole.count() {
                true => Ok(whole.clone()),
                false => whole.slice(self.context.rank() as u64 * elements, elements),
            };
            let (input, output) = (block(inputs)?, block(outputs)?);
            return Ok(Place { whole, input, output });
        }
        let (from, to) = case.shape.layouts(case.count, ranks as u64)?;
        let flat = (Layout::flat(inputs), Layout::flat(outputs));
        let input = view(input, case.offsets.0, from.unwrap_or(flat.0))?;
        let output = view(output, case.offsets.1, to.unwrap_or(flat.1))?;
        Ok(Place { whole: input.clone(), input, output })
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
pub(in crate::suite) fn affordable(context: &Context, count: u64) -> u64 {
    let ranks = context.size() as u64;
    count / (ranks * ranks / 64).max(1)
}

/// Issues a collective and waits until it has happened: the same on streams that run inline and on
/// those that do not. What failed on the stream is the error of the call that failed.
pub(in crate::suite) fn run<O: Collective>(
    call: Call<'_, O>,
    stream: &Stream,
) -> Result<(), O::Error> {
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
pub(in crate::suite) fn synchronize(stream: &Stream) -> Verdict {
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
