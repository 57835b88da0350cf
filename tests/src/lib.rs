//! The conformance suite of symmem.
//!
//! # Does
//!
//! - Runs tests that are many ranks ([`runner`]): as processes that are re-executions of the
//!   current program, or as threads of one such process, on every backend, with any number of
//!   ranks. A test that hangs or dies fails alone, with each rank's last step.
//! - Holds the tests ([`suite`]), a module and a feature for each layer, so that whoever takes the
//!   lower layers takes their part of the suite along.
//! - Compares results with models of its own; the library's arithmetic is not asked about itself.
//!
//! # Does not
//!
//! - Measure. Nothing here has an upper bound on time but the watchdog, and the one bound that is
//!   part of the contract: how soon a dead rank is reported.
//! - Test what no caller can see: machines and kernels have their tests beside them.
//!
//! # Choices
//!
//! - *Ranks are executed, not forked*: a fork of a threaded program holds locks that nobody will
//!   release.
//! - *Thread ranks live in a process of their own* too, so that their hang or crash is one test's,
//!   not the runner's.
//! - *One pool of ranks serves all tests of a place* (backend, mode, number of ranks): each test
//!   makes groups of its own from the pool's. What breaks the pool takes a fresh one and says so.
//!
//! # Running it
//!
//! ```text
//! cargo test -p symmem-tests --test conformance -- --ranks 2,3 FILTER
//! ```
//!
//! From a program of one's own, with tests of one's own:
//!
//! ```no_run
//! use symmem_tests::runner::{self, Context, Test, Verdict};
//!
//! fn greets(context: &Context) -> Verdict {
//!     symmem_tests::check!(context.rank() < context.size(), "rank {}", context.rank());
//!     Ok(())
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let mut tests = symmem_tests::suite::all();
//!     tests.push(symmem_tests::test!(greets).ranks(1, 64));
//!     runner::main(&tests)
//! }
//! ```

#[cfg(all(test, feature = "moe"))]
mod coverage;
#[cfg(feature = "collectives")]
pub mod model;
pub mod runner;
pub mod suite;
#[cfg(feature = "hal")]
mod support;

/// Runs the whole suite as the program's arguments say.
#[must_use]
pub fn main() -> std::process::ExitCode {
    runner::main(&suite::all())
}
