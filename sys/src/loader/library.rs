//! One open library.
//!
//! Unsafe is allowed here because opening a library and resolving a symbol are calls into the
//! dynamic linker whose results the compiler cannot check.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_void};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix;

use super::search::{Candidate, candidates};
use super::{Attempt, NotFound, Place, Spec};

/// A library of the vendor, open until the process ends.
pub(crate) struct Library {
    handle: ManuallyDrop<unix::Library>,
    path: Arc<Path>,
    place: Place,
}

impl Library {
    /// Opens the first candidate of `spec` that exists and has its anchor.
    ///
    /// # Safety
    ///
    /// As [`open`](Self::open), for every candidate.
    pub unsafe fn find(
        spec: &'static Spec,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, NotFound> {
        // SAFETY: the caller vouches for every candidate.
        unsafe { Self::first_of(spec, candidates(spec, variable)) }
    }

    /// Opens `path` as the library of `spec`.
    ///
    /// # Safety
    ///
    /// Opening a library runs its initialisers, and those of the libraries it needs, before this
    /// returns: whoever names the file vouches that they are sound to run in this process, and that
    /// each exported function that a table knows has the signature of the vendor's header.
    pub unsafe fn open(spec: &'static Spec, path: &Path) -> Result<Self, NotFound> {
        let candidate = Candidate { place: Place::Given, path: path.to_owned() };
        // SAFETY: the caller vouches for the only candidate.
        unsafe { Self::first_of(spec, vec![candidate]) }
    }

    /// # Safety
    ///
    /// As [`open`](Self::open), for every candidate.
    unsafe fn first_of(spec: &'static Spec, candidates: Vec<Candidate>) -> Result<Self, NotFound> {
        let mut searched = Vec::new();
        for Candidate { place, path } in candidates {
            // SAFETY: the caller vouches for the file.
            match unsafe { open(spec, place, &path) } {
                Ok(library) => return Ok(library),
                Err(reason) => searched.push(Attempt { place, path, reason }),
            }
        }
        Err(NotFound::new(spec.name, spec.variable, searched))
    }

    /// Where the library lies, as the dynamic linker tells it.
    pub fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// The sort of place in which it was found.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The function `name`, or `None` where this release does not have it.
    ///
    /// # Safety
    ///
    /// `F` is the type of a function pointer with the signature of the exported function `name`.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: `Option<F>` is what a symbol's address is when `F` is a function pointer, null
        // included; the caller vouches for the signature. The pointer stays valid, since the
        // library is never closed.
        unsafe { self.handle.get::<Option<F>>(name).ok().and_then(|symbol| *symbol) }
    }
}

/// Opens one file and looks whether it is the library that `spec` means; else tells why not.
///
/// # Safety
///
/// As [`Library::open`].
unsafe fn open(spec: &Spec, place: Place, path: &Path) -> Result<Library, String> {
    let has_folder = path.parent().is_some_and(|folder| !folder.as_os_str().is_empty());
    if has_folder {
        // SAFETY: companions are parts of the library for which the caller vouches.
        unsafe { open_companions(spec, path) };
    }
    // SAFETY: the caller vouches for the file.
    let handle = unsafe { dlopen(path.as_os_str()) }?;
    // SAFETY: the address is only compared with null and looked up, never called or read.
    let anchor = unsafe { handle.get::<*const c_void>(spec.anchor) };
    let Some(anchor) = anchor.ok().map(|symbol| *symbol).filter(|address| !address.is_null())
    else {
        return Err(format!("opened, but it has no {}", spec.anchor));
    };
    let path =
        if has_folder { path.to_owned() } else { file_of(anchor).unwrap_or(path.to_owned()) };
    if !has_folder {
        // SAFETY: as above. The library opens its companions at first use, so now is early enough.
        unsafe { open_companions(spec, &path) };
    }
    Ok(Library { handle, path: path.into(), place })
}

/// Opens the companions in the folder of `library`, so that it later finds them open under their
/// own names, in whatever folder they are. One that cannot be opened is left for the library to
/// complain about, which knows whether it needs it.
///
/// # Safety
///
/// As [`Library::open`], for the companions.
unsafe fn open_companions(spec: &Spec, library: &Path) {
    let (Some(prefix), Some(folder)) = (spec.companion, library.parent()) else { return };
    // SONAMEs resolve by the path they were opened with: it has to be absolute.
    let Ok(folder) = fs::canonicalize(folder) else { return };
    let mut companions: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().starts_with(prefix.as_bytes()))
        .map(|entry| entry.path())
        .collect();
    companions.sort();
    for companion in companions {
        // SAFETY: the caller vouches for it.
        let _ = unsafe { dlopen(companion.as_os_str()) };
    }
}

/// Opens a file for good.
///
/// All its own references are bound at once: one that is missing is an error here and not the end
/// of the process at some later call. Its symbols stay out of the way of other libraries'.
///
/// # Safety
///
/// As [`Library::open`].
unsafe fn dlopen(name: &OsStr) -> Result<ManuallyDrop<unix::Library>, String> {
    // SAFETY: the caller vouches for the initialisers that run now; without a close there are no
    // finalisers to vouch for.
    unsafe { unix::Library::open(Some(name), unix::RTLD_NOW | unix::RTLD_LOCAL) }
        .map(ManuallyDrop::new)
        .map_err(|error| reason(&error, name))
}

/// The dynamic linker's reason, without the name that stands beside it in an [`Attempt`].
fn reason(error: &libloading::Error, name: &OsStr) -> String {
    let text = match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    };
    let tail = text.strip_prefix(&*name.to_string_lossy()).and_then(|rest| rest.strip_prefix(": "));
    tail.map_or(text.clone(), str::to_owned)
}

/// The file that holds `address`, where the dynamic linker knows.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr takes any address, and fills `info` when it returns non-zero.
    let info = unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name belongs to the dynamic linker's entry of a library that is never closed, and
    // ends in a null byte; it is copied at once.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
