//! The all-to-all of dimensions on a CPU.
#![allow(unsafe_code, reason = "a kernel: reads its argument block")]

use symmem_hal::LaunchContext;

use crate::host::{Roles, exchange, kernel};

pub(crate) unsafe fn run(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are a Plan (KERNELS).
    unsafe { kernel(context, args, |work| exchange(work, Roles::ALL)) };
}
