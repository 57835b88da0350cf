//! A word of device memory, and a kernel that shows in it what ran before.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use symmem_hal::types::Bytes;
use symmem_hal::{
    Device, DevicePtr, Function, KeepAlive, Kernel, KernelSet, Launch, LaunchContext, Launched,
    Memory, Stream, SyncError, Wait,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Args {
    pub word: DevicePtr,
    /// Multiplies the word by this, then adds one: not commutative, so order shows.
    pub factor: u32,
    /// Waits first until the word is not this.
    pub hold: u32,
}

unsafe fn step(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: launched with an `Args` (see `Rig::launch`), valid until this function returns.
    let args = unsafe { *args.cast::<Args>() };
    let Some(word) = context.resolve(args.word, Bytes::new(4)) else { return };
    // SAFETY: four mapped, aligned bytes, only used as an atomic, kept by the launch.
    let word = unsafe { AtomicU32::from_ptr(word.cast()) };
    let deadline = context.deadline();
    while word.load(Ordering::Acquire) == args.hold && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    let value = word.load(Ordering::Acquire);
    word.store(value.wrapping_mul(args.factor).wrapping_add(1), Ordering::Release);
}

pub static SET: KernelSet = KernelSet {
    name: "test",
    kernels: &[Kernel { name: "step", args: size_of::<Args>(), host: step }],
};

pub const LONG: Wait = Wait::seconds(20);
pub const NEVER: u32 = u32::MAX;

pub struct Rig {
    pub device: Device,
    pub memory: Memory,
    pub function: Function,
}

impl Rig {
    pub fn new(device: Device) -> Self {
        let memory = device.allocate(Bytes::new(64)).unwrap();
        let function = device.load(&SET).unwrap().function("step").unwrap();
        Rig { device, memory, function }
    }
    pub fn launch(&self, stream: &Stream, factor: u32, hold: u32) -> Launched {
        self.try_launch(stream, factor, hold).unwrap()
    }
    pub fn try_launch(
        &self,
        stream: &Stream,
        factor: u32,
        hold: u32,
    ) -> Result<Launched, SyncError> {
        let args = Args { word: self.memory.base(), factor, hold };
        let keep: [KeepAlive; 1] = [Arc::new(self.memory.clone())];
        // SAFETY: `step` takes an `Args`; its address is kept by `keep`.
        unsafe { stream.launch(Launch::new(self.function, &args, &LONG, &keep)) }
    }
    pub fn set(&self, value: u32) {
        self.memory.write(Bytes::ZERO, &value.to_ne_bytes()).unwrap();
    }
    pub fn get(&self) -> u32 {
        let mut word = [0; 4];
        self.memory.read(Bytes::ZERO, &mut word).unwrap();
        u32::from_ne_bytes(word)
    }
}

pub fn devices() -> [Device; 2] {
    [Device::host(), Device::stub(0)]
}
