//! `cargo xtask sanitize`: AddressSanitizer and ThreadSanitizer on the stable toolchain.
//!
//! The standard library is not built with the sanitizer. ThreadSanitizer therefore does not see the
//! synchronization inside it; a suppression file, limited to it, stands for that.

use clap::ValueEnum;

use crate::run::{Failed, cargo, step};

#[derive(clap::Args)]
pub struct Arguments {
    /// Which; without it both.
    sanitizer: Option<Sanitizer>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sanitizer {
    Address,
    Thread,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failed> {
    match arguments.sanitizer {
        Some(one) => sanitize(one),
        None => {
            sanitize(Sanitizer::Address)?;
            sanitize(Sanitizer::Thread)
        }
    }
}

fn sanitize(sanitizer: Sanitizer) -> Result<(), Failed> {
    let name = sanitizer.name();
    let target = host()?;
    let folder = std::env::current_dir().map_err(|e| Failed::Unable(e.to_string()))?;
    let suppressions = folder.join("xtask/tsan.supp");
    let mut flags = format!("-Zsanitizer={name} -Cforce-frame-pointers=yes");
    if matches!(sanitizer, Sanitizer::Thread) {
        flags.push_str(" -Cunsafe-allow-abi-mismatch=sanitizer");
    }
    let with = |arguments: &[&str]| {
        let mut command = cargo(arguments);
        command
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", &flags)
            .env("RUSTDOCFLAGS", &flags)
            // Of its own, so that everything else need not be built again.
            .env("CARGO_TARGET_DIR", format!("target/sanitize-{name}"))
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env(
                "TSAN_OPTIONS",
                format!("suppressions={} second_deadlock_stack=1", suppressions.display()),
            );
        command
    };
    // With --target, build scripts and macros are built without the sanitizer.
    let unit = [
        "test",
        "--target",
        &target,
        "-p",
        "symmem-hal",
        "-p",
        "symmem-mem",
        "-p",
        "symmem-sync",
        "-p",
        "symmem-collectives",
        "--lib",
        "--tests",
    ];
    step(&format!("{name}: unit tests"), &mut with(&unit))?;
    for backend in ["host", "stub"] {
        let mut suite = with(&[
            "test",
            "--target",
            &target,
            "-p",
            "symmem-tests",
            "--test",
            "conformance",
            "--",
        ]);
        suite.args(["--threads", "--ranks", "2,3", "--backend", backend]);
        step(&format!("{name}: thread ranks, {backend}"), &mut suite)?;
    }
    Ok(())
}

/// The target triple of this toolchain.
fn host() -> Result<String, Failed> {
    let output = std::process::Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|source| Failed::Start { command: "rustc -vV".to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .ok_or_else(|| Failed::Unable("rustc -vV names no host".to_owned()))
}
