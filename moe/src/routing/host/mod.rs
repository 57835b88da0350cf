//! Routed rows on a CPU.
#![allow(unsafe_code, reason = "kernels: read their argument blocks")]

pub(crate) mod combine;
pub(crate) mod dispatch;
mod select;

use symmem_hal::LaunchContext;
use symmem_sync::host::Ended;

use crate::host::{Lane, kernel};
use crate::routing::plan::OnHost;

pub(crate) unsafe fn dispatch(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are an `OnHost` of a `DispatchPlan` (KERNELS).
    unsafe { routed(context, args, dispatch::dispatch) }
}

pub(crate) unsafe fn combine(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: this kernel's arguments are an `OnHost` of a `CombinePlan` (KERNELS).
    unsafe { routed(context, args, combine::combine) }
}

/// # Safety
///
/// As for [`HostFn`](symmem_hal::HostFn), of a kernel that takes an [`OnHost`] of this plan.
pub(crate) unsafe fn routed<P: core::fmt::Debug>(
    context: &LaunchContext<'_>,
    args: *const u8,
    body: fn(&Lane<'_>, &P) -> Result<(), Ended>,
) {
    // SAFETY: the caller's promise: it outlives this call, and nobody writes it.
    let OnHost { lane, plan } = unsafe { &*args.cast::<OnHost<P>>() };
    // SAFETY: the lane's part is of the operation that this kernel was launched for.
    unsafe { kernel(context, *lane, plan, body) }
}
