//! Handles that travel to other processes: descriptors, fabric handles, legacy ones.
//!
//! A fabric or legacy handle names a process and a descriptor of it, and ends with them, as the real
//! ones end with the memory.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::process;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fstat, open};
use symmem_sys::cuda::bindings::{
    CUdeviceptr, CUipcMemHandle, CUmemAllocationHandleType as HandleType,
    CUmemGenericAllocationHandle, CUresult as Code,
};

use super::physical::{self, Allocation, Physical, duplicate, name_of};
use super::space::{self, Backing};
use crate::context;
use crate::entry::{Outcome, export, fetch, put};
use crate::multicast::Object;
use crate::stream::{self, capture};

/// 64 bytes that name an open file of some process of this machine.
#[derive(Clone, Copy, Debug)]
struct Reference {
    process: u64,
    descriptor: u64,
    inode: u64,
    bytes: u64,
}

impl Reference {
    fn to(file: BorrowedFd<'_>, bytes: u64) -> Outcome<Self> {
        let status = fstat(file).map_err(|_| Code::CUDA_ERROR_OPERATING_SYSTEM)?;
        Ok(Reference {
            process: u64::from(process::id()),
            descriptor: u64::try_from(file.as_raw_fd()).unwrap_or(0),
            inode: status.st_ino,
            bytes,
        })
    }

    fn encode(self) -> [c_char; 64] {
        let mut words = [0; 8];
        words[..4].copy_from_slice(&[self.process, self.descriptor, self.inode, self.bytes]);
        let mut encoded = [0; 64];
        let bytes = words.iter().flat_map(|word: &u64| word.to_le_bytes());
        encoded.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte.cast_signed());
        encoded
    }

    fn decode(encoded: [c_char; 64]) -> Self {
        let word = |index: usize| {
            let bytes = &encoded[index * 8..][..8];
            bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte.cast_unsigned()))
        };
        Reference { process: word(0), descriptor: word(1), inode: word(2), bytes: word(3) }
    }

    /// Opens the file, if that process still has it.
    fn resolve(self) -> Outcome<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let gone = |_| Code::CUDA_ERROR_INVALID_VALUE;
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(gone)?;
        let same = fstat(&file).map_err(gone)?.st_ino == self.inode;
        if same { Ok(file) } else { Err(Code::CUDA_ERROR_INVALID_VALUE) }
    }
}

fn import(file: OwnedFd) -> Outcome<Allocation> {
    let name = name_of(file.as_fd()).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    if name.starts_with("multicast:") {
        return Ok(Allocation::Multicast(Object::import(file)?.into()));
    }
    Ok(Allocation::Memory(Physical::import(file)?.into()))
}

export! {
    fn cuMemExportToShareableHandle(
        shareable: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: HandleType,
        flags: u64,
    ) {
        let allocation = physical::held(handle)?;
        let (types, file, bytes) = match &allocation {
            Allocation::Memory(physical) => {
                (physical.identity.types, physical.file.as_fd(), physical.bytes)
            }
            Allocation::Multicast(object) => (object.types(), object.file.as_fd(), object.bytes),
        };
        if flags != 0 || types & kind.0 == 0 || kind.0.count_ones() != 1 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if kind == HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            let descriptor = duplicate(file)?;
            if shareable.is_null() {
                return Err(Code::CUDA_ERROR_INVALID_VALUE);
            }
            put!(shareable.cast::<c_int>(), descriptor.into_raw_fd());
        } else {
            put!(shareable.cast::<[c_char; 64]>(), Reference::to(file, bytes)?.encode());
        }
    }

    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle,
        shareable: *mut c_void,
        kind: HandleType,
    ) {
        let file = match kind {
            HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
                let descriptor = c_int::try_from(shareable.addr())
                    .ok()
                    .filter(|descriptor| *descriptor >= 0)
                    .ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
                // SAFETY: the caller vouches for an open descriptor during the call; it stays the
                // caller's.
                duplicate(unsafe { BorrowedFd::borrow_raw(descriptor) })?
            }
            HandleType::CU_MEM_HANDLE_TYPE_FABRIC => {
                super::vmm::exportable(kind.0)?;
                Reference::decode(fetch!(shareable.cast::<[c_char; 64]>())).resolve()?
            }
            _ => return Err(Code::CUDA_ERROR_NOT_SUPPORTED),
        };
        if handle.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(handle, physical::hold(import(file)?));
    }

    /// Plain memory only: what is mapped by virtual memory management has no such handle.
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) {
        context::current()?;
        let space = space::read();
        let mapping = space.find(address).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let Backing::Plain(physical) = &mapping.backing else {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        };
        let reference = Reference::to(physical.file.as_fd(), mapping.bytes)?;
        put!(handle, CUipcMemHandle { reserved: reference.encode() });
    }

    fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        let device = context::current()?;
        capture::unsafe_call()?;
        let reference = Reference::decode(handle.reserved);
        if flags > 1 || address.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if reference.process == u64::from(process::id()) {
            return Err(Code::CUDA_ERROR_INVALID_CONTEXT);
        }
        let physical = Arc::new(Physical::import(reference.resolve()?)?);
        if !physical.in_reach_of(device) {
            return Err(Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let mut space = space::write();
        let base = space.take(physical.bytes, 0)?;
        space.show(base, physical.bytes, &physical)?;
        space.insert(base, reference.bytes.min(physical.bytes), Backing::Ipc(physical), 0);
        put!(address, base);
    }

    fn cuIpcCloseMemHandle(base: CUdeviceptr) {
        context::current()?;
        capture::unsafe_call()?;
        stream::finish_all()?;
        let mut space = space::write();
        let imported = |mapping: &space::Mapping| match &mapping.backing {
            Backing::Ipc(physical) => Some(physical.bytes),
            _ => None,
        };
        let bytes = space.at(base).and_then(imported).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        space.remove(base);
        space.hide(base, bytes);
    }
}
