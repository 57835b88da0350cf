//! `cargo xtask sanitize`: on the stable toolchain, by permission to use its unstable flags.
//!
//! The address sanitizer needs no more than the flag. The thread sanitizer must see what orders
//! threads, which is inside the standard library: it is built with it, from the toolchain's component
//! `rust-src`. It must see what mappings end and begin, too: of memory that is mapped where other memory
//! was, it would take the two for one. So system calls go by way of the C library, where it sees them.
//! That leaves nothing to suppress.

use std::process::Command;

use crate::command::Cargo;
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
    "--package=symmem-moe",
];

pub fn run(sanitizer: Sanitizer, summary: &mut Summary) {
    let (name, flags, build_std) = match sanitizer {
        Sanitizer::Address => ("address", "-Zsanitizer=address", None),
        Sanitizer::Thread => {
            ("thread", "-Zsanitizer=thread --cfg=rustix_use_libc", Some("-Zbuild-std"))
        }
    };
    if build_std.is_some() {
        // Where it is there already, this does nothing; where it cannot be had, the build says so.
        let _ = Command::new("rustup").args(["component", "add", "rust-src"]).status();
    }
    let sanitized = |cargo: Cargo| {
        cargo
            .options(["--target", TARGET].into_iter().chain(build_std))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", flags)
            // Leaks are the suite's to find: some of its tests leak on purpose.
            .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1")
            .target(&format!("sanitize-{name}"))
    };
    let planted = |fault: &str, report| {
        let run = Cargo::new("run").args(["--quiet", "--package", "symmem-tests"]);
        sanitized(run.args(["--example", "planted", "--", fault])).must_report(report)
    };
    summary.tier(
        &format!("{name} sanitizer, planted faults"),
        &match sanitizer {
            Sanitizer::Address => vec![planted("use-after-free", "heap-use-after-free")],
            Sanitizer::Thread => ["race-in-threads", "race-in-drop", "race-of-ranks"]
                .map(|race| planted(race, "ThreadSanitizer: data race"))
                .into(),
        },
    );
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
