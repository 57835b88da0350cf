//! The loader against small libraries made on the spot, in every way a library can be found.
//!
//! What depends on the environment runs in a child process: this executable again, with
//! [`REPORT`] set, which prints what [`probe`] says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, ptr};

use symmem_sys::cuda::Driver;
use symmem_sys::nvrtc::Nvrtc;
use symmem_sys::{NotFound, Place, Version, probe};
use tempfile::TempDir;

const REPORT: &str = "SYMMEM_TEST_REPORT";

/// A driver of release 12.4 with three functions, one of which must never be called.
const DRIVER: &str = r#"
#include <stdlib.h>
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuInit(unsigned flags) { abort(); }
int cuCtxSynchronize(void) { return 201; }
"#;

/// A compiler that answers only when its built-in functions are open already.
const COMPILER: &str = r#"
#include <dlfcn.h>
int nvrtcVersion(int *major, int *minor) {
    if (!dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_NOLOAD)) return 7;
    *major = 13;
    *minor = 0;
    return 0;
}
"#;

/// Compiles `source` into `file`; `false` where the machine has no C compiler.
fn compile(source: &str, file: &Path) -> bool {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let input = file.with_extension("c");
    fs::write(&input, source).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", &format!("-Wl,-soname,{name}"), "-o"])
        .args([file, &input])
        .arg("-ldl")
        .output();
    match output {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(error) => {
            println!("skipped: no C compiler ({error})");
            false
        }
    }
}

fn fake_driver() -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcuda.so.1");
    compile(DRIVER, &file).then_some((folder, file))
}

/// What a child with these variables, and no other way to a library, reports: one line a library.
fn report(variables: &[(&str, &Path)]) -> Vec<String> {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture"]).env(REPORT, "1");
    for name in [
        "SYMMEM_CUDA_LIBRARY",
        "SYMMEM_NVRTC_LIBRARY",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CUDA_HOME",
        "CUDA_PATH",
        "PYTHONUSERBASE",
        "PATH",
        "HOME",
    ] {
        child.env_remove(name);
    }
    child.envs(variables.iter().copied());
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| line.contains(" | ")).map(str::to_owned).collect()
}

#[test]
fn child() {
    if env::var_os(REPORT).is_none() {
        return;
    }
    println!();
    for library in probe() {
        match library.outcome {
            Ok(found) => println!(
                "{} | {:?} | {} | {:?}",
                library.name,
                found.place,
                found.path.display(),
                found.version.map(|version| version.to_string()),
            ),
            Err(not_found) => println!("{} | {not_found}", library.name),
        }
    }
    assert_eq!(probe(), probe());
    if let Ok(driver) = Driver::get() {
        assert!(ptr::eq(driver, Driver::get().unwrap()), "loaded twice");
    }
}

#[test]
fn what_a_library_has_can_be_called_and_what_it_lacks_is_named() {
    let Some((_folder, file)) = fake_driver() else { return };
    // SAFETY: the file was compiled above; its functions have the driver's signatures.
    let driver = unsafe { Driver::open(&file) }.unwrap();
    assert_eq!(driver.version(), Some(Version { major: 12, minor: 4 }));
    assert_eq!((driver.path(), driver.place()), (&*file, Place::Given));

    let synchronize = driver.cuCtxSynchronize().unwrap();
    // SAFETY: the fake function takes nothing and touches nothing.
    assert_eq!(unsafe { synchronize() }.0, 201);

    let missing = driver.cuMemcpyBatchAsync_v2().unwrap_err();
    assert_eq!(missing.symbol, "cuMemcpyBatchAsync_v2");
    assert_eq!(&*missing.path, file);
    assert_eq!(missing.version, driver.version());
    assert_eq!(missing.since, Some(Version { major: 13, minor: 0 }));
    assert_eq!(
        missing.to_string(),
        format!(
            "CUDA driver 12.4 has no cuMemcpyBatchAsync_v2, which came with 13.0 (loaded from {})",
            file.display()
        )
    );

    let missing: Vec<_> = driver.missing().into_iter().map(|missing| missing.symbol).collect();
    let expected: Vec<_> = Driver::SYMBOLS
        .iter()
        .filter(|name| !["cuDriverGetVersion", "cuInit", "cuCtxSynchronize"].contains(name))
        .copied()
        .collect();
    assert_eq!(missing, expected);
}

#[test]
fn functions_outlive_the_table() {
    let Some((_folder, file)) = fake_driver() else { return };
    // SAFETY: as above.
    let driver = unsafe { Driver::open(&file) }.unwrap();
    let synchronize = driver.cuCtxSynchronize().unwrap();
    drop(driver);
    // SAFETY: the library is never closed, so the function is still there.
    assert_eq!(unsafe { synchronize() }.0, 201);
}

#[test]
fn the_first_release_of_each_form_is_known() {
    let Some((_folder, file)) = fake_driver() else { return };
    // SAFETY: as above.
    let missing = unsafe { Driver::open(&file) }.unwrap().missing();
    for (symbol, major, minor) in [
        ("cuGetProcAddress_v2", 12, 0),
        ("cuIpcOpenMemHandle_v2", 11, 0),
        ("cuMemAlloc_v2", 3, 2),
        ("cuMemcpyBatchAsync", 12, 8),
        ("cuMulticastCreate", 12, 1),
        ("cuStreamGetCaptureInfo_v2", 11, 3),
        ("cuStreamWriteValue32_v2", 11, 7),
    ] {
        let found = missing.iter().find(|missing| missing.symbol == symbol).unwrap();
        assert_eq!(found.since, Some(Version { major, minor }), "{symbol}");
    }
}

#[test]
fn a_file_that_is_not_the_library_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |result: Result<Driver, NotFound>| {
        let not_found = result.unwrap_err();
        let [only] = not_found.searched() else { panic!("{not_found:#}") };
        assert_eq!(only.place, Place::Given);
        only.reason.clone()
    };

    let absent = folder.path().join("absent.so");
    // SAFETY: there is no file, so nothing runs.
    let text = reason(unsafe { Driver::open(&absent) });
    assert!(text.contains("No such file"), "{text}");
    assert!(!text.contains("absent.so"), "the path stands beside the reason: {text}");

    let garbage = folder.path().join("garbage.so");
    fs::write(&garbage, "not a library").unwrap();
    // SAFETY: the file is no library, so nothing runs.
    assert!(!reason(unsafe { Driver::open(&garbage) }).is_empty());

    let other = folder.path().join("libother.so");
    if compile("int other(void) { return 0; }", &other) {
        // SAFETY: the file was compiled above and has no initialiser.
        let text = reason(unsafe { Driver::open(&other) });
        assert_eq!(text, "opened, but it has no cuDriverGetVersion");
    }

    let unbound = folder.path().join("libunbound.so");
    let source = "void absent(void); int cuDriverGetVersion(int *v) { absent(); return 0; }";
    if compile(source, &unbound) {
        // SAFETY: as above.
        let text = reason(unsafe { Driver::open(&unbound) });
        assert!(text.contains("undefined symbol"), "{text}");
    }
}

#[test]
fn an_override_is_used_and_nothing_is_initialised() {
    let Some((_folder, file)) = fake_driver() else { return };
    let lines = report(&[("SYMMEM_CUDA_LIBRARY", &file)]);
    let expected = format!(
        "CUDA driver | Override(\"SYMMEM_CUDA_LIBRARY\") | {} | Some(\"12.4\")",
        file.display()
    );
    assert_eq!(lines[0], expected);
}

#[test]
fn an_override_that_fails_is_final() {
    let lines = report(&[
        ("SYMMEM_CUDA_LIBRARY", Path::new("/absent/libcuda.so.1")),
        ("SYMMEM_NVRTC_LIBRARY", Path::new("/absent/libnvrtc.so.13")),
    ]);
    assert_eq!(lines.len(), 2);
    for (line, variable) in lines.iter().zip(["SYMMEM_CUDA_LIBRARY", "SYMMEM_NVRTC_LIBRARY"]) {
        assert!(line.contains("could not be opened: /absent/"), "{line}");
        assert!(line.contains(variable) && line.contains("No such file"), "{line}");
    }
}

#[test]
fn the_dynamic_linkers_search_comes_first_and_tells_the_file() {
    let Some((folder, file)) = fake_driver() else { return };
    let lines = report(&[("LD_LIBRARY_PATH", folder.path())]);
    let expected = format!("CUDA driver | Linker | {} | Some(\"12.4\")", file.display());
    assert_eq!(lines[0], expected);
}

#[test]
fn a_python_environment_is_searched_and_companions_are_opened_first() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
    let library = folder.join("libnvrtc.so.13");
    let companion = folder.join("libnvrtc-builtins.so.13.0");
    if !compile(COMPILER, &library) || !compile("int builtins;", &companion) {
        return;
    }
    let lines = report(&[("LD_LIBRARY_PATH", &folder)]);
    assert_eq!(lines[1], format!("NVRTC | Linker | {} | Some(\"13.0\")", library.display()));

    let lines = report(&[("VIRTUAL_ENV", root.path())]);
    if lines[1].contains("| Linker |") || lines[1].contains("| Folder |") {
        println!("skipped: NVRTC is installed on this machine and comes first");
        return;
    }
    assert_eq!(lines[1], format!("NVRTC | PythonPackage | {} | Some(\"13.0\")", library.display()));

    fs::remove_file(companion).unwrap();
    let lines = report(&[("VIRTUAL_ENV", root.path())]);
    assert_eq!(lines[1], format!("NVRTC | PythonPackage | {} | None", library.display()));
}

#[test]
fn what_was_searched_is_told_in_full() {
    for not_found in [Driver::get().err(), Nvrtc::get().err()] {
        let Some(not_found) = not_found else {
            println!("skipped: the library is installed on this machine");
            continue;
        };
        let searched = not_found.searched();
        assert_eq!(searched[0].place, Place::Linker);
        assert!(searched.iter().any(|attempt| attempt.place == Place::Folder));
        assert!(searched.iter().all(|attempt| !attempt.reason.is_empty()));

        let text = format!("{not_found:#}");
        assert_eq!(text.lines().count(), 1 + searched.len());
        assert!(text.contains(not_found.variable()));
        for attempt in searched {
            assert!(text.contains(&*attempt.path.to_string_lossy()), "{text}");
        }
    }
}
