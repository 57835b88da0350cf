//! From a request to a launch.

use std::sync::Arc;

use symmem_hal::types::{BackendKind, Bytes, DType, ReduceOp};
use symmem_hal::{DevicePtr, Function, KeepAlive, Memory, Stream, Wait};
use symmem_mem::call::{Operation, Signature};
use symmem_mem::{Completion, Determinism, Group, Layer, View};
use symmem_sync::host::LaneArgs;
use symmem_sync::{Issue, Lane, PrepareError};

use super::{Access, Block, Buffer, CallError, NoMultimem, Plan, Refused, Request};
use crate::choice::{self, Algorithm, Size};
#[cfg(feature = "cuda")]
use crate::gpu;
use crate::host;
use crate::table::ChoiceTable;

/// The algorithm that a request takes.
pub(super) fn choose(
    kept: &Kept,
    group: &Group,
    lane: &Lane<'_>,
    asked: Algorithm,
    request: &Request<'_>,
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "for lines"))]
    found: &Found,
) -> Result<Algorithm, CallError> {
    let operation = request.operation;
    let size = Size::of(&request.geometry, group.size());
    if asked == Algorithm::Auto {
        let (given, backend) = (kept.choices.as_ref(), group.device().kind());
        #[cfg(feature = "cuda")]
        if given.is_none() && has_lines(group, lane, request, found) {
            return Ok(Algorithm::Packet);
        }
        return Ok(choice::choose(given, operation, backend, lane.layout(), size));
    }
    if asked == Algorithm::Multimem {
        multimem(group, request)?;
        return Ok(asked);
    }
    if !Algorithm::of(operation).contains(&asked) {
        return Err(CallError::Algorithm { operation, algorithm: asked });
    }
    let (bytes, capacity) = (size.sent, lane.layout().packet_capacity());
    if asked == Algorithm::Packet && bytes > capacity {
        #[cfg(feature = "cuda")]
        if has_lines(group, lane, request, found) {
            return Ok(asked);
        }
        return Err(CallError::TooLargeForPackets { bytes, capacity });
    }
    Ok(asked)
}

/// Whether packets of a call would be lines, which carry more.
#[cfg(feature = "cuda")]
fn has_lines(group: &Group, lane: &Lane<'_>, request: &Request<'_>, found: &Found) -> bool {
    group.device().kind() == BackendKind::Cuda
        && gpu::is_size_for_lines(request, lane.layout())
        && gpu::is_aligned_everywhere(found.compared(group, request))
}

/// That the switch does it.
fn multimem(group: &Group, request: &Request<'_>) -> Result<(), CallError> {
    let (operation, algorithm) = (request.operation, Algorithm::Multimem);
    match operation {
        Operation::AllReduce | Operation::Reduce | Operation::AllGather => {}
        _ => return Err(CallError::Algorithm { operation, algorithm }),
    }
    if group.options().determinism != Determinism::Relaxed {
        return Err(CallError::Determinism { algorithm });
    }
    let backend = group.device().kind();
    #[cfg(feature = "cuda")]
    if backend == BackendKind::Cuda {
        gpu::multimem(group, request)?;
        return Ok(());
    }
    Err(NoMultimem::Backend(backend).into())
}

/// Symmetric memory that a call names: equal on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symmetric {
    pub access: Access,
    pub ordinal: u64,
    /// Where rank 0's buffer begins in its allocation.
    pub offset: Bytes,
    /// How much further each next rank's does.
    pub step: u64,
    /// Where the address of each rank's allocation is.
    pub peers: DevicePtr,
}

impl Symmetric {
    fn of(group: &Group, buffer: &Buffer<'_>, access: Access, step: u64) -> Option<Self> {
        let (ordinal, peers) = group.mapping(buffer.view()?)?;
        let before = step.wrapping_mul(group.rank().index() as u64);
        let offset = Bytes(buffer.offset().get().wrapping_sub(before));
        Some(Symmetric { access, ordinal, offset, step, peers })
    }

    fn input(group: &Group, request: &Request<'_>) -> Option<Self> {
        if request.is_scattered {
            return None;
        }
        Self::of(group, &request.input, Access::Read, request.input_step)
    }

    fn output(group: &Group, request: &Request<'_>) -> Option<Self> {
        Self::of(group, &request.output, Access::Write, 0)
    }
}

/// What a call has looked up of its memory, once, for its choice and its launch.
#[derive(Default)]
pub(super) struct Found {
    #[cfg(feature = "cuda")]
    compared: core::cell::OnceCell<[Option<Symmetric>; 2]>,
}

#[cfg(feature = "cuda")]
impl Found {
    /// On GPUs, what ranks compare: both, since inputs are read by copy engines, outputs written by
    /// kernels.
    fn compared(&self, group: &Group, request: &Request<'_>) -> [Option<Symmetric>; 2] {
        *self.compared.get_or_init(|| {
            let output = request.has_reachable_output().then(|| Symmetric::output(group, request));
            [Symmetric::input(group, request), output.flatten()]
        })
    }
}

/// The symmetric memory of a call: what every rank compares, and what peers reach into.
struct Reach {
    compared: [Option<Symmetric>; 2],
    direct: Option<Symmetric>,
}

impl Reach {
    fn of(
        group: &Group,
        request: &Request<'_>,
        algorithm: Algorithm,
        backend: BackendKind,
        #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "of GPUs"))]
        found: &Found,
    ) -> Self {
        #[cfg(feature = "cuda")]
        if backend == BackendKind::Cuda {
            let compared = found.compared(group, request);
            let direct = match gpu::access(algorithm, request) {
                Access::Read => compared[0],
                Access::Write => compared[1],
                Access::Staged => None,
            };
            return Reach { compared, direct };
        }
        let input = Symmetric::input(group, request);
        // The input, if it is symmetric memory; else the output, where peers may write it.
        let one = input.or_else(|| {
            request.is_written_by_peers.then(|| Symmetric::output(group, request)).flatten()
        });
        let direct = one.filter(|_| {
            !request.is_staged && choice::is_direct(algorithm, backend, request, group.size())
        });
        Reach { compared: [one, None], direct }
    }
}

/// Launches the kernel of a request.
#[allow(unsafe_code, reason = "launches a kernel")]
#[allow(clippy::too_many_arguments, reason = "what one call is made of")]
#[cfg_attr(
    not(feature = "cuda"),
    allow(clippy::infallible_destructuring_match, reason = "there are kernels for GPUs as well")
)]
pub(super) fn launch(
    kept: &Kept,
    group: &Group,
    lane: &Lane<'_>,
    stream: &Stream,
    wait: &Wait,
    request: &Request<'_>,
    algorithm: Algorithm,
    found: &Found,
    tag: u64,
) -> Result<(), Refused> {
    let backend = group.device().kind();
    check(request, stream, backend)?;
    let Reach { compared, direct } = Reach::of(group, request, algorithm, backend, found);
    let signature = sign(request, algorithm, tag, lane.index(), compared);
    let buffers = || -> Vec<KeepAlive> {
        let buffers = [Some(request.input), request.source, Some(request.output)];
        let views = buffers
            .iter()
            .flatten()
            .filter_map(Buffer::view)
            .chain(request.inputs.iter().map(|tile| tile.view))
            .chain(request.outputs.iter().copied());
        let is_reached = direct.is_some() || algorithm == Algorithm::Multimem;
        let mapped = |view: &View| is_reached.then(|| group.keep_mapped(view)).flatten();
        views.flat_map(|view| [Some(view.keep_alive()), mapped(view)]).flatten().collect()
    };
    #[cfg(feature = "cuda")]
    if let Kernels::Gpu(kernels) = &kept.kernels {
        let call = gpu::Launching {
            kernels,
            group,
            lane,
            stream,
            wait,
            request,
            algorithm,
            signature,
            compared,
            direct,
        };
        return gpu::launch(&call, buffers);
    }
    let function = kept.kernels.function(request.operation)?;
    let issue = Issue { stream, wait, function, operation: request.operation, signature };
    let blocks = Blocks::new(group, stream, &request.blocks)?;
    let keep = || {
        let mut kept = buffers();
        kept.extend(blocks.memory.map(|memory| Arc::new(memory) as KeepAlive));
        kept
    };
    let plan = |args: LaneArgs| Plan {
        lane: args,
        input: request.input.ptr(),
        input_bytes: request.input_bytes.get(),
        source: request.source.map_or(DevicePtr::NULL, |source| source.ptr()),
        output: request.output.ptr(),
        output_bytes: if request.is_receiver { request.output.bytes().get() } else { 0 },
        geometry: request.geometry,
        blocks: blocks.at,
        block_count: request.blocks.len() as u64,
        piece: choice::piece(
            algorithm,
            backend,
            lane.layout(),
            request.geometry.slots(group.size()),
        ),
        peers: direct.map_or(DevicePtr::NULL, |d| d.peers),
        peer_offset: direct.map_or(0, |d| d.offset.get()),
        peer_step: direct.map_or(0, |d| d.step),
        rank: group.rank().index() as u32,
        root: request.root.unwrap_or(0) as u32,
        dtype: request.input.dtype().code().into(),
        op: request.op.map_or(0, |op| op.code().into()),
        algorithm: algorithm.code().into(),
        access: direct.map_or(Access::Staged, |d| d.access) as u32,
        group_completion: (group.options().completion == Completion::Group).into(),
        streams: choice::streams(backend, request, group.size()).into(),
    };
    // SAFETY: every kernel of this crate takes a Plan. Input and output are the caller's views,
    // which `keep` holds for a queued or captured launch, or slices borrowed until this returns, which
    // `check` lets pass on immediate streams only; blocks are the request's there, else in memory that
    // `keep` holds. Peers' buffers are mappings that `keep` holds, too, and the group until the last
    // borrow of it ends.
    unsafe { lane.issue(issue, plan, keep) }?;
    Ok(())
}

/// Blocks where the kernel can read them.
struct Blocks {
    at: DevicePtr,
    /// What holds them, unless it is the request.
    memory: Option<Memory>,
}

impl Blocks {
    fn new(group: &Group, stream: &Stream, blocks: &[Block]) -> Result<Self, CallError> {
        if blocks.is_empty() {
            return Ok(Blocks { at: DevicePtr::NULL, memory: None });
        }
        if stream.is_immediate() {
            let at = DevicePtr::new(blocks.as_ptr().expose_provenance() as u64);
            return Ok(Blocks { at, memory: None });
        }
        let bytes: &[u8] = bytemuck::cast_slice(blocks);
        let memory = group.device().allocate_private(Bytes::from(bytes.len())).map_err(Arc::new)?;
        let written = memory.write(Bytes::ZERO, bytes);
        debug_assert!(written.is_ok());
        Ok(Blocks { at: memory.base(), memory: Some(memory) })
    }
}

/// That the operator is one of the type, and all is where the group is.
fn check(request: &Request<'_>, stream: &Stream, group: BackendKind) -> Result<(), CallError> {
    let Request { input, output, .. } = request;
    if let Some(op) = request.op {
        op.check(input.dtype())?;
    }
    input.on(group, "input")?;
    output.on(group, "output")?;
    if let Some(source) = &request.source {
        source.on(group, "source")?;
    }
    request.inputs.iter().try_for_each(|tile| Buffer::of(tile.view).on(group, "input"))?;
    request.outputs.iter().try_for_each(|view| Buffer::of(view).on(group, "output"))?;
    if stream.backend() != group {
        return Err(CallError::Backend { what: "stream", group, found: stream.backend() });
    }
    if (input.view().is_none() || output.view().is_none()) && !stream.is_immediate() {
        return Err(CallError::Borrowed(group));
    }
    Ok(())
}

/// What every rank compares. The memory counts at every size, also where it is staged: a program
/// whose ranks pass different memory must not work until its messages grow.
fn sign(
    request: &Request<'_>,
    algorithm: Algorithm,
    tag: u64,
    lane: u32,
    symmetric: [Option<Symmetric>; 2],
) -> Signature {
    let [a, b, c] = request.shape;
    let root = request.root.map_or(0, |root| root as u64 + 1);
    let access = symmetric.map(|s| s.map_or(Access::Staged, |s| s.access) as u64);
    let small = u64::from(lane) << 48
        | root << 16
        | u64::from(algorithm.code()) << 8
        | access[0] << 4
        | access[1];
    let [first, second] = symmetric.map(|s| s.map_or((0, 0), |s| (s.ordinal, s.offset.get())));
    // Ordinals count from 1, and no allocation has 2^32 bytes of offsets to spare.
    let ordinal = first.0 | second.0 << 32;
    let offset = first.1 ^ second.1.rotate_left(32);
    // Operations have steps, or blocks in places.
    let places = if first.0 == 0 { 0 } else { request.places };
    let rest = [a, b, c, small, tag, ordinal, offset, request.input_step ^ places];
    Signature::new(request.operation, Some(request.input.dtype()), request.op, &rest)
}

/// What this layer keeps with a group.
pub(super) struct Kept {
    kernels: Kernels,
    /// The table that the group was made with, if one was given.
    choices: Option<ChoiceTable>,
}

/// What runs operations.
#[allow(clippy::large_enum_variant, reason = "one a group, behind its slot")]
enum Kernels {
    /// In the order of their operations.
    Cpu(Vec<Function>),
    #[cfg(feature = "cuda")]
    Gpu(gpu::Kernels),
}

impl Kernels {
    fn of(group: &Group) -> Result<Self, CallError> {
        let device = group.device();
        #[cfg(feature = "cuda")]
        if device.kind() == BackendKind::Cuda {
            return Ok(Kernels::Gpu(gpu::Kernels::new(device, group.size())));
        }
        let module = device.load(&host::KERNELS)?;
        let kernels = host::OPERATIONS.iter().map(|operation| module.function(operation.name()));
        Ok(Kernels::Cpu(kernels.collect::<Result<_, _>>()?))
    }

    /// The kernel of an operation on a CPU.
    fn function(&self, operation: Operation) -> Result<Function, CallError> {
        let found = match self {
            Kernels::Cpu(kernels) => {
                let at = host::OPERATIONS.iter().position(|known| *known == operation);
                at.and_then(|at| kernels.get(at))
            }
            #[cfg(feature = "cuda")]
            Kernels::Gpu(_) => None,
        };
        found.copied().ok_or(CallError::Prepare(PrepareError::SlotTaken))
    }
}

/// Loads what reductions of these types and operators need, and what only moves data.
pub(crate) fn prepare(group: &Group, wanted: &[(DType, ReduceOp)]) -> Result<(), CallError> {
    wanted.iter().try_for_each(|(dtype, op)| op.check(*dtype))?;
    match &kept(group)?.kernels {
        Kernels::Cpu(_) => Ok(()),
        #[cfg(feature = "cuda")]
        Kernels::Gpu(kernels) => gpu::prepare(kernels, group, wanted),
    }
}

/// Looked up and read once in the life of a group.
pub(super) fn kept(group: &Group) -> Result<&Kept, CallError> {
    let slot = group.slot(Layer::Collectives, || {
        let table = group.options().choices.table();
        Ok::<_, CallError>(Kept {
            kernels: Kernels::of(group)?,
            choices: table.map(ChoiceTable::parse).transpose()?,
        })
    })?;
    Ok(slot.ok_or(PrepareError::SlotTaken)?)
}
