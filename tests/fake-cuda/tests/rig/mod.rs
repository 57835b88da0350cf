//! What the tests of this package share: each runs in a process of its own, with the library opened
//! in place of the driver there, since both keep what they once read for the life of the process.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(unsafe_code, reason = "opens a library and hands descriptors to children")]

use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fmt, thread};

use libloading::Library;
use symmem_hal::{Fault, Kind};

/// Names the test that this process runs.
const ISOLATED: &str = "SYMMEM_FAKE_CUDA_TEST";

/// Where cargo put the library: beside the tests of its package.
pub fn library() -> PathBuf {
    let executable = env::current_exe().unwrap();
    let file = executable.parent().unwrap().join("libsymmem_fake_cuda.so");
    assert!(file.exists(), "{} was not built", file.display());
    file
}

/// This executable again, for the test of the calling thread, with the library as its driver.
pub fn child(environment: &[(&str, &str)]) -> Command {
    let name = thread::current().name().unwrap().to_owned();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &name, "--nocapture", "--test-threads", "1"]);
    command.env("SYMMEM_CUDA_LIBRARY", library());
    command.env(ISOLATED, &name).envs(environment.iter().copied());
    command
}

/// The descriptor that a child finds an inherited one at.
pub const INHERITED: RawFd = 100;

/// Hands a descriptor to a child.
pub fn inherit(command: &mut Command, descriptor: OwnedFd) {
    let give = move || {
        // SAFETY: nothing is open there in the child; whoever it is for owns it.
        let mut to = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(INHERITED) });
        Ok(rustix::io::dup2(&descriptor, &mut to)?)
    };
    // SAFETY: one system call, which a child may make after a fork.
    unsafe { command.pre_exec(give) };
}

/// Whether this process was started for the calling thread's test.
pub fn is_child() -> bool {
    env::var(ISOLATED).is_ok_and(|name| thread::current().name() == Some(&name))
}

/// Runs a test's body in a process of its own, with this environment.
pub fn isolated(environment: &[(&str, &str)], body: impl FnOnce(&Control)) {
    if is_child() {
        return body(&Control::open());
    }
    succeeded(&child(environment).output().unwrap());
}

/// A child that failed fails the test, with what it said.
pub fn succeeded(output: &Output) {
    let text = [&*output.stdout, &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{}\n{text}", output.status);
    // A filter that matches nothing succeeds too.
    assert!(text.contains("1 passed"), "no test ran:\n{text}");
}

const HELD: &[&str] = &[
    "allocations",
    "registrations",
    "imports",
    "mappings",
    "reservations",
    "handles",
    "graphs",
    "objects",
];

/// The functions that the library has beyond the driver's.
pub struct Control(Library);

impl Control {
    pub fn open() -> Self {
        // SAFETY: our own library, whose only initialisers are those of Rust's.
        Control(unsafe { Library::new(library()) }.unwrap())
    }

    fn ask<R>(&self, function: &str, argument: Option<&str>) -> R {
        let argument = argument.map(|text| CString::new(text).unwrap());
        let pointer = argument.as_ref().map_or(core::ptr::null(), |text| text.as_ptr());
        // SAFETY: the three functions take a C string or null; callers name the type that theirs
        // returns.
        unsafe {
            let function: libloading::Symbol<'_, unsafe extern "C" fn(*const i8) -> R> =
                self.0.get(function).unwrap();
            function(pointer)
        }
    }

    pub fn tell(&self, command: &str) {
        let understood: i32 = self.ask("symmem_fake_cuda_control", Some(command));
        assert_eq!(understood, 0, "{command}");
    }

    pub fn count(&self, call: &str) -> u64 {
        self.ask("symmem_fake_cuda_count", Some(call))
    }

    pub fn live(&self, kind: &str) -> u64 {
        let live = self.ask("symmem_fake_cuda_live", Some(kind));
        assert_ne!(live, u64::MAX, "{kind}");
        live
    }

    /// What is alive of what a library may not leave behind when its own objects are gone. It may keep
    /// streams and events to use again.
    pub fn held(&self) -> Vec<(&'static str, u64)> {
        self.tell("settle");
        HELD.iter().map(|kind| (*kind, self.live(kind))).collect()
    }

    /// Everything that a program has to give back.
    pub fn all_live(&self) -> u64 {
        self.ask("symmem_fake_cuda_live", None)
    }
}

/// Makes the first, the second, ... call of the driver fail in what `act` does, until all of them
/// have, and sees to it that an error leaves nothing behind and that `act` then works again.
pub fn each_call_fails<T, E: fmt::Debug + Fault>(
    control: &Control,
    mut act: impl FnMut() -> Result<T, E>,
) {
    drop(act().unwrap());
    let before = control.held();
    let mut failures = 0;
    for k in 1.. {
        control.tell("reset-counts");
        control.tell(&format!("fail *@{k}=CUDA_ERROR_OUT_OF_MEMORY"));
        let outcome = act();
        control.tell("clear");
        let hit = control.count("failed:*") > 0;
        // What cannot be given back because giving back failed is nobody's leak.
        let released = ["cuMemRelease", "cuMemUnmap", "cuMemAddressFree", "cuMemFree_v2"];
        let released = released.iter().any(|call| control.count(&format!("failed:{call}")) > 0);
        if let Err(error) = &outcome {
            assert!(hit, "{error:?}");
            // A device that does not answer a question is taken not to have what was asked for.
            let lacks = control.count("failed:cuDeviceGetAttribute") > 0;
            let kind = if lacks { Kind::Unsupported } else { Kind::Exhausted };
            assert_eq!(error.kind(), kind, "call {k}: {error:?}");
            failures += 1;
        }
        drop(outcome);
        if released {
            return assert!(failures > 0);
        }
        assert_eq!(control.held(), before, "after a failure of call {k}");
        drop(act().unwrap());
        assert_eq!(control.held(), before, "after a failure of call {k} and a success");
        if !hit {
            break;
        }
    }
    assert!(failures > 0, "no call failed");
}
