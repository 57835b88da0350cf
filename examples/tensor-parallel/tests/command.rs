//! The command as a user runs it. What needs the model wants MINILM_DIR, its folder.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensor-parallel")).args(args).output().unwrap()
}

/// Whether there is a model; says so if not.
fn have_model() -> bool {
    let have = std::env::var_os("MINILM_DIR").is_some();
    if !have {
        println!("skipped: MINILM_DIR is not set");
    }
    have
}

#[test]
fn processes_and_threads_print_the_same() {
    if !have_model() {
        return;
    }
    for ranks in ["1", "2", "3"] {
        let [processes, threads] =
            [&["--ranks", ranks][..], &["--ranks", ranks, "--threads"]].map(run);
        for output in [&processes, &threads] {
            assert!(output.status.success(), "{ranks} ranks: {output:?}");
        }
        let table = String::from_utf8(processes.stdout).unwrap();
        assert_eq!(table.lines().count(), 8, "{table}");
        assert!(table.contains(&format!("\nranks: {ranks}, largest difference ")), "{table}");
        assert_eq!(table, String::from_utf8(threads.stdout).unwrap());
    }
}

#[test]
fn more_ranks_than_heads_fail_and_say_so() {
    if !have_model() {
        return;
    }
    for mode in [&["--ranks", "13"][..], &["--ranks", "13", "--threads"]] {
        let output = run(mode);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        for rank in 0..13 {
            let line = format!("rank {rank}: 12 attention heads cannot be split over 13 ranks");
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
