//! The runner, on tests that fail in every way there is: this program runs itself on them, and reads
//! what it says.

use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Signal, getpid, kill_process};
use symmem_tests::runner::{self, Context, Test, TestError, Verdict};
use symmem_tests::{check, check_eq, check_err, test};

/// Set for the program that runs the tests that fail, and for its ranks.
const INNER: &str = "SYMMEM_TESTS_INNER";

const TESTS: &[Test] = &[
    test!(passes),
    test!(hangs_on_rank_1).seconds(1),
    test!(passes_after_a_hang),
    test!(dies_on_rank_1),
    test!(passes_after_a_death),
    test!(dies_as_announced).isolated(),
    test!(panics_on_rank_1),
    test!(fails_on_rank_1_while_others_meet),
    test!(errs_on_rank_1),
    test!(finds_different_things),
    test!(is_skipped),
    test!(is_skipped_on_rank_1),
    test!(needs_more_ranks).at_least(4),
    test!(passes_at_last),
];

fn passes(context: &Context) -> Verdict {
    context.same("size", context.size());
    context.meet()
}

fn hangs_on_rank_1(context: &Context) -> Verdict {
    context.step("before");
    if context.rank() == 1 {
        context.step("about to hang");
        std::thread::sleep(Duration::from_secs(1000));
    }
    Ok(())
}

fn passes_after_a_hang(context: &Context) -> Verdict {
    passes(context)
}

fn dies_on_rank_1(context: &Context) -> Verdict {
    if context.rank() == 1 {
        context.step("about to die");
        kill_process(getpid(), Signal::KILL)?;
    }
    context.meet()
}

fn passes_after_a_death(context: &Context) -> Verdict {
    passes(context)
}

fn dies_as_announced(context: &Context) -> Verdict {
    // Where all ranks are one process, all are to say so.
    if context.mode() == runner::Mode::Threads {
        context.dying();
        context.meet()?;
    }
    if context.rank() == 1 {
        context.dying();
        kill_process(getpid(), Signal::KILL)?;
    }
    Ok(())
}

#[allow(clippy::panic, reason = "that is what it is for")]
fn panics_on_rank_1(context: &Context) -> Verdict {
    if context.rank() == 1 {
        panic!("panicked with {}", 42);
    }
    Ok(())
}

fn fails_on_rank_1_while_others_meet(context: &Context) -> Verdict {
    if context.rank() == 1 {
        check_eq!(2 + 2, 5, "the sum of {} and 2", 2);
    }
    context.meet()
}

fn errs_on_rank_1(context: &Context) -> Verdict {
    let parsed = "x".parse::<u8>();
    check_err!(parsed.clone(), std::num::ParseIntError { .. });
    if context.rank() == 1 {
        parsed?;
    }
    Ok(())
}

fn finds_different_things(context: &Context) -> Verdict {
    context.same("thing", if context.rank() == 1 { "one" } else { "another" });
    Ok(())
}

fn is_skipped(_: &Context) -> Verdict {
    Err(TestError::skipped("there is no reason"))
}

fn is_skipped_on_rank_1(context: &Context) -> Verdict {
    check!(context.rank() != 2, "fails on rank 2");
    if context.rank() == 1 { is_skipped(context) } else { Ok(()) }
}

fn needs_more_ranks(_: &Context) -> Verdict {
    Ok(())
}

fn passes_at_last(context: &Context) -> Verdict {
    passes(context)
}

/// Runs the tests that fail and says how each is reported.
fn inner(arguments: &[&str]) -> Result<(String, bool), Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.env(INNER, "1").args(arguments).output()?;
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}

/// What is said of one test, from its heading in the list of failures on.
fn report<'a>(said: &'a str, test: &str) -> Result<&'a str, Failed> {
    let heading = format!("::{test} ----\n");
    let start = said.find(&heading).ok_or_else(|| format!("{test} has not failed\n{said}"))?;
    let rest = &said[start + heading.len()..];
    Ok(rest.split("\n\n").next().unwrap_or(rest))
}

fn check_reports(mode: &[&str], place: &str) -> Result<(), Failed> {
    let mut arguments = vec!["--ranks", "3", "--seed", "0x10"];
    arguments.extend(mode);
    let (said, success) = inner(&arguments)?;
    let expect = |holds: bool, what: &str| {
        if holds { Ok(()) } else { Err(Failed::from(format!("{what}\n{said}"))) }
    };
    expect(!success, "the program ended as if all were well")?;
    expect(said.ends_with("6 passed, 7 failed, 2 skipped\n"), "other numbers")?;
    for name in ["passes", "passes_after_a_hang", "passes_after_a_death", "passes_at_last"] {
        let listed = said.lines().any(|line| {
            line.starts_with(&format!("test {place}::"))
                && line.contains(&format!("::{name} "))
                && line.ends_with("ok")
        });
        expect(listed, &format!("{name} has not passed"))?;
    }
    let died = if mode.is_empty() {
        "rank 1: its process ended with signal: 9 (SIGKILL) (last step: about to die)"
    } else {
        // One process: all ranks end with it.
        "ranks 0, 2: its process ended with signal: 9"
    };
    for (test, parts) in [
        (
            "hangs_on_rank_1",
            &["rank 1: did not end (last step: about to hang)", "system call", "sleeping"][..],
        ),
        ("dies_on_rank_1", &[died]),
        ("panics_on_rank_1", &["rank 1: panicked at", "runner.rs:", "panicked with 42"]),
        (
            "fails_on_rank_1_while_others_meet",
            &["rank 1: ", "runner.rs:", "the sum of 2 and 2: expected 5, found 4"],
        ),
        ("errs_on_rank_1", &["rank 1: ", "runner.rs:", "invalid digit found in string"]),
        ("finds_different_things", &["different: thing", "rank 0: another", "rank 1: one"]),
        ("is_skipped_on_rank_1", &["rank 1: skipped, though others did not", "fails on rank 2"]),
    ] {
        let found = report(&said, test)?;
        for part in parts.iter().chain(&["seed 0x0000000000000010"]) {
            expect(
                found.contains(part),
                &format!("{test} is not reported with {part:?}: {found}"),
            )?;
        }
    }
    expect(!report(&said, "errs_on_rank_1")?.contains("rank 0"), "ranks that pass are reported")?;
    for line in ["skipped, for 4 ranks or more: ", "skipped, there is no reason: "] {
        expect(said.contains(line), &format!("no line {line:?}"))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::var_os(INNER).is_some() {
        return runner::main(TESTS);
    }
    let trials = vec![
        Trial::test("processes", || check_reports(&[], "host-processes-3")),
        Trial::test("threads", || check_reports(&["--threads"], "host-threads-3")),
        Trial::test("nothing_wrong", || {
            let (said, success) =
                inner(&["--ranks", "2", "--exact", "host-processes-2::runner::passes"])?;
            if success && said.ends_with("\n1 passed, 0 failed, 0 skipped\n") {
                Ok(())
            } else {
                Err(said.into())
            }
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
