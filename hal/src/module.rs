//! Kernels and how they are called.
#![allow(unsafe_code, reason = "calls kernels, which take an untyped argument block")]

use core::cell::Cell;
use core::fmt;
use std::time::Instant;

use crate::backend::ModuleOps;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::driver::DriverError;
use crate::fault::{Fault, Kind};
use crate::types::{BackendKind, Bytes};
use crate::{DevicePtr, Wait, host, stub};

/// A kernel for the CPU: a function of a context and an argument block.
///
/// # Safety
///
/// The caller passes a block of exactly the kernel's [`args`](Kernel::args) bytes, aligned to 16,
/// that holds the argument struct the kernel was written for, and sees to it that every address in
/// it stays valid until the kernel returns.
pub type HostFn = unsafe fn(&LaunchContext<'_>, *const u8);

/// One kernel of a [`KernelSet`].
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Its name, unique in the set.
    pub name: &'static str,
    /// Bytes of its argument block.
    pub args: usize,
    /// Its code for backends that run on the CPU.
    pub host: HostFn,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

/// The kernels of one crate.
#[derive(Clone, Copy, Debug)]
pub struct KernelSet {
    /// Name of the set: the crate's.
    pub name: &'static str,
    /// Its kernels.
    pub kernels: &'static [Kernel],
}

/// A set of kernels, launchable on one device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Module {
    /// On the CPU.
    Host(host::Module),
    /// On a device in software.
    Stub(stub::Module),
    /// On an NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(cuda::Module),
}

/// Why a kernel cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The set has no kernel of that name.
    #[error("the kernel set {set} has no kernel {name} for {backend}")]
    NoKernel {
        /// The set searched.
        set: &'static str,
        /// The name searched for.
        name: String,
        /// The backend it was wanted for.
        backend: BackendKind,
    },
    /// The backend runs Rust functions, not device code.
    #[error("{backend} runs no device code, so not {set}")]
    NotCompilable {
        /// The set that was to be compiled.
        set: &'static str,
        /// The backend.
        backend: BackendKind,
    },
    /// There is no code for the device, and none can be made.
    #[error("no device code of {set} for {arch}: {reason}")]
    NoCode {
        /// The set.
        set: &'static str,
        /// The architecture it was wanted for.
        arch: String,
        /// Each place that was looked at, and why it has none.
        reason: String,
    },
    /// A kernel takes other arguments than its caller has.
    #[error("kernel {name} takes {found} bytes of arguments, its caller has {expected}")]
    Arguments {
        /// The kernel.
        name: String,
        /// The caller's bytes.
        expected: usize,
        /// The kernel's.
        found: usize,
    },
    /// The driver refused the code.
    #[error("loading {name}: {error}")]
    Device {
        /// The kernel or set.
        name: String,
        /// What the driver said.
        error: DriverError,
    },
}

impl Fault for LoadError {
    fn kind(&self) -> Kind {
        match self {
            LoadError::NoKernel { .. }
            | LoadError::NotCompilable { .. }
            | LoadError::NoCode { .. } => Kind::Unsupported,
            LoadError::Arguments { .. } => Kind::Disagreement,
            LoadError::Device { error, .. } => error.kind(),
        }
    }
}

/// A kernel, ready to be launched on streams of the device whose module it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    pub(crate) code: Code,
    backend: BackendKind,
}

/// What a function runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    Rust(&'static Kernel),
    #[cfg(feature = "cuda")]
    Cuda(&'static cuda::Function),
}

impl Function {
    pub(crate) fn of(kernel: &'static Kernel, backend: BackendKind) -> Self {
        Function { code: Code::Rust(kernel), backend }
    }

    /// Which backend's streams run it.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    /// Bytes of its argument block.
    #[must_use]
    pub fn args(&self) -> usize {
        match self.code {
            Code::Rust(kernel) => kernel.args,
            #[cfg(feature = "cuda")]
            Code::Cuda(function) => function.args(),
        }
    }

    /// How many blocks of `threads` threads with `shared` bytes of dynamic shared memory the whole
    /// device holds at once; 1 where a launch is one function call.
    #[must_use]
    pub fn resident_blocks(&self, threads: u32, shared: u32) -> u32 {
        match self.code {
            Code::Rust(_) => {
                let _ = (threads, shared);
                1
            }
            #[cfg(feature = "cuda")]
            Code::Cuda(function) => function.resident_blocks(threads, shared),
        }
    }
}

impl Module {
    /// Finds a kernel by name. For set-up: launches use the [`Function`].
    ///
    /// # Errors
    ///
    /// [`LoadError::NoKernel`].
    pub fn function(&self, name: &str) -> Result<Function, LoadError> {
        let (set, kernel, backend) = match self {
            Module::Host(m) => (m.name(), m.kernel(name), BackendKind::Host),
            Module::Stub(m) => (m.name(), m.kernel(name), BackendKind::Stub),
            #[cfg(feature = "cuda")]
            Module::Cuda(m) => (m.name(), m.kernel(name), BackendKind::Cuda),
        };
        let missing = || LoadError::NoKernel { set, name: name.to_owned(), backend };
        let kernel = kernel.ok_or_else(missing)?;
        Ok(Function::of(kernel, backend))
    }

    /// Finds a kernel of compiled device code that takes one struct of `args` bytes by value, and
    /// loads it now, so that its first launch loads nothing.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoKernel`], [`LoadError::Arguments`], or what the driver said.
    pub fn device_function(&self, name: &str, args: usize) -> Result<Function, LoadError> {
        match self {
            #[cfg(feature = "cuda")]
            Module::Cuda(m) => {
                let code = Code::Cuda(m.device_function(name, args)?);
                Ok(Function { code, backend: BackendKind::Cuda })
            }
            Module::Host(_) | Module::Stub(_) => {
                let _ = args;
                self.function(name)
            }
        }
    }
}

/// What a kernel on the CPU knows beside its arguments: how to follow device addresses, and how
/// long it may wait.
#[derive(Debug)]
pub struct LaunchContext<'a> {
    wait: &'a Wait,
    space: Space,
    stopped: Cell<bool>,
}

/// Whose addresses a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// This process's own.
    Host,
    /// Numbers that the stub's table maps.
    Stub,
}

impl<'a> LaunchContext<'a> {
    pub(crate) fn new(space: Space, wait: &'a Wait) -> Self {
        LaunchContext { wait, space, stopped: Cell::new(false) }
    }

    /// The memory of `bytes` bytes at a device address; `None` for null, and on the stub for any
    /// range that is not mapped.
    #[must_use]
    pub fn resolve(&self, ptr: DevicePtr, bytes: Bytes) -> Option<*mut u8> {
        match self.space {
            Space::Host if ptr.is_null() => None,
            // The round trip through a number loses provenance; the address was exposed when the
            // memory's base became a DevicePtr.
            Space::Host => Some(core::ptr::with_exposed_provenance_mut(ptr.get() as usize)),
            Space::Stub => stub::resolve(ptr, bytes),
        }
    }

    /// The bound on this launch's waits.
    #[must_use]
    pub fn wait(&self) -> &Wait {
        self.wait
    }

    /// The kernel ends early: what it was launched for has not happened. Why is where its layer
    /// records it.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// When a wait that begins now must end.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.wait.deadline()
    }
}
