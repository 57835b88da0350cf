//! `cargo xtask cross`: another architecture, of weaker memory order, compiles and computes the same.
//!
//! By Debian's compiler, whose standard library for AArch64 is a package like any other, and a processor in
//! software. That one is not weakly ordered where this machine's is not: the models are what shows that the
//! protocols hold there (`cargo xtask loom`).

use std::path::Path;
use std::process::Command;

use crate::command::Cargo;
use crate::summary::Summary;

const TARGET: &str = "aarch64-unknown-linux-gnu";

const COMPILER: &str = "/usr/bin/rustc";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// With where it finds the C library.
const PROCESSOR: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu";

const PACKAGES: &str = "dpkg --add-architecture arm64 && apt-get update && apt-get install --no-install-recommends \
    rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user";

/// The crates whose unit tests run: those that link no C++.
const CRATES: &[&str] = &[
    "--package=symmem-sys",
    "--package=symmem-hal",
    "--package=symmem-mem",
    "--package=symmem-sync",
    "--package=symmem-collectives",
    "--package=symmem-moe",
    "--package=symmem",
];

pub fn run(summary: &mut Summary) {
    if summary.step("cross: the compiler is there", is_there).is_none() {
        return;
    }
    let crossed = |cargo: Cargo| {
        cargo
            .options(["--target", TARGET])
            .env("RUSTC", COMPILER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", PROCESSOR)
            .target("cross")
    };
    let build = Cargo::new("build").args(["--quiet", "--all-features", "--package", "symmem-cli"]);
    summary.tier("cross: builds, with every feature", &[crossed(build)]);
    let units = Cargo::new("test").args(["--quiet", "--lib"]).args(CRATES.iter().copied());
    summary.tier("cross: unit tests", &[crossed(units)]);
    summary.tier(
        "cross: suite",
        &[
            crossed(Cargo::suite(["--quiet", "--local"])),
            crossed(Cargo::suite(["--quiet", "--ranks", "3", "--threads", "--backend", "host"])),
        ],
    );
}

fn is_there() -> Result<(), String> {
    let list =
        Command::new(COMPILER).args(["--print", "target-libdir", "--target", TARGET]).output();
    let library = list.map_err(|e| format!("{COMPILER}: {e}: {PACKAGES}"))?.stdout;
    let library = String::from_utf8_lossy(&library);
    if !Path::new(library.trim()).is_dir() {
        return Err(format!("no standard library for {TARGET}: {PACKAGES}"));
    }
    let programs = [LINKER, PROCESSOR.split_once(' ').map_or(PROCESSOR, |(name, _)| name)];
    for name in programs {
        let version = Command::new(name).arg("--version").output();
        let version = version.map_err(|e| format!("{name}: {e}: {PACKAGES}"))?.stdout;
        println!("{}", String::from_utf8_lossy(&version).lines().next().unwrap_or_default());
    }
    Ok(())
}
