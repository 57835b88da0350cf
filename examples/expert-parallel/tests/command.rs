//! The command as a user runs it. What needs the model wants MINILM_DIR, its folder.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_expert-parallel")).args(args).output().unwrap()
}

/// What a run that must pass prints.
fn passed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether there is a model; says so if not.
fn have_model() -> bool {
    let have = std::env::var_os("MINILM_DIR").is_some();
    if !have {
        println!("skipped: MINILM_DIR is not set");
    }
    have
}

/// From the line on that begins so.
fn from<'a>(printed: &'a str, begins: &str) -> &'a str {
    let at = printed.find(&format!("\n{begins}")).unwrap();
    &printed[at + 1..]
}

#[test]
fn any_number_of_ranks_prints_the_same_bits() {
    if !have_model() {
        return;
    }
    let alone = passed(&["--ranks", "1"]);
    let table = from(&alone, "top-k ");
    let all: Vec<&str> = table.lines().map(|line| line.trim_start()).collect();
    assert!(["1 ", "2 ", "4 ", "8 ", "16 "].iter().zip(&all[1..]).all(|(k, l)| l.starts_with(k)));
    for args in [&["--ranks", "2"][..], &["--ranks", "4", "--threads"], &["--ranks", "3"]] {
        assert_eq!(from(&passed(args), "top-k "), table, "{args:?}");
    }
}

#[test]
fn processes_and_threads_print_the_same() {
    if !have_model() {
        return;
    }
    // More ranks than experts and than sentences, and experts of unequal size.
    let args = ["--ranks", "6", "--experts", "5", "--top-k", "3", "One sentence.", "And another."];
    let processes = passed(&args);
    assert!(processes.contains("\ntop 3:\n"), "{processes}");
    assert_eq!(processes, passed(&[&["--threads"], &args[..]].concat()));
}

#[test]
fn what_cannot_be_is_said() {
    if !have_model() {
        return;
    }
    for (args, says) in [
        (["--experts", "4", "--top-k", "5"], "a token cannot choose 5 of 4 experts"),
        (["--experts", "1537", "--top-k", "1"], "1536 neurons are not enough for 1537 experts"),
        (["--experts", "1025", "--top-k", "1"], "1025 choices of a token: 1 to 1024 are possible"),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        for rank in 0..2 {
            let line = format!("rank {rank}: {says}");
            assert!(errors.lines().any(|l| l == line), "{line:?} is not in\n{errors}");
        }
    }
}

#[test]
fn a_missing_model_is_one_error() {
    let output = run(&["--model", "/nowhere", "--ranks", "3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("no model.safetensors in /nowhere; get it"), "{errors}");
    assert_eq!(errors.matches("no model.safetensors").count(), 1, "{errors}");
}
