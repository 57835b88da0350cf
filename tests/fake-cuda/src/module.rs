//! Modules, libraries and functions: any bytes are an image, and every name is a function in it.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{
    CUdevice, CUfunction, CUfunction_attribute as Attribute,
    CUfunctionLoadingState as LoadingState, CUjit_option, CUkernel, CUlibrary, CUlibraryOption,
    CUmodule, CUmoduleLoadingMode, CUresult as Code,
};

use crate::entry::{Outcome, export, put};
use crate::stream::capture;
use crate::table::{Table, handle, pointer};
use crate::{context, device};

/// An image on one device.
#[derive(Debug)]
pub(crate) struct Module {
    device: usize,
    functions: Mutex<HashMap<CString, u64>>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub device: usize,
    pub name: CString,
    /// Dynamic shared memory that it may have.
    pub shared: AtomicUsize,
    module: u64,
    loaded: AtomicBool,
}

/// An image on whichever device it is needed.
#[derive(Debug, Default)]
pub(crate) struct Library {
    kernels: Mutex<HashMap<CString, u64>>,
    /// By device.
    modules: Mutex<HashMap<usize, u64>>,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    library: u64,
    name: CString,
}

pub(crate) static MODULES: Table<Module> = Table::new();
pub(crate) static FUNCTIONS: Table<Function> = Table::new();
pub(crate) static LIBRARIES: Table<Library> = Table::new();
static KERNELS: Table<Kernel> = Table::new();

fn name(text: *const c_char) -> Outcome<CString> {
    if text.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller vouches for a C string that lives during the call.
    Ok(unsafe { CStr::from_ptr(text) }.to_owned())
}

fn load(module: *mut CUmodule, image: *const c_void) -> Outcome {
    let device = context::current()?;
    capture::unsafe_call()?;
    if image.is_null() || module.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    put!(module, pointer(MODULES.add(Module { device, functions: Mutex::default() }.into())));
    Ok(())
}

fn unload(module: u64) -> Outcome {
    for function in MODULES.remove(module)?.functions.lock().values() {
        FUNCTIONS.remove(*function)?;
    }
    Ok(())
}

fn function(module: u64, name: CString) -> Outcome<u64> {
    let found = MODULES.get(module)?;
    let mut functions = found.functions.lock();
    Ok(*functions.entry(name.clone()).or_insert_with(|| {
        let (shared, loaded) = (AtomicUsize::new(device::SHARED_DEFAULT), AtomicBool::new(false));
        FUNCTIONS.add(Arc::new(Function { device: found.device, name, shared, module, loaded }))
    }))
}

/// The module of a library on the current device.
fn module_of(library: u64) -> Outcome<u64> {
    let (found, device) = (LIBRARIES.get(library)?, context::current()?);
    let mut modules = found.modules.lock();
    Ok(*modules
        .entry(device)
        .or_insert_with(|| MODULES.add(Module { device, functions: Mutex::default() }.into())))
}

fn attribute(function: &Function, which: Attribute) -> Outcome<c_int> {
    let small = |size: usize| c_int::try_from(size).unwrap_or(c_int::MAX);
    Ok(match which {
        Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => small(device::THREADS_BLOCK),
        Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
        Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION | Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => {
            90
        }
        Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            small(function.shared.load(Ordering::Relaxed))
        }
        Attribute(other) if other < Attribute::CU_FUNC_ATTRIBUTE_MAX.0 => 0,
        _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
    })
}

fn set_attribute(function: &Function, which: Attribute, value: c_int) -> Outcome {
    let value = usize::try_from(value).map_err(|_| Code::CUDA_ERROR_INVALID_VALUE)?;
    if which == Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
        if value > device::SHARED_BLOCK {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        function.shared.store(value, Ordering::Relaxed);
    }
    Ok(())
}

export! {
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) {
        load(module, image)?;
    }

    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        _count: c_uint,
        _options: *mut CUjit_option,
        _values: *mut *mut c_void,
    ) {
        load(module, image)?;
    }

    fn cuModuleUnload(module: CUmodule) {
        unload(handle(module))?;
    }

    fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) {
        put!(mode, CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING);
    }

    fn cuModuleGetFunction(found: *mut CUfunction, module: CUmodule, text: *const c_char) {
        put!(found, pointer(function(handle(module), name(text)?)?));
    }

    fn cuFuncGetAttribute(value: *mut c_int, which: Attribute, of: CUfunction) {
        let of = FUNCTIONS.get(handle(of))?;
        of.loaded.store(true, Ordering::Relaxed);
        put!(value, attribute(&of, which)?);
    }

    fn cuFuncSetAttribute(of: CUfunction, which: Attribute, value: c_int) {
        set_attribute(&*FUNCTIONS.get(handle(of))?, which, value)?;
    }

    fn cuFuncGetModule(module: *mut CUmodule, of: CUfunction) {
        put!(module, pointer(FUNCTIONS.get(handle(of))?.module));
    }

    /// The name lives as long as the function.
    fn cuFuncGetName(text: *mut *const c_char, of: CUfunction) {
        put!(text, FUNCTIONS.get(handle(of))?.name.as_ptr());
    }

    fn cuFuncIsLoaded(state: *mut LoadingState, of: CUfunction) {
        put!(state, if FUNCTIONS.get(handle(of))?.loaded.load(Ordering::Relaxed) {
            LoadingState::CU_FUNCTION_LOADING_STATE_LOADED
        } else {
            LoadingState::CU_FUNCTION_LOADING_STATE_UNLOADED
        });
    }

    fn cuFuncLoad(of: CUfunction) {
        FUNCTIONS.get(handle(of))?.loaded.store(true, Ordering::Relaxed);
    }

    fn cuLibraryLoadData(
        library: *mut CUlibrary,
        image: *const c_void,
        _options: *mut CUjit_option,
        _values: *mut *mut c_void,
        _count: c_uint,
        _library_options: *mut CUlibraryOption,
        _library_values: *mut *mut c_void,
        _library_count: c_uint,
    ) {
        capture::unsafe_call()?;
        if image.is_null() || library.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(library, pointer(LIBRARIES.add(Arc::default())));
    }

    fn cuLibraryUnload(library: CUlibrary) {
        let gone = LIBRARIES.remove(handle(library))?;
        for kernel in gone.kernels.lock().values() {
            KERNELS.remove(*kernel)?;
        }
        for module in gone.modules.lock().values() {
            unload(*module)?;
        }
    }

    fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, text: *const c_char) {
        let (library, name) = (handle(library), name(text)?);
        let found = LIBRARIES.get(library)?;
        let mut kernels = found.kernels.lock();
        let known = *kernels
            .entry(name.clone())
            .or_insert_with(|| KERNELS.add(Kernel { library, name }.into()));
        put!(kernel, pointer(known));
    }

    fn cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary) {
        put!(module, pointer(module_of(handle(library))?));
    }

    fn cuKernelGetFunction(found: *mut CUfunction, kernel: CUkernel) {
        let kernel = KERNELS.get(handle(kernel))?;
        put!(found, pointer(function(module_of(kernel.library)?, kernel.name.clone())?));
    }

    fn cuKernelGetAttribute(value: *mut c_int, which: Attribute, kernel: CUkernel, dev: CUdevice) {
        device::of(dev)?;
        let kernel = KERNELS.get(handle(kernel))?;
        let of = function(module_of(kernel.library)?, kernel.name.clone())?;
        put!(value, attribute(&*FUNCTIONS.get(of)?, which)?);
    }

    fn cuKernelSetAttribute(which: Attribute, value: c_int, kernel: CUkernel, dev: CUdevice) {
        device::of(dev)?;
        let kernel = KERNELS.get(handle(kernel))?;
        let of = function(module_of(kernel.library)?, kernel.name.clone())?;
        set_attribute(&*FUNCTIONS.get(of)?, which, value)?;
    }
}
