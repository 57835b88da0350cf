//! `cargo xtask sanitize`: on the stable toolchain, by permission to use its unstable flags.
//!
//! The standard library is not instrumented, since its sources are not part of every toolchain. The
//! address sanitizer needs none of that. The thread sanitizer then misses what orders threads inside
//! the library; what that makes it report wrongly is listed in `tsan.supp`, functions of the standard
//! library alone.

use crate::command::{Cargo, workspace};
use crate::summary::Summary;

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Sanitizer {
    Address,
    Thread,
}

/// The one target whose sanitizers come with the toolchain and are tested.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The crates with code of their own to sanitize.
const CRATES: &[&str] = &[
    "--package=symmem-hal",
    "--package=symmem-mem",
    "--package=symmem-sync",
    "--package=symmem-collectives",
];

pub fn run(sanitizer: Sanitizer, summary: &mut Summary) {
    let (name, flags) = match sanitizer {
        Sanitizer::Address => ("address", "-Zsanitizer=address"),
        // Code that is sanitized is called by code that is not: the standard library's.
        Sanitizer::Thread => ("thread", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"),
    };
    let suppressions = workspace().join("xtask").join("tsan.supp");
    let sanitized = |cargo: Cargo| {
        cargo
            .options(["--target", TARGET])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", flags)
            // Leaks are the suite's to find: some of its tests leak on purpose.
            .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1")
            .env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()))
            .target(&format!("sanitize-{name}"))
    };
    summary.tier(
        &format!("{name} sanitizer, unit tests"),
        &[sanitized(Cargo::new("test").args(["--quiet", "--lib"]).args(CRATES.iter().copied()))],
    );
    summary.tier(
        &format!("{name} sanitizer, suite"),
        &[
            sanitized(Cargo::suite(["--quiet", "--local"])),
            sanitized(Cargo::suite(["--quiet", "--ranks", "2,3", "--threads"])),
            sanitized(Cargo::suite(["--quiet", "--ranks", "2", "--threads", "--backend", "stub"])),
        ],
    );
}
