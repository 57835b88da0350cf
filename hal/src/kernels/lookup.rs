//! Where a unit's code comes from.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use symmem_sys::nvrtc::Nvrtc;

use super::arch::{Arch, Target};
use super::cache::Cache;
use super::compile::{CompileError, compile};
use super::sources::Unit;
use super::{Key, bundle};
use crate::LoadError;
use crate::fault::{Fault, Kind};

/// There is no code of a unit: every place was looked at.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{unit} for {arch} is not in the cache ({}), in none of {bundles} bundles, and cannot be compiled: \
     {compile}",
    .cache.as_ref().map_or("no folder for one".into(), |folder| folder.display().to_string())
)]
pub struct CodeError {
    /// The set of its source.
    pub set: &'static str,
    /// The unit.
    pub unit: String,
    /// The device's architecture.
    pub arch: Arch,
    /// The cache's folder.
    pub cache: Option<PathBuf>,
    /// How many bundles are registered.
    pub bundles: usize,
    /// Why it was not compiled.
    #[source]
    pub compile: Box<CompileError>,
}

impl Fault for CodeError {
    fn kind(&self) -> Kind {
        self.compile.kind()
    }
}

impl From<CodeError> for LoadError {
    fn from(error: CodeError) -> Self {
        let (set, arch, reason) = (error.set, error.arch.to_string(), error.to_string());
        LoadError::NoCode { set, arch, reason }
    }
}

/// Code that this process has, or is about to.
type Slot = Arc<Mutex<Option<Arc<[u8]>>>>;

static SLOTS: LazyLock<Mutex<HashMap<Key, Slot>>> = LazyLock::new(Mutex::default);

/// The code of a unit for devices of an architecture: a cubin, or PTX with its final zero where the
/// compiler does not know the architecture yet. Both are what a driver loads.
///
/// # Errors
///
/// [`CodeError`], with all places that were searched and why nothing came of each.
pub fn cubin(unit: &Unit<'_>, arch: impl Into<Arch>) -> Result<Arc<[u8]>, CodeError> {
    let key = Key { unit: unit.hash(), arch: arch.into() };
    let slot = SLOTS.lock().entry(key).or_default().clone();
    let mut slot = slot.lock();
    if let Some(code) = &*slot {
        return Ok(code.clone());
    }
    let code = search(&Cache::of_user(), unit, key)?;
    *slot = Some(code.clone());
    Ok(code)
}

/// Where code comes from that the cache does not have, for people. NVRTC is not loaded to be asked
/// while there are bundles, which make it needless.
pub(crate) fn origin() -> String {
    match bundle::registered() {
        0 => match Nvrtc::get() {
            Ok(nvrtc) => match nvrtc.version() {
                Some(version) => format!("NVRTC {version}"),
                None => "NVRTC".to_owned(),
            },
            Err(_) => "neither bundles nor NVRTC".to_owned(),
        },
        1 => "1 bundle".to_owned(),
        bundles => format!("{bundles} bundles"),
    }
}

fn search(cache: &Cache, unit: &Unit<'_>, key: Key) -> Result<Arc<[u8]>, CodeError> {
    if let Some(code) = cache.get(key) {
        tracing::debug!(%unit, arch = %key.arch, "code from the cache");
        return Ok(code.into());
    }
    if let Some(code) = bundle::find(key) {
        tracing::debug!(%unit, arch = %key.arch, "code from a bundle");
        return Ok(code);
    }
    let span = tracing::debug_span!("compile", %unit, arch = %key.arch).entered();
    let compiled = compile(unit, key.arch).map_err(|compile| CodeError {
        set: unit.source.name,
        unit: unit.to_string(),
        arch: key.arch,
        cache: cache.folder().map(Into::into),
        bundles: bundle::registered(),
        compile: compile.into(),
    })?;
    drop(span);
    // PTX is what an NVRTC that is too old for the device makes; the next one does better.
    if matches!(compiled.target, Target::Binary(_)) {
        cache.put(key, &compiled.code);
    }
    Ok(compiled.code.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

    use std::fs;
    use std::thread;

    use super::super::sources::KernelSource;
    use super::*;

    const HOPPER: Arch = Arch { major: 9, minor: 0 };

    static SCALE: KernelSource = KernelSource {
        name: "test",
        file: (
            "scale.cu",
            r#"
            #include "factor.cuh"
            struct Args { float *data; unsigned count; };
            extern "C" __global__ void scale(const __grid_constant__ Args args) {
                unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < args.count) args.data[i] = args.data[i] * FACTOR + OFFSET;
            }
            "#,
        ),
        headers: &[("factor.cuh", "#pragma once\n#define FACTOR 3.0f\n")],
    };

    /// Whether there is an NVRTC; a test that needs one says so, and passes without.
    fn compiles() -> bool {
        match symmem_sys::nvrtc::Nvrtc::get() {
            Ok(_) => true,
            Err(not_found) => {
                println!("skipped: {not_found}");
                false
            }
        }
    }

    fn unit() -> Unit<'static> {
        Unit { source: &SCALE, defines: &[("OFFSET", "1.0f")] }
    }

    fn is_elf(code: &[u8]) -> bool {
        code.starts_with(b"\x7fELF")
    }

    #[test]
    fn a_kernel_compiles_for_every_architecture() {
        if !compiles() {
            return;
        }
        for arch in [(8, 0), (9, 0), (10, 0)].map(|(major, minor)| Arch { major, minor }) {
            let compiled = compile(&unit(), arch).unwrap();
            assert!(is_elf(&compiled.code), "{arch}");
            assert!(compiled.code.windows(5).any(|name| name == b"scale"), "{arch}");
        }
        let future = compile(&unit(), Arch { major: 99, minor: 0 }).unwrap();
        assert!(matches!(future.target, Target::Portable(_)));
        let text = String::from_utf8(future.code).unwrap();
        assert!(text.contains(".visible .entry scale") && text.ends_with('\0'), "{text}");
        // One operation at a time: the sum is not fused into the product.
        assert!(text.contains("mul.rn.f32") && !text.contains("fma"), "{text}");
        let past = compile(&unit(), Arch { major: 1, minor: 0 }).unwrap_err();
        assert!(matches!(past, CompileError::Arch { .. }), "{past}");
    }

    #[test]
    fn what_the_compiler_says_is_in_the_error() {
        if !compiles() {
            return;
        }
        let undefined = Unit { source: &SCALE, defines: &[] };
        let folder = tempfile::tempdir().unwrap();
        let key = Key { unit: undefined.hash(), arch: HOPPER };
        let error = search(&Cache::at(folder.path()), &undefined, key).unwrap_err();
        let text = error.to_string();
        for part in ["test/scale.cu", "sm_90a", "OFFSET", &folder.path().display().to_string()] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_zero_byte_is_refused_before_it_cuts_the_source() {
        if !compiles() {
            return;
        }
        let cut = Unit { source: &SCALE, defines: &[("OFFSET", "1\0")] };
        assert!(matches!(compile(&cut, HOPPER), Err(CompileError::Zero { .. })));
    }

    #[test]
    fn the_cache_comes_first_and_is_filled() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let key = Key { unit: unit().hash(), arch: HOPPER };
        if compiles() {
            let code = search(&cache, &unit(), key).unwrap();
            assert!(is_elf(&code));
            assert_eq!(cache.get(key).as_deref(), Some(&*code));
        }
        cache.put(key, b"cached");
        assert_eq!(&*search(&cache, &unit(), key).unwrap(), b"cached");
    }

    #[test]
    fn a_bundle_stands_in_for_the_compiler() {
        let empty = tempfile::tempdir().unwrap();
        let bundled = Unit { source: &SCALE, defines: &[("OFFSET", "2.0f")] };
        let key = Key { unit: bundled.hash(), arch: HOPPER };
        let mut writer = bundle::BundleWriter::default();
        writer.add(&bundled, HOPPER, b"bundled".as_slice().into());
        bundle::register_bundle(writer.finish()).unwrap();
        let cache = Cache::at(empty.path());
        assert_eq!(&*search(&cache, &bundled, key).unwrap(), b"bundled");
        assert_eq!(cache.get(key), None, "what is on disk already is not copied");
        // A later one comes first.
        let mut writer = bundle::BundleWriter::default();
        writer.add(&bundled, HOPPER, b"later".as_slice().into());
        bundle::register_bundle(writer.finish()).unwrap();
        assert_eq!(&*search(&cache, &bundled, key).unwrap(), b"later");
    }

    #[test]
    fn threads_that_ask_at_once_share_one_code() {
        let shared = Unit { source: &SCALE, defines: &[("OFFSET", "3.0f")] };
        let mut writer = bundle::BundleWriter::default();
        writer.add(&shared, HOPPER, b"shared".as_slice().into());
        bundle::register_bundle(writer.finish()).unwrap();
        let ask = || cubin(&shared, HOPPER).unwrap();
        let all: Vec<_> = thread::scope(|scope| {
            let ranks: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(all.iter().all(|code| Arc::ptr_eq(code, &all[0])));
    }
}
