//! The kernels of the workspace, compiled for a CPU and run under random schedules without a GPU.
//!
//! `simulator` is a machine in C++ on which every thread of every kernel is a fiber: a stand-in for
//! `symmem.cuh` gives kernels loads, stores and fences on a memory whose stores arrive late and out of
//! order, as far as PTX's memory model lets them, and whose loads may find old values. The kernels
//! themselves, with the lane protocol in `symmem_sync.cuh`, are the files that ship. `scenarios` lays
//! out the memory of ranks, issues calls and compares results, bytes around them and records of
//! failures with what they must be. This crate compiles all that, and runs it.
//!
//! A text of a kernel can be replaced before it is compiled: each planted fault must be found
//! (`tests/kernels/faults.rs`).
//!
//! What it does not show: what compilers of GPUs make of the kernels, instructions that the stand-in
//! replaces, conversions of narrow floats, and orders of stores in which two ranks see two writers'
//! stores differently.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// A text of a kernel's file, and what it becomes.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// The file's name.
    pub file: &'static str,
    /// Occurs once.
    pub from: &'static str,
    /// What stands there instead.
    pub to: &'static str,
}

/// Kernels and the scenarios that run them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `reduce.cu`, for f32 and sums.
    Reduce,
    /// `exchange.cu`.
    Exchange,
    /// `exchange.cu`, in calls that fail.
    Failures,
    /// `signals.cu`.
    Signals,
    /// `vdev.cu`, with `exchange.cu` on the same lane.
    Vdev,
    /// `dispatch.cu` and `combine.cu`, with `exchange.cu` on the same lane.
    Routing,
    /// `landing.cu`, with `exchange.cu` on the same lane.
    Landing,
}

/// What makes kernels look whether a test delays them.
const STALLS: &str = "-DSYMMEM_STALLS";

/// How the name of a program begins whose kernels can be delayed.
pub const STALLED: &str = "stalled_";

impl Program {
    /// All of them.
    pub const ALL: [Program; 7] = [
        Program::Reduce,
        Program::Exchange,
        Program::Failures,
        Program::Signals,
        Program::Vdev,
        Program::Routing,
        Program::Landing,
    ];

    /// The name of its file of scenarios.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Program::Reduce => "reduce",
            Program::Exchange => "exchange",
            Program::Failures => "failures",
            Program::Signals => "signals",
            Program::Vdev => "vdev",
            Program::Routing => "routing",
            Program::Landing => "landing",
        }
    }

    /// What is compiled of kernels. The structs of signals are in their source: so are the scenarios.
    const fn kernels(self) -> &'static [&'static str] {
        match self {
            Program::Reduce => &["reduce.cu"],
            Program::Exchange | Program::Failures => &["exchange.cu"],
            Program::Signals => &["signals.cpp"],
            Program::Vdev => &["vdev.cu", "exchange.cu"],
            Program::Routing => &["dispatch.cu", "combine.cu", "exchange.cu"],
            Program::Landing => &["landing.cu", "exchange.cu"],
        }
    }
}

/// What is other than on a GPU, so that rare paths take no time: waits look at clocks and control words far
/// more often, and blocks have little room.
const SCALE: [Replacement; 8] = [
    Replacement { file: "symmem_sync.cuh", from: "MISSES = 1024", to: "MISSES = 8" },
    Replacement {
        file: "vdev.cuh",
        from: "SHARED_WORDS = 2112, SHARED_ENTRIES = 392",
        to: "SHARED_WORDS = 240, SHARED_ENTRIES = 60",
    },
    Replacement { file: "routing.cuh", from: "WINDOW = 512", to: "WINDOW = 8" },
    Replacement { file: "routing.cuh", from: "PLACES = 512", to: "PLACES = 12" },
    Replacement { file: "dispatch.cu", from: "SHARED_GROUPS = 256", to: "SHARED_GROUPS = 3" },
    Replacement { file: "routing.cuh", from: "SHARE = 64", to: "SHARE = 8" },
    Replacement { file: "routing.cuh", from: "QUANTISED = 1024", to: "QUANTISED = 256" },
    Replacement { file: "dispatch.cu", from: "SHARED_WORDS = 2304", to: "SHARED_WORDS = 48" },
];

/// Where the kernels are, whose `symmem.cuh` is replaced.
const KERNELS: [&str; 3] = ["sync/kernels", "collectives/kernels", "moe/kernels"];

/// What every program has, and the scenarios that are compiled without kernels.
const COMMON: [&str; 5] = [
    "simulator/machine.cpp",
    "simulator/memory.cpp",
    "scenarios/group.cpp",
    "scenarios/operations.cpp",
    "scenarios/main.cpp",
];
const SCENARIOS: [&str; 6] = [
    "scenarios/reduce.cpp",
    "scenarios/exchange.cpp",
    "scenarios/failures.cpp",
    "scenarios/vdev.cpp",
    "scenarios/routing.cpp",
    "scenarios/landing.cpp",
];

/// Compiles and links programs in a folder.
#[derive(Debug)]
pub struct Builder {
    folder: PathBuf,
}

impl Builder {
    /// Compiles what all programs have in common.
    ///
    /// # Errors
    ///
    /// What the compiler says.
    pub fn new(folder: &Path) -> Result<Self, String> {
        let builder = Builder { folder: folder.to_owned() };
        let folder = builder.kernels("common", &[])?;
        let compile = |source: &&str| {
            let compiler = builder.compiler(&folder, &here().join(source), &object(source));
            thread::spawn(move || run(compiler))
        };
        let compilers: Vec<_> = COMMON.iter().chain(&SCENARIOS).map(compile).collect();
        for compiler in compilers {
            compiler.join().map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok(builder)
    }

    /// Makes a program whose kernels have these replacements; where it is. The name tells it apart.
    ///
    /// # Errors
    ///
    /// What the compiler says; a text that does not occur once.
    pub fn program(
        &self,
        program: Program,
        name: &str,
        replacements: &[Replacement],
    ) -> Result<PathBuf, String> {
        let folder = self.kernels(name, replacements)?;
        let output = self.folder.join(name);
        let mut linker = cxx();
        // First: of functions that scenarios have as well, these are taken.
        for kernels in program.kernels() {
            let source = match program {
                Program::Signals => here().join("scenarios").join(kernels),
                _ => folder.join(kernels),
            };
            let object = format!("{name}.{kernels}.o");
            let mut compiler = self.compiler(&folder, &source, &object);
            compiler.args(["-DSYMMEM_DTYPE=2", "-DSYMMEM_OP=1"]);
            if name.starts_with(STALLED) {
                compiler.arg(STALLS);
            }
            run(compiler)?;
            linker.arg(self.folder.join(object));
        }
        let scenarios = format!("scenarios/{}.cpp", program.name());
        let others =
            COMMON.iter().copied().chain(SCENARIOS.into_iter().filter(|s| *s == scenarios));
        linker.args(others.map(|source| self.folder.join(object(source))));
        run({
            linker.arg("-o").arg(&output);
            linker
        })?;
        Ok(output)
    }

    /// A folder of kernels with replacements.
    fn kernels(&self, name: &str, replacements: &[Replacement]) -> Result<PathBuf, String> {
        let folder = self.folder.join(format!("{name}.src"));
        let failed = |e| format!("{}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut replacements: Vec<_> = SCALE.iter().chain(replacements).collect();
        for kernels in KERNELS {
            let kernels = here().join("../..").join(kernels);
            for entry in fs::read_dir(&kernels).map_err(failed)?.flatten() {
                let mut text = fs::read_to_string(entry.path()).map_err(failed)?;
                let file = entry.file_name();
                let (here, others) = replacements.into_iter().partition(|r| *r.file == *file);
                replacements = others;
                let here: Vec<_> = here;
                for Replacement { file, from, to } in here {
                    let found = text.matches(from).count();
                    if found != 1 {
                        return Err(format!("{found} times in {file}: {from}"));
                    }
                    text = text.replace(from, to);
                }
                fs::write(folder.join(file), text).map_err(failed)?;
            }
        }
        match replacements.first() {
            Some(left) => Err(format!("no file {}", left.file)),
            None => Ok(folder),
        }
    }

    fn compiler(&self, kernels: &Path, source: &Path, object: &str) -> Command {
        let mut compiler = cxx();
        compiler.args(["-std=c++17", "-O1", "-g0", "-c", "-Wall", "-Wextra", "-Werror"]);
        // Fibers jump between stacks, which the checks of longjmp take for an error.
        compiler.args(["-U_FORTIFY_SOURCE", "-ffp-contract=off"]);
        // Of the kernels: pragmas of GPUs' compilers, and what those take for granted.
        compiler.args([
            "-Wno-unknown-pragmas",
            "-Wno-parentheses",
            "-Wno-missing-field-initializers",
        ]);
        compiler.arg("-I").arg(here().join("simulator")).arg("-I").arg(kernels);
        compiler.arg("-I").arg(here().join("scenarios"));
        compiler.args(["-x", "c++"]).arg(source).arg("-o").arg(self.folder.join(object));
        compiler
    }
}

/// Runs a scenario with `runs` seeds from `seed` on.
///
/// # Errors
///
/// What differed, and with which seed and schedule; or how the program ended.
pub fn simulate(program: &Path, scenario: &str, seed: u64, runs: u32) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args([scenario, &seed.to_string(), &runs.to_string()]);
    run(command)
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn object(source: &str) -> String {
    source.replace('/', "-").replace(".cpp", ".o")
}

/// Whether there is a C++ compiler. One that is named is taken to be there.
#[must_use]
pub fn has_compiler() -> bool {
    let mut version = cxx();
    version.arg("--version");
    env::var_os("CXX").is_some() || version.output().is_ok_and(|output| output.status.success())
}

fn cxx() -> Command {
    Command::new(env::var_os("CXX").unwrap_or_else(|| "c++".into()))
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("{}{} by {command:?}", String::from_utf8_lossy(&said), output.status))
}
