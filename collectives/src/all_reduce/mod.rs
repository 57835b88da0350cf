//! All-reduce: every rank gets the element-wise reduction of all ranks' inputs.

mod host;
mod plan;

use symmem_hal::types::{Bytes, DType, Element, RankSet, ReduceOp, UnsupportedOp};
use symmem_hal::{
    DevicePtr, Fault, Function, KeepAlive, Kind, LoadError, OrderError, Stream, SyncError, Wait,
};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Completion, Failure, Group, Layer, View, ViewError};
use symmem_sync::{Issue, Lane, LaneError, Lanes, PrepareError};

use crate::choice::{self, Algorithm};
use plan::Plan;

/// Why an all-reduce did not happen, or did not end well.
///
/// All but `Failed` are found before anything is sent: no rank is affected but by not meeting this
/// one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllReduceError {
    /// The group has failed, or this rank has left it. The output is unspecified if the operation
    /// itself failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Input and output hold different numbers of elements.
    #[error("the input holds {input} elements, the output {output}")]
    Count {
        /// Elements of the input.
        input: u64,
        /// Elements of the output.
        output: u64,
    },
    /// Input and output hold different types.
    #[error("the input holds {input}, the output {output}")]
    DType {
        /// The input's type.
        input: DType,
        /// The output's type.
        output: DType,
    },
    /// A view has gaps.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The operator is not defined on the type.
    #[error(transparent)]
    Op(#[from] UnsupportedOp),
    /// Input and output overlap without being the same.
    #[error("input and output overlap and are not the same range; reduce in place, or apart")]
    Overlap,
    /// A view or a stream is of another backend than the group.
    #[error("the group is on {group}, the {what} on {found}")]
    Backend {
        /// What is elsewhere.
        what: &'static str,
        /// The group's backend.
        group: symmem_hal::types::BackendKind,
        /// The other.
        found: symmem_hal::types::BackendKind,
    },
    /// Slices are borrowed for the call only, so the call must be done at its end: it needs an
    /// inline stream.
    #[error("slices need an inline stream of the host; this group is on {0}: use views")]
    Borrowed(symmem_hal::types::BackendKind),
    /// The algorithm asked for cannot take so much.
    #[error("{bytes} do not fit in packets, which carry {capacity} on this lane")]
    TooLargeForPackets {
        /// Bytes of the input.
        bytes: Bytes,
        /// Bytes that fit.
        capacity: Bytes,
    },
    /// Earlier operations of this process did not end in time.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The stream cannot take it.
    #[error(transparent)]
    Stream(#[from] SyncError),
    /// The group cannot have lanes.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
}

impl From<LaneError> for AllReduceError {
    fn from(error: LaneError) -> Self {
        match error {
            LaneError::Failed(e) => AllReduceError::Failed(e),
            LaneError::Order(e) => AllReduceError::Order(e),
            LaneError::Stream(e) => AllReduceError::Stream(e),
            LaneError::Prepare(e) => AllReduceError::Prepare(e),
            other => AllReduceError::Failed(Failure::Device(other.to_string())),
        }
    }
}

impl From<LoadError> for AllReduceError {
    fn from(error: LoadError) -> Self {
        AllReduceError::Prepare(error.into())
    }
}

impl Fault for AllReduceError {
    fn kind(&self) -> Kind {
        match self {
            AllReduceError::Failed(e) => e.kind(),
            AllReduceError::Order(e) => e.kind(),
            AllReduceError::Stream(e) => e.kind(),
            AllReduceError::Prepare(e) => e.kind(),
            AllReduceError::Borrowed(_) => Kind::Unsupported,
            _ => Kind::InvalidArgument,
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            AllReduceError::Failed(e) => e.ranks(),
            AllReduceError::Order(e) => e.ranks(),
            AllReduceError::Stream(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

/// The all-reduce of a [`Group`].
pub trait AllReduceOps {
    /// Begins an all-reduce of a view, by sum and in place unless told otherwise. Nothing happens
    /// before [`run`](AllReduce::run) or [`on`](AllReduce::on).
    fn all_reduce<'a>(&'a self, input: &'a (impl AsRef<View> + ?Sized)) -> AllReduce<'a>;

    /// Reduces a slice of every rank into a slice of every rank; returns when it has happened.
    ///
    /// # Errors
    ///
    /// [`AllReduceError`].
    fn all_reduce_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError>;

    /// As [`all_reduce_slice`](Self::all_reduce_slice), in place.
    ///
    /// # Errors
    ///
    /// [`AllReduceError`].
    fn all_reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError>;
}

/// An all-reduce about to be issued.
///
/// Collective: every rank of the group must issue the same (count, type, operator, algorithm, tag),
/// in the same order among its operations on the group. The input must be symmetric memory of the
/// same rendezvous and offset on every rank, or on none. What differs is a
/// [`Failure::CallMismatch`] on both sides. Calls from several threads of a rank run one after the
/// other, in the order in which they were issued.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before run() or on()"]
pub struct AllReduce<'a> {
    group: &'a Group,
    input: &'a View,
    output: &'a View,
    op: ReduceOp,
    algorithm: Algorithm,
    tag: u64,
    wait: Option<&'a Wait>,
}

impl AllReduceOps for Group {
    fn all_reduce<'a>(&'a self, input: &'a (impl AsRef<View> + ?Sized)) -> AllReduce<'a> {
        let view = input.as_ref();
        AllReduce {
            group: self,
            input: view,
            output: view,
            op: ReduceOp::Sum,
            algorithm: Algorithm::Auto,
            tag: 0,
            wait: None,
        }
    }

    fn all_reduce_slice<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError> {
        if input.len() != output.len() {
            let (input, output) = (input.len() as u64, output.len() as u64);
            return Err(AllReduceError::Count { input, output });
        }
        let input = DevicePtr::new(input.as_ptr().expose_provenance() as u64);
        slices::<T>(self, input, output, op)
    }

    fn all_reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<(), AllReduceError> {
        let input = DevicePtr::new(data.as_mut_ptr().expose_provenance() as u64);
        slices::<T>(self, input, data, op)
    }
}

impl<'a> AllReduce<'a> {
    /// The operator.
    pub fn op(self, op: ReduceOp) -> Self {
        AllReduce { op, ..self }
    }

    /// Where the result goes, instead of in place. May be the input itself; may not overlap it
    /// otherwise.
    pub fn into(self, output: &'a (impl AsRef<View> + ?Sized)) -> Self {
        AllReduce { output: output.as_ref(), ..self }
    }

    /// The algorithm, instead of the one that the table gives for the size.
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        AllReduce { algorithm, ..self }
    }

    /// A number of the caller's that must be equal on every rank: a layer's index, say.
    pub fn tag(self, tag: u64) -> Self {
        AllReduce { tag, ..self }
    }

    /// The bound on its waits, instead of the group's.
    pub fn wait(self, wait: &'a Wait) -> Self {
        AllReduce { wait: Some(wait), ..self }
    }

    /// Issues it on the group's own stream and waits for it: it has happened at return.
    ///
    /// # Errors
    ///
    /// [`AllReduceError`].
    pub fn run(self) -> Result<(), AllReduceError> {
        let lane = self.group.lane()?;
        let default = self.group.wait();
        let wait = self.wait.unwrap_or(&default);
        self.issue(&lane, lane.default_stream(), wait)?;
        Ok(lane.settle(lane.default_stream(), wait)?)
    }

    /// Issues it on a stream. On an inline stream it has happened at return; on another,
    /// [`Stream::synchronize`] waits for it and reports how it went.
    ///
    /// # Errors
    ///
    /// [`AllReduceError`].
    pub fn on(self, stream: &Stream) -> Result<(), AllReduceError> {
        let default = self.group.wait();
        self.issue(&self.group.lane()?, stream, self.wait.unwrap_or(&default))
    }

    /// What algorithm it will take.
    ///
    /// # Errors
    ///
    /// [`AllReduceError`] where it could not be issued.
    pub fn chosen(&self) -> Result<Algorithm, AllReduceError> {
        choose(self.group, &self.group.lane()?, self.algorithm, self.input.bytes())
    }

    fn issue(self, lane: &Lane<'_>, stream: &Stream, wait: &Wait) -> Result<(), AllReduceError> {
        let AllReduce { group, input, output, op, .. } = self;
        self.check(stream)?;
        let algorithm = choose(group, lane, self.algorithm, input.bytes())?;
        let symmetric = group.mapping(input);
        let call = Call {
            dtype: input.dtype(),
            op,
            algorithm,
            count: input.count(),
            input: input.ptr(),
            output: output.ptr(),
            tag: self.tag,
            memory: symmetric.map(|(ordinal, peers)| Symmetric {
                ordinal,
                offset: input.offset(),
                peers,
            }),
        };
        let keep = || -> Vec<KeepAlive> { vec![input.keep_alive(), output.keep_alive()] };
        launch(group, lane, stream, wait, &call, keep)
    }

    fn check(&self, stream: &Stream) -> Result<(), AllReduceError> {
        let (input, output) = (self.input, self.output);
        if input.dtype() != output.dtype() {
            return Err(AllReduceError::DType { input: input.dtype(), output: output.dtype() });
        }
        if input.count() != output.count() {
            return Err(AllReduceError::Count { input: input.count(), output: output.count() });
        }
        input.contiguous()?;
        output.contiguous()?;
        self.op.check(input.dtype())?;
        let group = self.group.device().kind();
        for (what, found) in [
            ("input", input.memory().backend()),
            ("output", output.memory().backend()),
            ("stream", stream.backend()),
        ] {
            if found != group {
                return Err(AllReduceError::Backend { what, group, found });
            }
        }
        if input.ptr() != output.ptr() && input.overlaps(output) {
            return Err(AllReduceError::Overlap);
        }
        Ok(())
    }
}

/// A validated call.
struct Call {
    dtype: DType,
    op: ReduceOp,
    algorithm: Algorithm,
    count: u64,
    input: DevicePtr,
    output: DevicePtr,
    tag: u64,
    memory: Option<Symmetric>,
}

impl Call {
    /// Where the address of each rank's allocation is, if peers read inputs where they lie: once
    /// the input is symmetric memory, and large. All else is staged.
    fn direct(&self) -> Option<Symmetric> {
        self.memory.filter(|_| self.algorithm == Algorithm::TwoShot)
    }
}

/// What symmetric memory an input is.
#[derive(Clone, Copy)]
struct Symmetric {
    ordinal: u64,
    offset: Bytes,
    /// Where the address of each rank's allocation is.
    peers: DevicePtr,
}

fn choose(
    group: &Group,
    lane: &Lane<'_>,
    asked: Algorithm,
    bytes: Bytes,
) -> Result<Algorithm, AllReduceError> {
    let capacity = lane.layout().packet_capacity();
    match asked {
        Algorithm::Auto => Ok(choice::all_reduce(group.device().kind(), lane.layout(), bytes)),
        Algorithm::Packet if bytes > capacity => {
            Err(AllReduceError::TooLargeForPackets { bytes, capacity })
        }
        other => Ok(other),
    }
}

fn slices<T: Element>(
    group: &Group,
    input: DevicePtr,
    output: &mut [T],
    op: ReduceOp,
) -> Result<(), AllReduceError> {
    op.check(T::DTYPE)?;
    let lane = group.lane()?;
    let stream = lane.default_stream();
    if !stream.is_inline() {
        return Err(AllReduceError::Borrowed(group.device().kind()));
    }
    let bytes = Bytes::from(size_of_val(output));
    let call = Call {
        dtype: T::DTYPE,
        op,
        algorithm: choose(group, &lane, Algorithm::Auto, bytes)?,
        count: output.len() as u64,
        input,
        output: DevicePtr::new(output.as_mut_ptr().expose_provenance() as u64),
        tag: 0,
        memory: None,
    };
    launch(group, &lane, stream, &group.wait(), &call, Vec::new)
}

#[allow(unsafe_code, reason = "launches a kernel")]
fn launch(
    group: &Group,
    lane: &Lane<'_>,
    stream: &Stream,
    wait: &Wait,
    call: &Call,
    keep: impl FnOnce() -> Vec<KeepAlive>,
) -> Result<(), AllReduceError> {
    let function = kernel(group)?;
    // At every size, also where the input is staged: a program whose ranks pass different memory
    // must not work until its messages grow.
    let (ordinal, offset) = call.memory.map_or((0, Bytes::ZERO), |m| (m.ordinal, m.offset));
    let rest = [
        call.count,
        u64::from(call.algorithm.code()),
        call.tag,
        u64::from(lane.index()),
        ordinal,
        offset.get(),
    ];
    let signature = Signature::new(Operation::AllReduce, Some(call.dtype), Some(call.op), &rest);
    let issue = Issue { stream, wait, function, operation: Operation::AllReduce, signature };
    let group_completion = group.options().completion == Completion::Group;
    // SAFETY: the kernel takes a Plan. Input and output are the caller's views, which `keep` holds
    // for a queued launch, or slices borrowed until this returns, which are used on inline streams
    // only. Peers' inputs are mappings that the input's allocation holds.
    unsafe { lane.issue(issue, |lane| Plan::new(lane, call, group_completion), keep) }?;
    Ok(())
}

/// The group's kernel, looked up once.
fn kernel(group: &Group) -> Result<Function, AllReduceError> {
    struct Loaded(Function);
    let slot = group.slot(Layer::Collectives, || {
        let module = group.device().load(&host::KERNELS)?;
        Ok::<_, AllReduceError>(Loaded(module.function("all_reduce")?))
    })?;
    slot.map(|loaded| loaded.0).ok_or(AllReduceError::Prepare(PrepareError::SlotTaken))
}
