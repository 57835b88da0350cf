//! `symmem run`: prefixes, exit codes, and that nothing is left behind.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

const SYMMEM: &str = env!("CARGO_BIN_EXE_symmem");

fn launcher(ranks: usize, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(SYMMEM);
    command.args(["run", "--ranks", &ranks.to_string()]).args(options);
    command.args(["--", "sh", "-c", script]);
    command
}

fn run(ranks: usize, options: &[&str], script: &str) -> Output {
    launcher(ranks, options, script).output().unwrap()
}

/// The lines of a stream, sorted: ranks take turns in no order.
fn lines(stream: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> =
        String::from_utf8(stream.to_vec()).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn kill(signal: &str, process: u32) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

fn exists(process: &str) -> bool {
    // A zombie has ended, too: who collects it is not this launcher's business.
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

#[test]
fn every_rank_knows_itself_and_its_streams_stay_apart() {
    let script = "echo out $RANK of $WORLD_SIZE; echo err $LOCAL_RANK of $LOCAL_WORLD_SIZE >&2";
    let output = run(3, &[], script);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(lines(&output.stdout), ["[0] out 0 of 3", "[1] out 1 of 3", "[2] out 2 of 3"]);
    assert_eq!(lines(&output.stderr), ["[0] err 0 of 3", "[1] err 1 of 3", "[2] err 2 of 3"]);
}

#[test]
fn arguments_and_unfinished_lines_arrive() {
    let output = Command::new(SYMMEM)
        .args(["run", "--ranks", "1", "printf", "%s|", "-n", "--ranks", "two words"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(lines(&output.stdout), ["[0] -n|--ranks|two words|"]);
}

#[test]
fn the_exit_code_is_the_first_failing_ranks() {
    // Rank 0 goes on until the launcher has seen the end of rank 1, then fails of that.
    let script = "if [ $RANK = 1 ]; then echo $$ > new; mv new process; exit 3; fi; \
                  until [ -e process ]; do sleep 0.01; done; process=$(cat process); \
                  while kill -0 $process 2> /dev/null; do sleep 0.01; done; exit 4";
    let folder = tempfile::tempdir().unwrap();
    let output = launcher(2, &[], script).current_dir(&folder).output().unwrap();
    let errors = lines(&output.stderr).join("\n");
    assert_eq!(output.status.code(), Some(3), "{errors}");
    for failure in ["rank 1 failed: exit code 3", "rank 0 failed: exit code 4"] {
        assert!(errors.contains(failure), "{errors}");
    }
}

#[test]
fn a_rank_that_goes_on_after_a_failure_is_ended() {
    let script = "if [ $RANK = 1 ]; then kill -9 $$; fi; echo $$; exec sleep 1000";
    let output = run(3, &["--grace", "0"], script);
    let errors = lines(&output.stderr).join("\n");
    assert_eq!(output.status.code(), Some(128 + 9), "{errors}");
    assert!(errors.contains("rank 1 failed: killed by SIGKILL"), "{errors}");
    assert!(errors.contains("ended by the launcher: ranks"), "{errors}");
    for line in lines(&output.stdout) {
        assert!(!exists(line.split_once(' ').unwrap().1), "{line}");
    }
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_and_what_it_started_too() {
    let script = "trap '' TERM; sleep 1000 & echo $!; \
                  if [ $RANK = 0 ]; then exit 5; fi; while :; do wait; done";
    let output = run(2, &["--grace", "0"], script);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let started = lines(&output.stdout);
    assert!(!started.is_empty());
    for line in started {
        assert!(!exists(line.split_once(' ').unwrap().1), "{line}");
    }
}

#[test]
fn a_time_limit_names_who_still_runs() {
    let script = "if [ $RANK = 0 ]; then exit 0; fi; exec sleep 1000";
    let output = run(2, &["--timeout", "1"], script);
    let errors = lines(&output.stderr).join("\n");
    assert_eq!(output.status.code(), Some(124), "{errors}");
    assert!(errors.contains("still running after 1s: ranks 1"), "{errors}");
}

/// Starts a job and waits until its one rank has said a line.
fn started(script: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut job =
        launcher(1, &[], script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(job.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    (job, output, line.trim().to_owned())
}

#[test]
fn signals_are_passed_on() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let script = format!(
            "trap 'echo got {signal}; exit 7' {signal}; echo ready; while :; do sleep 0.01; done"
        );
        let (mut job, mut output, _) = started(&script);
        kill(&format!("-{signal}"), job.id());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("[0] got {signal}\n"));
        assert_eq!(job.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn ranks_die_with_the_launcher() {
    let (mut job, mut output, line) = started("echo $$; exec sleep 1000");
    kill("-9", job.id());
    job.wait().unwrap();
    // The pipe ends when the launcher's copies are gone; then the rank is, or is about to be.
    assert_eq!(output.read_line(&mut String::new()).unwrap(), 0);
    let rank = line.split_once(' ').unwrap().1;
    while exists(rank) {
        std::thread::yield_now();
    }
}

#[test]
fn a_program_that_is_not_there() {
    let output =
        Command::new(SYMMEM).args(["run", "--ranks", "2", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/program"));
}

#[test]
fn more_ranks_than_processes_are_refused_before_any_is_started() {
    for ranks in ["4294967295", "20000000"] {
        let output =
            Command::new(SYMMEM).args(["run", "--ranks", ranks, "/bin/true"]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code != 0), "{output:?}");
        assert!(errors.contains(&format!("{ranks} ranks: ")), "{errors}");
        assert!(errors.contains(" more processes can run under "), "{errors}");
    }
}

#[test]
fn ranks_under_run_make_a_group() {
    let args = ["run", "--ranks", "2", "--", SYMMEM, "bench", "barrier", "--as-rank"];
    let output = Command::new(SYMMEM).args(args).args(["--iterations", "3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let reports = lines(&output.stdout);
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports[0].starts_with("[0] {\"report\":\"row\""), "{reports:?}");
    assert!(reports[1].starts_with("[1] {\"report\":\"row\""), "{reports:?}");
}
