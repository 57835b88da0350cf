//! Memory that somebody else allocated, and CUDA's older handles for it.
//!
//! Such memory may be mapped by page tables too, and then leaves by a descriptor like our own. Only
//! what is not, leaves by a handle of the older sort: a peer that maps one loses the memory when its
//! owner dies, which [`Memory::survives_peer_loss`](crate::Memory::survives_peer_loss) tells.
#![allow(unsafe_code, reason = "calls the driver")]

use core::ffi::c_int;

use symmem_sys::cuda::bindings::{
    CUipcMem_flags_enum, CUipcMemHandle, CUmemAllocationHandleType_enum as HandleType,
    CUpointer_attribute_enum as Question,
};

use super::context::Context;
use super::driver::cu;
use super::virtual_memory::{self, Physical, behind};
use crate::driver::DriverError;
use crate::memory::{ExportError, Shareable};
use crate::types::Bytes;

/// What `cuPointerGetAttribute` calls the memory of a device.
const DEVICE_MEMORY: c_int = 2;

/// How foreign memory leaves this process.
#[derive(Debug)]
pub(super) enum Sort {
    /// By one of these, since it is all of a mapped allocation.
    Mapped(Physical, HandleType),
    /// By a handle of the older sort.
    Legacy {
        /// Where in its allocation it begins.
        offset: Bytes,
    },
    /// Not at all.
    Fixed(&'static str),
}

/// What the driver knows of an address.
fn ask(context: &Context, question: Question, address: u64) -> Option<c_int> {
    let mut answer: c_int = 0;
    let out = (&raw mut answer).cast();
    // SAFETY: each question used here is answered by an int, or by a byte where it is yes or no; the
    // address is only looked up.
    unsafe { cu!(context, cuPointerGetAttribute(out, question, address)) }.ok()?;
    Some(answer)
}

/// Whether an address is in the memory of this context's device.
pub(super) fn is_of(context: &Context, address: u64) -> bool {
    let sort = ask(context, Question::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    let device = ask(context, Question::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    sort == Some(DEVICE_MEMORY) && device == Some(context.device)
}

impl Sort {
    /// Asks what `bytes` of foreign memory are. The context is current.
    pub(super) fn of(context: &'static Context, address: u64, bytes: Bytes) -> Self {
        let (mut base, mut size) = (0, 0);
        let (first, length) = (&raw mut base, &raw mut size);
        // SAFETY: writes an address and a size; the address is only looked up.
        if unsafe { cu!(context, cuMemGetAddressRange_v2(first, length, address)) }.is_err() {
            return Sort::Fixed("the driver does not know its allocation");
        }
        let offset = address - base;
        match behind(context, address) {
            Some((_, HandleType(0))) => Sort::Fixed(virtual_memory::NO_HANDLES),
            Some((physical, handles)) => {
                if offset == 0 && bytes.0 <= size as u64 {
                    Sort::Mapped(physical, handles)
                } else {
                    Sort::Fixed("it is not the beginning of one mapped allocation")
                }
            }
            None => {
                let able = Question::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
                match ask(context, able, address) {
                    Some(able) if able != 0 => Sort::Legacy { offset: Bytes(offset) },
                    _ => Sort::Fixed("it comes from an allocator whose memory cannot be shared"),
                }
            }
        }
    }

    /// Makes a handle of it.
    pub(super) fn export(
        &self,
        context: &'static Context,
        address: u64,
    ) -> Result<Shareable, ExportError> {
        match self {
            Sort::Mapped(physical, handles) => virtual_memory::export(physical, *handles),
            Sort::Legacy { offset } => {
                let _entered = context.enter_aside()?;
                let mut handle = CUipcMemHandle::default();
                // SAFETY: writes one handle; whoever gave the memory keeps it allocated.
                unsafe { cu!(context, cuIpcGetMemHandle(&raw mut handle, address)) }?;
                let handle = bytemuck::cast(handle.reserved);
                Ok(Shareable::Ipc { handle, offset: *offset })
            }
            Sort::Fixed(reason) => Err(ExportError::NotShareable { reason }),
        }
    }
}

/// A peer's allocation, opened by an older handle; closed when dropped.
#[derive(Debug)]
pub(super) struct Opened {
    context: &'static Context,
    base: u64,
}

impl Opened {
    pub(super) fn open(context: &'static Context, handle: &[u8; 64]) -> Result<Self, DriverError> {
        let _entered = context.enter_aside()?;
        let handle = CUipcMemHandle { reserved: bytemuck::cast(*handle) };
        let flags = CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        let mut base = 0;
        // SAFETY: writes one address; bytes that are no handle are refused.
        unsafe { cu!(context, cuIpcOpenMemHandle_v2(&raw mut base, handle, flags)) }?;
        Ok(Opened { context, base })
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of the allocation.
    pub(super) fn size(&self) -> Result<u64, DriverError> {
        let _entered = self.context.enter_aside()?;
        let (mut base, mut size) = (0, 0);
        let (first, length) = (&raw mut base, &raw mut size);
        // SAFETY: writes an address and a size.
        unsafe { cu!(self.context, cuMemGetAddressRange_v2(first, length, self.base)) }?;
        Ok(size as u64)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let context = self.context;
        if context.can_tidy() {
            let closed = context.enter_aside().and_then(|_entered| {
                // SAFETY: opened here once; whoever used it kept this alive.
                unsafe { cu!(context, cuIpcCloseMemHandle(self.base)) }
            });
            context.complain("closing a peer's memory", closed);
        }
    }
}
