//! The kernels, and how they are launched.
#![allow(unsafe_code, reason = "launches kernels, which follow the addresses they are given")]

use anyhow::{Result, bail, ensure};
use bytemuck::{Pod, Zeroable};
use symmem::hal::kernels::{KernelSource, SYMMEM_CUH, Unit};
use symmem::hal::{DevicePtr, Function, Grid, KeepAlive, Launch};
use symmem::mem::call::{Operation, Signature};
use symmem::prelude::*;
use symmem::sync::Issue;
use symmem::sync::gpu::{SYMMEM_LANE_CUH, SYMMEM_SYNC_CUH, SymmemLane};

/// As in the source.
const THREADS: u32 = 512;
/// The longest row: what the threads of a block hold.
pub const MAX_HIDDEN: u64 = 2 * 8 * THREADS as u64;

static SOURCE: KernelSource = KernelSource {
    name: "fused-rmsnorm",
    file: ("rmsnorm.cu", include_str!("../kernels/rmsnorm.cu")),
    headers: &[SYMMEM_CUH, SYMMEM_LANE_CUH, SYMMEM_SYNC_CUH],
};

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(16))]
struct Norm {
    residual: DevicePtr,
    weight: DevicePtr,
    output: DevicePtr,
    tokens: u32,
    hidden: u32,
    epsilon: f32,
    reserved: [u32; 3],
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(16))]
struct Fused {
    lane: SymmemLane,
    norm: Norm,
    input: DevicePtr,
    reserved: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(16))]
struct Unfused {
    norm: Norm,
    input: DevicePtr,
    reserved: u64,
}

/// The memory of one rank.
#[derive(Clone, Debug)]
pub struct Buffers {
    pub input: Tensor<bf16>,
    pub residual: Tensor<bf16>,
    pub weight: Tensor<bf16>,
    pub output: Tensor<bf16>,
    /// What the library's all-reduce gives.
    pub sum: Tensor<bf16>,
    pub tokens: u32,
    pub hidden: u32,
}

impl Buffers {
    pub fn new(device: &Device, tokens: u32, hidden: u32) -> Result<Self> {
        let rows = || Tensor::zeros(device, &[tokens.into(), hidden.into()]);
        let weight = Tensor::zeros(device, &[hidden.into()])?;
        let (input, residual, output, sum) = (rows()?, rows()?, rows()?, rows()?);
        Ok(Buffers { input, residual, weight, output, sum, tokens, hidden })
    }

    fn norm(&self, epsilon: f32) -> Norm {
        let Buffers { residual, weight, output, tokens, hidden, .. } = self;
        let (tokens, hidden, reserved) = (*tokens, *hidden, [0; 3]);
        let [residual, weight, output] = [residual, weight, output].map(|tensor| tensor.ptr());
        Norm { residual, weight, output, tokens, hidden, epsilon, reserved }
    }

    /// What must live as long as work on them is in flight.
    fn keep(&self) -> Vec<KeepAlive> {
        let all = [&self.input, &self.residual, &self.weight, &self.output, &self.sum];
        all.map(|tensor| tensor.view().keep_alive()).into()
    }
}

/// The kernels, on one device.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    fused: Function,
    unfused: Function,
    epsilon: f32,
}

impl Kernels {
    /// Compiles them, or takes what an earlier process has compiled.
    pub fn new(device: &Device, epsilon: f32) -> Result<Self> {
        let module = device.compile(&Unit { source: &SOURCE, defines: &[] })?;
        let fused = module.device_function("fused", size_of::<Fused>())?;
        let unfused = module.device_function("unfused", size_of::<Unfused>())?;
        Ok(Kernels { fused, unfused, epsilon })
    }

    /// Everything in one kernel. Collective.
    pub fn fused(&self, group: &Group, buffers: &Buffers, stream: &Stream) -> Result<()> {
        let lane = group.lane()?;
        let Buffers { tokens, hidden, .. } = *buffers;
        let bytes = u64::from(tokens) * u64::from(hidden) * 2;
        let most = lane.layout().packet_capacity();
        ensure!(bytes <= most.get(), "{bytes} bytes of input: packets carry {most} at a time");
        let wait = group.wait();
        let shape = [tokens.into(), hidden.into()];
        let issue = Issue {
            stream,
            wait: &wait,
            function: self.fused,
            operation: Operation::Custom,
            signature: Signature::new(Operation::Custom, Some(DType::BF16), None, &shape),
        };
        let grid = grid(tokens.min(lane.max_grid()));
        let (norm, input) = (buffers.norm(self.epsilon), buffers.input.ptr());
        let args = |lane| Fused { lane, norm, input, reserved: 0 };
        // SAFETY: the kernel takes a Fused, as `new` has checked of its size; the addresses are those
        // of tensors that `keep` holds until it has run, each of tokens x hidden elements.
        unsafe { lane.issue_device(issue, grid, args, || buffers.keep()) }?;
        Ok(())
    }

    /// The library's all-reduce, and a kernel for the rest. Collective.
    pub fn unfused(&self, group: &Group, buffers: &Buffers, stream: &Stream) -> Result<()> {
        group.all_reduce(&buffers.input).into(&buffers.sum).on(stream)?;
        let (norm, input) = (buffers.norm(self.epsilon), buffers.sum.ptr());
        let args = Unfused { norm, input, reserved: 0 };
        let (wait, keep) = (group.wait(), || buffers.keep());
        let grid = grid(buffers.tokens);
        let launch = Launch::keeping(self.unfused, &args, &wait, &keep).grid(grid);
        // SAFETY: the kernel takes an Unfused; for the addresses as above.
        unsafe { stream.launch(launch) }?;
        Ok(())
    }
}

/// Both kernels wait for the one before by themselves, so that they can be set up while that runs.
fn grid(blocks: u32) -> Grid {
    Grid { blocks: blocks.max(1), threads: THREADS, dependent: true, ..Grid::default() }
}

/// What the kernels can take.
pub fn check_hidden(hidden: u32) -> Result<()> {
    if hidden == 0 || !hidden.is_multiple_of(8) || u64::from(hidden) > MAX_HIDDEN {
        bail!("--hidden {hidden}: rows are multiples of 8 elements, {MAX_HIDDEN} at most");
    }
    Ok(())
}

const _: () = assert!(size_of::<Norm>() == 48 && size_of::<Unfused>() == 64);
