//! Compilation with NVRTC, which is loaded at the first one.
//!
//! Unsafe is allowed here because NVRTC is a C library.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use std::ffi::CString;

use symmem_sys::nvrtc::Nvrtc;
use symmem_sys::nvrtc::bindings::{nvrtcProgram, nvrtcResult};
use symmem_sys::{MissingSymbol, NotFound};

use super::arch::{Arch, Target};
use super::sources::{OPTIONS, Unit};
use crate::fault::{Fault, Kind};

/// Why NVRTC made no code.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// It is not on this machine.
    #[error("{0:#}")]
    NotFound(#[from] NotFound),
    /// It lacks a function.
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    /// It knows later architectures only.
    #[error("the NVRTC found compiles for {known:?}, not for {arch}: install one that does")]
    Arch {
        /// What was to be compiled for.
        arch: Arch,
        /// Numbers of the architectures it knows.
        known: Vec<u32>,
    },
    /// It does not accept the source.
    #[error("NVRTC refuses {unit} for {arch}:\n{log}")]
    Source {
        /// The unit.
        unit: String,
        /// What was to be compiled for.
        arch: Arch,
        /// What it says.
        log: String,
    },
    /// One of its functions failed.
    #[error("{call} failed: {text} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: u32,
        /// What that is.
        text: String,
    },
    /// A source, name or definition has a zero byte, which ends a text in C.
    #[error("{unit} has a zero byte in its sources or definitions")]
    Zero {
        /// The unit.
        unit: String,
    },
}

impl Fault for CompileError {
    fn kind(&self) -> Kind {
        Kind::Unsupported
    }
}

/// Code that NVRTC made.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// A cubin, or PTX with its final zero: what a driver loads.
    pub code: Vec<u8>,
    /// Which of them, and of what architecture.
    pub target: Target,
}

/// Compiles a unit for devices of an architecture with the NVRTC that is found, whatever is cached.
///
/// # Errors
///
/// [`CompileError`], with NVRTC's log where it refuses the source.
pub fn compile(unit: &Unit<'_>, arch: Arch) -> Result<Compiled, CompileError> {
    let nvrtc = Nvrtc::get()?;
    let known = architectures(nvrtc)?;
    let target = Target::choose(arch, &known).ok_or(CompileError::Arch { arch, known })?;
    let program = Program::new(nvrtc, unit)?;
    if !program.compile(unit, target)? {
        let log = program.log()?;
        return Err(CompileError::Source { unit: unit.to_string(), arch, log });
    }
    let code = match target {
        Target::Binary(_) => program.binary()?,
        Target::Portable(_) => program.portable()?,
    };
    Ok(Compiled { code, target })
}

fn architectures(nvrtc: &Nvrtc) -> Result<Vec<u32>, CompileError> {
    let mut count: c_int = 0;
    // SAFETY: the function writes one int, to where a live variable is.
    let result = unsafe { (nvrtc.nvrtcGetNumSupportedArchs()?)(&raw mut count) };
    check(nvrtc, "nvrtcGetNumSupportedArchs", result)?;
    let mut known: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the function writes as many ints as it told just now, and the vector has them.
    let result = unsafe { (nvrtc.nvrtcGetSupportedArchs()?)(known.as_mut_ptr()) };
    check(nvrtc, "nvrtcGetSupportedArchs", result)?;
    Ok(known.into_iter().filter_map(|number| number.try_into().ok()).collect())
}

/// A source that NVRTC has read.
struct Program<'n> {
    nvrtc: &'n Nvrtc,
    program: nvrtcProgram,
}

impl<'n> Program<'n> {
    fn new(nvrtc: &'n Nvrtc, unit: &Unit<'_>) -> Result<Self, CompileError> {
        let (name, text) = unit.source.file;
        let (name, text) = (text_of(unit, name)?, text_of(unit, text)?);
        let headers = unit.source.headers;
        let names = texts_of(unit, headers.iter().map(|(name, _)| *name))?;
        let texts = texts_of(unit, headers.iter().map(|(_, text)| *text))?;
        let (names, texts) = (pointers(&names), pointers(&texts));
        let mut program = ptr::null_mut();
        // SAFETY: every text ends in a zero byte and lives until the call returns, which copies
        // them; both arrays are as long as the count says; the handle is written to a variable.
        let result = unsafe {
            (nvrtc.nvrtcCreateProgram()?)(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                length(&texts),
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        check(nvrtc, "nvrtcCreateProgram", result)?;
        Ok(Program { nvrtc, program })
    }

    /// Whether the source was accepted.
    fn compile(&self, unit: &Unit<'_>, target: Target) -> Result<bool, CompileError> {
        let fixed = OPTIONS.iter().map(|option| (*option).to_owned());
        let defines = unit.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
        let options: Vec<String> = fixed.chain([target.option()]).chain(defines).collect();
        let options = texts_of(unit, options.iter().map(String::as_str))?;
        let options = pointers(&options);
        // SAFETY: the program is live until self is dropped; the options are zero-terminated, live
        // until the call returns, and as many as the count says.
        let result = unsafe {
            (self.nvrtc.nvrtcCompileProgram()?)(self.program, length(&options), options.as_ptr())
        };
        if result == nvrtcResult::NVRTC_ERROR_COMPILATION {
            return Ok(false);
        }
        check(self.nvrtc, "nvrtcCompileProgram", result)?;
        Ok(true)
    }

    fn binary(&self) -> Result<Vec<u8>, CompileError> {
        let functions = (self.nvrtc.nvrtcGetCUBINSize()?, self.nvrtc.nvrtcGetCUBIN()?);
        // SAFETY: the two are a function that tells a size and one that writes so many bytes.
        unsafe { self.output(["nvrtcGetCUBINSize", "nvrtcGetCUBIN"], functions) }
    }

    fn portable(&self) -> Result<Vec<u8>, CompileError> {
        let functions = (self.nvrtc.nvrtcGetPTXSize()?, self.nvrtc.nvrtcGetPTX()?);
        // SAFETY: the two are a function that tells a size and one that writes so many bytes.
        unsafe { self.output(["nvrtcGetPTXSize", "nvrtcGetPTX"], functions) }
    }

    fn log(&self) -> Result<String, CompileError> {
        let functions = (self.nvrtc.nvrtcGetProgramLogSize()?, self.nvrtc.nvrtcGetProgramLog()?);
        // SAFETY: the two are a function that tells a size and one that writes so many bytes.
        let log =
            unsafe { self.output(["nvrtcGetProgramLogSize", "nvrtcGetProgramLog"], functions) };
        let log = String::from_utf8_lossy(&log?).into_owned();
        Ok(log.trim_end_matches(['\0', '\n']).to_owned())
    }

    /// # Safety
    ///
    /// The first function tells how many bytes the second writes.
    unsafe fn output(
        &self,
        names: [&'static str; 2],
        (size, get): (
            unsafe extern "C" fn(nvrtcProgram, *mut usize) -> nvrtcResult,
            unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
        ),
    ) -> Result<Vec<u8>, CompileError> {
        let mut bytes = 0;
        // SAFETY: the program is live until self is dropped; the size is written to a variable.
        check(self.nvrtc, names[0], unsafe { size(self.program, &raw mut bytes) })?;
        let mut output = vec![0u8; bytes];
        // SAFETY: the program is live, and the vector has the bytes that the caller says are
        // written.
        check(self.nvrtc, names[1], unsafe { get(self.program, output.as_mut_ptr().cast()) })?;
        Ok(output)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // A release without this function could not be cleaned up after: then it leaks.
        if let Ok(destroy) = self.nvrtc.nvrtcDestroyProgram() {
            // SAFETY: the program was created and is destroyed once, here. It fails for what is no
            // program only.
            let _ = unsafe { destroy(&raw mut self.program) };
        }
    }
}

fn check(nvrtc: &Nvrtc, call: &'static str, result: nvrtcResult) -> Result<(), CompileError> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    let text = nvrtc.nvrtcGetErrorString().map_or_else(
        |missing| missing.to_string(),
        |error_string| {
            // SAFETY: the function takes any value, and returns a constant, zero-terminated text.
            let text = unsafe { CStr::from_ptr(error_string(result)) };
            text.to_string_lossy().into_owned()
        },
    );
    Err(CompileError::Call { call, code: result.0, text })
}

fn text_of(unit: &Unit<'_>, text: &str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|_| CompileError::Zero { unit: unit.to_string() })
}

fn texts_of<'t>(
    unit: &Unit<'_>,
    texts: impl Iterator<Item = &'t str>,
) -> Result<Vec<CString>, CompileError> {
    texts.map(|text| text_of(unit, text)).collect()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn length<T>(list: &[T]) -> c_int {
    // Headers and options are counted in tens.
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}
