//! How every function of the driver begins: it is counted, may be told to fail, and refuses what the
//! real one refuses everywhere.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use symmem_sys::cuda::bindings::CUresult as Code;

use crate::{context, counts, faults};

/// What a function's body says; an error becomes the code that the caller sees.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

pub(crate) static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread runs a callback, in which the driver may not be called.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a callback of the user's with calls to the driver forbidden, as the real one does.
pub(crate) fn callback<R>(run: impl FnOnce() -> R) -> R {
    IN_CALLBACK.set(true);
    let result = run();
    IN_CALLBACK.set(false);
    result
}

/// Calls that tell about the library or an error: they need no `cuInit` and never fail.
const ALWAYS: &[&str] = &["cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuInit"];

/// Calls that a context which has failed for good still answers.
fn survives(call: &str) -> bool {
    ALWAYS.contains(&call)
        || call.starts_with("cuDevice")
        || call.starts_with("cuCtxGet")
        || call.starts_with("cuCtxSetCurrent")
        || call.starts_with("cuCtxPush")
        || call.starts_with("cuCtxPop")
        || call == "cuThreadExchangeStreamCaptureMode"
}

/// Calls that report the errors of what they have waited for: they wait before they fail.
fn waits(call: &str) -> bool {
    call.ends_with("Synchronize")
}

pub(crate) fn enter(call: &'static str, body: impl FnOnce() -> Outcome) -> Code {
    counts::add(call);
    let run = || {
        if !ALWAYS.contains(&call) && !INITIALISED.load(Ordering::Acquire) {
            return Err(Code::CUDA_ERROR_NOT_INITIALIZED);
        }
        if IN_CALLBACK.get() {
            return Err(Code::CUDA_ERROR_NOT_PERMITTED);
        }
        if let Some(code) = faults::injected(call) {
            counts::add_failed(call);
            if waits(call) {
                let _ = body();
            }
            return Err(code);
        }
        let broken = context::current_device().and_then(faults::sticky);
        if let Some(code) = broken.filter(|_| !survives(call)) {
            return Err(code);
        }
        body()
    };
    run().err().unwrap_or(Code::CUDA_SUCCESS)
}

/// Defines exported functions with a body that may use `?`, and checks each one's signature against
/// the declaration that was generated from the vendor's header.
macro_rules! export {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )+) => {$(
        #[doc = concat!("The driver's `", stringify!($name), "`.")]
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As the vendor's documentation of the function says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> symmem_sys::cuda::bindings::CUresult {
            $crate::entry::enter(stringify!($name), || {
                $body
                #[allow(unreachable_code, reason = "a body may end in a return")]
                Ok(())
            })
        }
        const _: symmem_sys::cuda::bindings::$name = $name;
    )+};
}

/// Writes a result through a pointer that the caller of the driver gave; null is an invalid value.
macro_rules! put {
    ($pointer:expr, $value:expr) => {{
        let (pointer, value) = ($pointer, $value);
        if pointer.is_null() {
            return Err(symmem_sys::cuda::bindings::CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller of an exported function vouches that a pointer for a result
        // is valid for a write of its type during the call.
        unsafe { pointer.write(value) }
    }};
}

/// As [`put!`], for a result that the caller may decline with a null pointer.
macro_rules! offer {
    ($pointer:expr, $value:expr) => {{
        let (pointer, value) = ($pointer, $value);
        if !pointer.is_null() {
            // SAFETY: as in `put!`.
            unsafe { pointer.write(value) }
        }
    }};
}

/// Reads an argument that the caller of the driver passed by address; null is an invalid value.
macro_rules! fetch {
    ($pointer:expr) => {{
        let pointer = $pointer;
        if pointer.is_null() {
            return Err(symmem_sys::cuda::bindings::CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller of an exported function vouches that a pointer to an argument
        // is valid for a read of its type during the call.
        unsafe { pointer.read() }
    }};
}

pub(crate) use {export, fetch, offer, put};
