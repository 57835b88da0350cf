//! The driver's calls: what they return, and in which context and mode the calling thread makes
//! them.
#![allow(unsafe_code, reason = "calls the driver")]

use core::ffi::{CStr, c_char};
use std::sync::OnceLock;

use symmem_sys::MissingSymbol;
use symmem_sys::cuda::Driver;
use symmem_sys::cuda::bindings::{CUresult, CUstreamCaptureMode_enum};

use super::context::Context;
use crate::DeviceError;
use crate::capture::CaptureError;
use crate::driver::DriverError;
use crate::fault::Kind;
use crate::health::SyncError;

/// Who calls the driver, and hears of its errors.
pub(super) trait Caller {
    fn table(&self) -> &'static Driver;
    fn failed(&self, call: &'static str, status: CUresult) -> DriverError;
}

/// Calls a function of the driver for a [`Caller`], inside an `unsafe` block: `Ok`, or what it said.
macro_rules! cu {
    ($caller:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $crate::cuda::driver::Caller::table($caller).$function() {
            Ok(function) => match function($($argument),*) {
                ::symmem_sys::cuda::bindings::CUresult::CUDA_SUCCESS => Ok(()),
                status => Err($crate::cuda::driver::Caller::failed(
                    $caller,
                    stringify!($function),
                    status,
                )),
            },
            Err(missing) => {
                Err($crate::cuda::driver::absent(stringify!($function), &missing))
            }
        }
    };
}
pub(super) use cu;

impl Caller for &'static Driver {
    fn table(&self) -> &'static Driver {
        self
    }

    fn failed(&self, call: &'static str, status: CUresult) -> DriverError {
        error(self, call, status)
    }
}

/// The driver, found and initialised; the first outcome is that of all calls.
pub(super) fn driver() -> Result<&'static Driver, DeviceError> {
    static STARTED: OnceLock<Result<(), DriverError>> = OnceLock::new();
    let driver = Driver::get().map_err(DeviceError::NotFound)?;
    // SAFETY: takes no pointer, and may be called at any time and more than once.
    STARTED.get_or_init(|| unsafe { cu!(&driver, cuInit(0)) }).clone()?;
    Ok(driver)
}

/// What a function that this release of the driver lacks counts as.
#[cold]
pub(super) fn absent(call: &'static str, missing: &MissingSymbol) -> DriverError {
    let code = CUresult::CUDA_ERROR_NOT_FOUND.0;
    let name = "CUDA_ERROR_NOT_FOUND".to_owned();
    DriverError::new(call, code, name, missing.to_string(), Kind::Unsupported)
}

/// What it counts as to ask for more than there are addresses.
#[cold]
pub(super) fn too_large(call: &'static str) -> DriverError {
    let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let text = "more than there are addresses, so the driver was not asked".to_owned();
    DriverError::new(call, code.0, "CUDA_ERROR_OUT_OF_MEMORY".to_owned(), text, kind(code))
}

/// A status that is no success, in the driver's words.
#[cold]
pub(super) fn error(driver: &Driver, call: &'static str, status: CUresult) -> DriverError {
    let name = told(status, driver.cuGetErrorName()).unwrap_or_else(|| "unknown".to_owned());
    let text = told(status, driver.cuGetErrorString())
        .unwrap_or_else(|| "the driver has no words for it".to_owned());
    DriverError::new(call, status.0, name, text, kind(status))
}

type Tell = unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;

fn told(status: CUresult, tell: Result<Tell, MissingSymbol>) -> Option<String> {
    let mut text = core::ptr::null();
    // SAFETY: writes one pointer; it points to a constant string of the driver, which is never
    // unloaded, or stays null for a status that it does not know.
    let text = unsafe {
        let known = tell.ok()?(status, &raw mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
        known.then(|| CStr::from_ptr(text))?
    };
    Some(text.to_string_lossy().into_owned())
}

fn kind(status: CUresult) -> Kind {
    match status {
        CUresult::CUDA_ERROR_INVALID_VALUE => Kind::InvalidArgument,
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
        | CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | CUresult::CUDA_ERROR_TOO_MANY_PEERS => Kind::Exhausted,
        CUresult::CUDA_ERROR_NO_DEVICE
        | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
        | CUresult::CUDA_ERROR_NOT_PERMITTED
        | CUresult::CUDA_ERROR_NOT_SUPPORTED
        | CUresult::CUDA_ERROR_SYSTEM_NOT_READY => Kind::Unsupported,
        _ => Kind::Device,
    }
}

/// Whether every later call of the context fails with this status too: what it held is lost, and
/// there is nothing left to tidy up.
pub(super) fn is_sticky(status: CUresult) -> bool {
    matches!(
        status,
        CUresult::CUDA_ERROR_NOT_INITIALIZED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
    )
}

/// What a refusal means for a stream that may be in a capture.
pub(super) fn refusal(error: DriverError) -> SyncError {
    match captured(&error) {
        Some(capture) => capture.into(),
        None => error.into(),
    }
}

/// The error of a capture that a driver's error stands for.
pub(super) fn captured(error: &DriverError) -> Option<CaptureError> {
    Some(match CUresult(error.code()) {
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
            CaptureError::NotCapturable { call: error.call() }
        }
        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => CaptureError::Invalidated,
        CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => CaptureError::Isolation,
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => CaptureError::NotOrigin,
        CUresult::CUDA_ERROR_CAPTURED_EVENT => CaptureError::Ended,
        _ => return None,
    })
}

/// While it lives, the calling thread's calls are of one context. They leave no trace: the context
/// that was current before is again.
#[must_use]
pub(super) struct Entered {
    context: &'static Context,
    /// What was current, if it was another.
    previous: Option<symmem_sys::cuda::bindings::CUcontext>,
    /// The thread's mode of captures, if it was changed.
    mode: Option<CUstreamCaptureMode_enum>,
}

impl Entered {
    pub(super) fn new(context: &'static Context, relaxed: bool) -> Result<Self, DriverError> {
        let mut current = core::ptr::null_mut();
        let wanted = context.raw();
        let mut entered = Entered { context, previous: None, mode: None };
        // SAFETY: writes one handle.
        unsafe { cu!(context, cuCtxGetCurrent(&raw mut current)) }?;
        if current != wanted {
            // SAFETY: the primary context is retained until the process ends.
            unsafe { cu!(context, cuCtxSetCurrent(wanted)) }?;
            entered.previous = Some(current);
        }
        if relaxed {
            let mut mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: swaps one word.
            unsafe { cu!(context, cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
            entered.mode = Some(mode);
        }
        Ok(entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let context = self.context;
        if let Some(mut mode) = self.mode {
            // SAFETY: swaps one word.
            let swapped = unsafe { cu!(context, cuThreadExchangeStreamCaptureMode(&raw mut mode)) };
            context.complain("restoring a thread's capture mode", swapped);
        }
        if let Some(previous) = self.previous {
            // SAFETY: it was current when this was made, and whoever made it so has not been able to
            // destroy it on this thread since.
            let restored = unsafe { cu!(context, cuCtxSetCurrent(previous)) };
            context.complain("restoring a thread's context", restored);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::fault::Fault as _;

    fn of(status: CUresult) -> DriverError {
        DriverError::new("cuCall", status.0, "NAME".into(), "text".into(), kind(status))
    }

    #[test]
    fn an_error_says_call_name_code_and_text() {
        let error = of(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(error.to_string(), "cuCall: NAME (700): text");
        assert_eq!(error.kind(), Kind::Device);
    }

    #[test]
    fn kinds_tell_what_to_do() {
        let kinds = [
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, Kind::Exhausted),
            (CUresult::CUDA_ERROR_INVALID_VALUE, Kind::InvalidArgument),
            (CUresult::CUDA_ERROR_NOT_PERMITTED, Kind::Unsupported),
            (CUresult::CUDA_ERROR_LAUNCH_FAILED, Kind::Device),
            (CUresult(123_456), Kind::Device),
        ];
        for (status, expected) in kinds {
            assert_eq!(of(status).kind(), expected, "{status:?}");
        }
    }

    #[test]
    fn only_errors_of_a_lost_context_are_sticky() {
        let lost = [700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 214, 220, 226, 3, 4];
        assert!(lost.into_iter().all(|code| is_sticky(CUresult(code))));
        let passing = [0, 1, 2, 100, 400, 500, 600, 701, 720, 800, 801, 900, 907, 999];
        assert!(!passing.into_iter().any(|code| is_sticky(CUresult(code))));
    }

    #[test]
    fn errors_of_captures_are_told_apart() {
        let expected = [
            (900, Some(CaptureError::NotCapturable { call: "cuCall" })),
            (901, Some(CaptureError::Invalidated)),
            (902, Some(CaptureError::Isolation)),
            (903, Some(CaptureError::NotOrigin)),
            (905, Some(CaptureError::Isolation)),
            (906, Some(CaptureError::NotCapturable { call: "cuCall" })),
            (907, Some(CaptureError::Ended)),
            (908, Some(CaptureError::NotOrigin)),
            (700, None),
        ];
        for (code, capture) in expected {
            assert_eq!(captured(&of(CUresult(code))), capture, "{code}");
        }
    }
}
