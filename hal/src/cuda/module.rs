//! Loaded device code, and its launches.
//!
//! A module is loaded once a device and never unloaded, so that a function is a plain reference and a
//! launch looks nothing up. Each function is loaded when it is found, since the driver would load it
//! at its first launch otherwise: too late inside a capture, or while a peer waits.
#![allow(unsafe_code, reason = "calls the driver")]

use core::ffi::{CStr, c_int};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{
    CUdevice_attribute_enum as Attribute, CUfunc_st, CUfunction_attribute_enum as Property,
    CUlaunchAttribute, CUlaunchAttributeID_enum as Id, CUlaunchAttributeValue, CUlaunchConfig,
    CUmod_st, CUresult, CUstream,
};

use super::context::{Context, Raw};
use super::driver::{Caller as _, cu};
use super::host_memory;
use crate::backend::ModuleOps;
use crate::driver::DriverError;
use crate::kernels::{self, Unit};
use crate::module::{Kernel, LoadError};
use crate::stream::Grid;
use crate::types::BackendKind;

/// Compiled kernels, loaded on one device.
#[derive(Clone, Copy)]
pub struct Module(&'static Loaded);

impl core::fmt::Debug for Module {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} on {:?}", self.0.name, self.0.context)
    }
}

struct Loaded {
    context: &'static Context,
    name: &'static str,
    raw: Raw<CUmod_st>,
    functions: Mutex<HashMap<String, &'static Function>>,
}

/// A kernel, loaded on one device.
#[derive(Debug)]
pub struct Function {
    context: &'static Context,
    raw: Raw<CUfunc_st>,
    args: usize,
}

/// What tells one compilation from another: the source, and its definitions.
type Key = (usize, Vec<(String, String)>);

/// The modules of a device. Each has a lock of its own, held while it is compiled.
#[derive(Default)]
pub(super) struct Modules(Mutex<HashMap<Key, Arc<Mutex<Option<Module>>>>>);

impl Modules {
    /// The module of a unit, compiled and loaded by the first who asks.
    pub(super) fn get(
        &self,
        context: &'static Context,
        unit: &Unit<'_>,
    ) -> Result<Module, LoadError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let source = core::ptr::from_ref(unit.source).addr();
        let key = (source, unit.defines.iter().map(owned).collect());
        let place = self.0.lock().entry(key).or_default().clone();
        let mut place = place.lock();
        if let Some(module) = *place {
            return Ok(module);
        }
        let image = kernels::cubin(unit, context.arch)?;
        let module = Module::load(context, unit.source.name, &image)?;
        *place = Some(module);
        Ok(module)
    }
}

impl Module {
    /// Loads an image: a cubin, or text of the driver's assembler that ends in a zero.
    fn load(
        context: &'static Context,
        name: &'static str,
        image: &[u8],
    ) -> Result<Self, LoadError> {
        let failed = |error| LoadError::Device { name: name.to_owned(), error };
        let _entered = context.enter_aside().map_err(failed)?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: the image is whole: it comes from the compiler, or was compared with the hash that
        // it was stored under. The driver copies it.
        unsafe { cu!(context, cuModuleLoadData(&raw mut raw, image.as_ptr().cast())) }
            .map_err(failed)?;
        let loaded = Loaded { context, name, raw: Raw(raw), functions: Mutex::default() };
        Ok(Module(Box::leak(Box::new(loaded))))
    }

    /// Finds and loads a kernel that takes one struct of `args` bytes.
    pub(crate) fn device_function(
        &self,
        name: &str,
        args: usize,
    ) -> Result<&'static Function, LoadError> {
        let Loaded { context, raw, .. } = *self.0;
        let mut functions = self.0.functions.lock();
        if let Some(function) = functions.get(name) {
            return function.taking(name, args);
        }
        let failed = |error: DriverError| match CUresult(error.code()) {
            CUresult::CUDA_ERROR_NOT_FOUND => self.lacks(name),
            _ => LoadError::Device { name: name.to_owned(), error },
        };
        let symbol = CString::new(name).map_err(|_| self.lacks(name))?;
        let _entered = context.enter_aside().map_err(failed)?;
        let function = Function::load(context, raw, &symbol, args).map_err(failed)?;
        let function: &'static Function = Box::leak(Box::new(function));
        functions.insert(name.to_owned(), function);
        function.taking(name, args)
    }

    fn lacks(&self, name: &str) -> LoadError {
        let backend = BackendKind::Cuda;
        LoadError::NoKernel { set: self.0.name, name: name.to_owned(), backend }
    }
}

impl ModuleOps for Module {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn kernel(&self, _name: &str) -> Option<&'static Kernel> {
        None
    }
}

impl Function {
    fn load(
        context: &'static Context,
        module: Raw<CUmod_st>,
        symbol: &CStr,
        args: usize,
    ) -> Result<Self, DriverError> {
        let mut raw = core::ptr::null_mut();
        // SAFETY: writes one handle; the module is never unloaded, the name ends in a zero.
        unsafe { cu!(context, cuModuleGetFunction(&raw mut raw, module.0, symbol.as_ptr())) }?;
        let mut function = Function { context, raw: Raw(raw), args };
        if context.table().cuFuncLoad().is_ok() {
            // SAFETY: the function is alive.
            unsafe { cu!(context, cuFuncLoad(raw)) }?;
        }
        // Also loads it, where the driver has no call for that alone.
        let fixed = function.property(Property::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let most = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let dynamic = context.attribute(most)?.saturating_sub(fixed);
        let property = Property::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let dynamic = c_int::try_from(dynamic).unwrap_or(c_int::MAX);
        // SAFETY: the function is alive. A limit, not a use: launches say what they take.
        unsafe { cu!(context, cuFuncSetAttribute(raw, property, dynamic)) }?;
        if let Some(size) = function.parameter() {
            function.args = size;
        }
        Ok(function)
    }

    fn property(&self, property: Property) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: writes one int; the function is alive.
        unsafe { cu!(self.context, cuFuncGetAttribute(&raw mut value, property, self.raw.0)) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Bytes of its first parameter, where the driver tells.
    fn parameter(&self) -> Option<usize> {
        let (mut offset, mut size) = (0, 0);
        let (offset, out) = (&raw mut offset, &raw mut size);
        // SAFETY: writes two numbers; the function is alive.
        unsafe { cu!(self.context, cuFuncGetParamInfo(self.raw.0, 0, offset, out)) }.ok()?;
        Some(size)
    }

    fn taking(&'static self, name: &str, args: usize) -> Result<&'static Self, LoadError> {
        if self.args == args {
            return Ok(self);
        }
        Err(LoadError::Arguments { name: name.to_owned(), expected: args, found: self.args })
    }

    pub(crate) fn args(&self) -> usize {
        self.args
    }

    pub(crate) fn resident_blocks(&self, threads: u32, shared: u32) -> u32 {
        let context = self.context;
        let ask = || {
            let _entered = context.enter_aside()?;
            let mut blocks = 0;
            let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
            // SAFETY: writes one int; the function is alive.
            unsafe {
                cu!(
                    context,
                    cuOccupancyMaxActiveBlocksPerMultiprocessor(
                        &raw mut blocks,
                        self.raw.0,
                        threads,
                        shared as usize
                    )
                )
            }?;
            let units = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
            Ok::<_, DriverError>(u32::try_from(blocks).unwrap_or(0).saturating_mul(units))
        };
        ask().unwrap_or_else(|error| {
            context.complain("asking how many blocks are resident at once", Err(error));
            0
        })
    }

    /// Enqueues it. The context is current.
    ///
    /// # Safety
    ///
    /// As for the public `Stream::launch`.
    pub(super) unsafe fn launch(
        &self,
        stream: CUstream,
        args: &[u8],
        grid: Grid,
    ) -> Result<(), DriverError> {
        let mut attributes = [CUlaunchAttribute::default(); 2];
        let mut count = 0;
        let mut set = |id, value| {
            attributes[count].id = id;
            attributes[count].value = value;
            count += 1;
        };
        if grid.dependent {
            let value = CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            set(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value);
        }
        if grid.cooperative {
            let value = CUlaunchAttributeValue { cooperative: 1 };
            set(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value);
        }
        let config = CUlaunchConfig {
            gridDimX: grid.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let _launching = host_memory::launching();
        // The driver copies the one parameter, a struct of the size it was compiled with.
        let mut parameters = [args.as_ptr().cast_mut().cast()];
        // SAFETY: function, stream and context belong together and are alive; the parameter is the
        // kernel's own struct, read before this returns. The caller vouches for its addresses.
        unsafe {
            cu!(
                self.context,
                cuLaunchKernelEx(
                    &raw const config,
                    self.raw.0,
                    parameters.as_mut_ptr(),
                    core::ptr::null_mut()
                )
            )
        }
    }
}
