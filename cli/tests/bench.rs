//! `symmem bench` as its users see it: processes, exit codes, files.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

fn symmem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symmem"));
    command.args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Runs a benchmark; returns what it wrote.
fn results(args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let output = symmem(args).args(["--iterations", "5", "--json"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    let results: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let table = text(&output.stdout);
    for row in results["rows"].as_array().unwrap() {
        assert!(table.contains(row["algorithm"].as_str().unwrap()), "{table}");
    }
    results
}

fn check(results: &Value, expected: [&str; 4], ranks: u64, bytes: &[u64]) {
    assert_eq!(keys(results), ["backend", "dtype", "mode", "op", "ranks", "rows"]);
    let found = ["op", "backend", "mode", "dtype"].map(|key| results[key].as_str().unwrap());
    assert_eq!(found, expected);
    assert_eq!(results["ranks"], ranks);
    let rows = results["rows"].as_array().unwrap();
    let sizes: Vec<u64> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, bytes);
    for row in rows {
        assert_eq!(
            keys(row),
            [
                "algbw_gbps",
                "algorithm",
                "busbw_gbps",
                "bytes",
                "checked",
                "median_us",
                "p10_us",
                "p90_us",
                "period_us"
            ]
        );
        assert_eq!(row["checked"], true);
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("p10_us") <= number("median_us") && number("median_us") <= number("p90_us"));
        assert!(number("period_us") > 0.0);
        let bandwidth = number("bytes") / number("period_us") / 1e3;
        assert!((number("algbw_gbps") - bandwidth).abs() <= 1e-9 * bandwidth, "{row}");
    }
}

#[test]
fn all_reduce_on_processes_and_threads_host_and_stub() {
    let sizes = ["--min", "64", "--max", "64K", "--factor", "32"];
    for backend in ["host", "stub"] {
        for (mode, flag) in [("process", None), ("thread", Some("--threads"))] {
            for extra in [&["--plain"][..], &["--in-place", "--dtype", "bf16", "--op", "avg"]] {
                let dtype = if extra.len() > 1 { "bf16" } else { "f32" };
                let mut args = vec!["bench", "all-reduce", "--ranks", "2", "--backend", backend];
                args.extend(sizes.iter().chain(extra).copied().chain(flag));
                let results = results(&args);
                check(&results, ["all-reduce", backend, mode, dtype], 2, &[64, 2048, 65536]);
                // 2 (n - 1) / n is 1 for two ranks.
                assert_eq!(results["rows"][2]["algbw_gbps"], results["rows"][2]["busbw_gbps"]);
            }
        }
    }
}

/// Every operation on data, and its factor from algorithm to bus bandwidth at 3 ranks.
const OPERATIONS: [(&str, f64); 10] = [
    ("all-reduce", 4.0 / 3.0),
    ("all-gather", 2.0 / 3.0),
    ("reduce-scatter", 2.0 / 3.0),
    ("broadcast", 1.0),
    ("reduce", 1.0),
    ("all-to-all", 2.0 / 3.0),
    ("all-to-all-nd", 2.0 / 3.0),
    ("reduce-scatter-offset", 2.0 / 3.0),
    ("put", 1.0),
    ("get", 1.0),
];

/// One size of packets, one in the middle, one above every threshold.
const SIZES: [&str; 6] = ["--min", "48", "--max", "1M", "--factor", "128"];

/// The first size that gives each of 3 ranks something of 4 bytes: by default as many bytes as that
/// takes, for an operation that has tensors.
fn sizes(operation: &str) -> (Vec<&'static str>, Vec<u64>) {
    match operation {
        "all-to-all-nd" => (SIZES[2..].to_vec(), vec![768, 98_304]),
        _ => (SIZES.to_vec(), vec![48, 6144, 786_432]),
    }
}

fn check_factor(results: &Value, factor: f64) {
    for row in results["rows"].as_array().unwrap() {
        let number = |key: &str| row[key].as_f64().unwrap();
        let bus = factor * number("algbw_gbps");
        assert!((number("busbw_gbps") - bus).abs() <= 1e-9 * bus, "{row}");
    }
}

#[test]
fn every_operation_on_processes_and_threads_host_and_stub() {
    for (operation, factor) in OPERATIONS {
        for (backend, mode) in
            [("host", "process"), ("host", "thread"), ("stub", "process"), ("stub", "thread")]
        {
            let mut args = vec!["bench", operation, "--ranks", "3", "--backend", backend];
            let (options, bytes) = sizes(operation);
            args.extend(options.into_iter().chain((mode == "thread").then_some("--threads")));
            let results = results(&args);
            check(&results, [operation, backend, mode, "f32"], 3, &bytes);
            check_factor(&results, factor);
        }
    }
}

#[test]
fn every_collective_in_place_on_plain_memory_by_any_root() {
    for (operation, _) in &OPERATIONS[..6] {
        for extra in [&["--in-place"][..], &["--plain"], &["--plain", "--in-place"]] {
            let mut args = vec!["bench", operation, "--ranks", "3", "--threads", "--dtype", "f16"];
            args.extend(SIZES.iter().chain(extra));
            if ["broadcast", "reduce"].contains(operation) {
                args.extend(["--root", "2"]);
            }
            let results = results(&args);
            check(&results, [operation, "host", "thread", "f16"], 3, &[48, 6144, 786_432]);
        }
    }
}

#[test]
fn every_operation_in_graphs() {
    for (operation, factor) in OPERATIONS {
        for backend in ["host", "stub"] {
            let mut args = vec!["bench", operation, "--ranks", "3", "--threads", "--graph"];
            let (options, bytes) = sizes(operation);
            args.extend(options.into_iter().chain(["--backend", backend]));
            let results = results(&args);
            check(&results, [operation, backend, "thread", "f32"], 3, &bytes);
            check_factor(&results, factor);
        }
    }
}

#[test]
fn tensors_are_cut_along_either_dimension() {
    for scatter in ["0", "1"] {
        let mut args = vec!["bench", "all-to-all-nd", "--ranks", "2", "--threads", "--plain"];
        args.extend(["--scatter", scatter, "--max", "64K", "--factor", "64"]);
        let results = results(&args);
        check(&results, ["all-to-all-nd", "host", "thread", "f32"], 2, &[512, 32768]);
    }
}

#[test]
fn a_message_has_something_for_every_rank() {
    // 20 ranks take 160 bytes of f64: the default grows, what is asked for does not.
    let args = ["bench", "all-gather", "--ranks", "20", "--threads", "--dtype", "f64"];
    let output = symmem(&args).args(["--max", "159"]).output().unwrap();
    assert!(text(&output.stderr).contains("--min 160 B is more than --max 159 B"), "{output:?}");
    let output = symmem(&args).args(["--min", "159", "--max", "1K"]).output().unwrap();
    assert!(text(&output.stderr).contains("--min 159 B is less than 160 B"), "{output:?}");
}

#[test]
fn a_figure_shows_what_the_json_says() {
    let folder = tempfile::tempdir().unwrap();
    let [json, svg] = ["rows.json", "figure.svg"].map(|name| folder.path().join(name));
    let args = ["bench", "all-gather", "--ranks", "2", "--max", "64K", "--iterations", "3"];
    let output = symmem(&args).arg("--json").arg(&json).arg("--plot").arg(&svg).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let results: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let figure = fs::read_to_string(&svg).unwrap();
    let figure = roxmltree::Document::parse(&figure).unwrap();
    let count = |tag: &str| figure.descendants().filter(|node| node.has_tag_name(tag)).count();
    assert_eq!(count("circle"), 2 * results["rows"].as_array().unwrap().len());
    let metadata = figure.descendants().find(|node| node.has_tag_name("metadata")).unwrap();
    let metadata: Value = serde_json::from_str(metadata.text().unwrap()).unwrap();
    assert_eq!(metadata["results"], results);
    assert!(metadata["limits"]["floor_us"].as_f64().unwrap() > 0.0);
    let copies = metadata["limits"]["copies"].as_array().unwrap().len();
    assert_eq!(copies, results["rows"].as_array().unwrap().len());
}

#[test]
fn a_rendezvous_is_timed_on_every_number_of_ranks() {
    for ranks in ["1", "2", "5"] {
        let results = results(&["bench", "rendezvous", "--ranks", ranks]);
        check(&results, ["rendezvous", "host", "process", "-"], ranks.parse().unwrap(), &[0]);
    }
}

#[test]
fn what_is_not_checked_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let mut command = symmem(&["bench", "all-reduce", "--threads", "--no-check", "--max", "64"]);
    let output = command.args(["--iterations", "3", "--json"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let results: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(results["rows"][0]["checked"], false);
    assert!(text(&output.stdout).lines().any(|line| line == "checked     nothing"));
}

#[test]
fn barriers_in_graphs() {
    for backend in ["host", "stub"] {
        let args = ["bench", "barrier", "--graph", "--threads", "--backend", backend];
        check(&results(&args), ["barrier", backend, "thread", "-"], 2, &[0]);
    }
}

#[test]
fn barrier_on_processes_and_threads_host_and_stub() {
    for backend in ["host", "stub"] {
        for (mode, flag) in [("process", None), ("thread", Some("--threads"))] {
            let mut args = vec!["bench", "barrier", "--ranks", "3", "--backend", backend];
            args.extend(flag);
            check(&results(&args), ["barrier", backend, mode, "-"], 3, &[0]);
        }
    }
}

#[test]
fn one_rank_is_a_group_too() {
    let results = results(&["bench", "all-reduce", "--ranks", "1", "--min", "1K", "--max", "1K"]);
    check(&results, ["all-reduce", "host", "process", "f32"], 1, &[1024]);
    assert_eq!(results["rows"][0]["busbw_gbps"], 0.0);
}

#[test]
fn an_algorithm_is_what_was_asked_for_and_sizes_it_cannot_take_are_told() {
    let args = ["bench", "all-reduce", "--threads", "--algorithm", "packet", "--max", "1M"];
    let output = symmem(&args).args(["--iterations", "3"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    assert!(table.contains("not measured, ") && table.contains("do not fit in packets"), "{table}");
    for algorithm in ["one-shot", "two-shot"] {
        let results = results(&["bench", "all-reduce", "--max", "256", "--algorithm", algorithm]);
        assert_eq!(results["rows"][0]["algorithm"], algorithm);
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_ranks_start() {
    for (args, reason) in [
        (&["--op", "xor"][..], "xor is defined on integers only"),
        (&["--min", "2"], "is less than 4 B"),
        (&["--min", "1M", "--max", "1K"], "more than --max"),
        (&["--plot", "/nowhere/figure.svg"], "/nowhere/figure.svg"),
        (&["--plot", "figure.svg", "--ranks", "1"], "at least 2 are needed"),
        (&["--step", "0"], "leads nowhere"),
        (&["--step", "4", "--factor", "2"], "cannot be used with"),
        (&["--ranks", "0"], "from 1"),
        (&["--ranks", "99999999999"], "at most 4194304"),
        (&["--ranks", "4194304"], "of shared memory need"),
        (&["--ranks", "4194304", "--threads"], "of shared memory need"),
        (&["--ranks", "4194304", "--backend", "stub", "--threads"], "of shared memory need"),
        (&["--dtype", "f31"], "f31"),
        (&["--max", "1T"], "1T"),
        (&["--json", "/nowhere/results.json"], "/nowhere/results.json"),
    ] {
        let output = symmem(&["bench", "all-reduce"]).args(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(reason), "{args:?}: {errors}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let output = symmem(&["bench", "reduce", "--root", "2"]).output().unwrap();
    assert!(text(&output.stderr).contains("there are ranks 0 to 1"), "{output:?}");
    let output = symmem(&["bench", "broadcast", "--algorithm", "two-shot"]).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("broadcast has no algorithm two-shot"), "{output:?}");
}

/// The processes that a process has started, by the rank in their environment.
fn ranks(launcher: u32) -> BTreeMap<String, u32> {
    let children = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).ok();
    let threads = fs::read_dir(format!("/proc/{launcher}/task")).unwrap().flatten();
    let children: Vec<String> = threads.filter_map(children).collect();
    let children = children.iter().flat_map(|list| list.split_whitespace());
    let rank = |child: &str| {
        let environment = text(&fs::read(format!("/proc/{child}/environ")).ok()?);
        environment
            .split('\0')
            .find_map(|variable| variable.strip_prefix("RANK="))
            .map(str::to_owned)
    };
    children.filter_map(|child| Some((rank(child)?, child.parse().unwrap()))).collect()
}

#[test]
fn a_killed_rank_ends_the_benchmark_and_is_named() {
    let mut bench = symmem(&["bench", "all-reduce", "--ranks", "3", "--iterations", "1000000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = loop {
        let started = ranks(bench.id());
        if started.len() == 3 {
            break started;
        }
        assert_eq!(bench.try_wait().unwrap(), None);
        std::thread::yield_now();
    };
    let victim = started["1"].to_string();
    assert!(Command::new("kill").args(["-9", &victim]).status().unwrap().success());
    let output = bench.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("rank 1: its process ended (signal: 9 (SIGKILL))"), "{errors}");
    for (rank, process) in started {
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "rank {rank} is left behind");
    }
}

#[test]
fn a_rank_outside_a_launcher_says_so() {
    let output = symmem(&["bench", "barrier", "--as-rank"])
        .env_remove("RANK")
        .env_remove("WORLD_SIZE")
        .env_remove("MASTER_ADDR")
        .env_remove("MASTER_PORT")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stdout).contains("no launcher"), "{output:?}");
}

#[test]
fn resident_ranks_measure_what_they_are_asked_for_until_their_input_ends() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut ranks: Vec<_> = (0..2)
        .map(|rank: u16| {
            let mut command = symmem(&["bench-rank"]);
            let variables = [("RANK", rank), ("WORLD_SIZE", 2), ("MASTER_PORT", port)];
            command.envs(variables.map(|(name, value)| (name, value.to_string())));
            command.env("MASTER_ADDR", "127.0.0.1").env_remove("TORCHELASTIC_USE_AGENT_STORE");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut inputs: Vec<_> = ranks.iter_mut().map(|rank| rank.stdin.take().unwrap()).collect();
    let mut outputs: Vec<_> =
        ranks.iter_mut().map(|rank| BufReader::new(rank.stdout.take().unwrap()).lines()).collect();
    let mut said = || -> Vec<Value> {
        let line = |lines: &mut Lines<_>| lines.next().unwrap().unwrap();
        outputs.iter_mut().map(|lines| serde_json::from_str(&line(lines)).unwrap()).collect()
    };
    for greeting in said() {
        assert_eq!(greeting["backend"], "host");
        assert_eq!(greeting["debug"], cfg!(debug_assertions));
        assert_eq!(greeting["kernels"].as_str().unwrap().len(), 64);
    }
    let common = "--ranks 2 --iterations 5 --batch 3x2 --graph";
    for (request, bytes) in [
        (format!("all-reduce {common} --dtype bf16 --min 4K --max 4K --no-limit"), 4096),
        (format!("barrier {common}"), 0),
        (format!("all-gather {common} --min 64K --max 64K --no-limit"), 65536),
        // Of two experts on two ranks both are chosen: four rows of 64 bytes a rank and way.
        (
            format!(
                "moe {common} --tokens 2 --hidden 32 --experts 2 --layout vdev --parts round --no-limit"
            ),
            512,
        ),
    ] {
        inputs.iter_mut().for_each(|input| writeln!(input, "{request}").unwrap());
        for row in said() {
            assert_eq!((&row["report"], &row["bytes"]), (&"row".into(), &bytes.into()), "{row}");
            assert_eq!(row["timing"]["isolated"].as_array().unwrap().len(), 5);
            assert_eq!(row["timing"]["periods"].as_array().unwrap().len(), 3);
        }
    }
    // What nobody can measure ends them, with a reason.
    inputs.iter_mut().for_each(|input| writeln!(input, "all-reduce --dtype i3").unwrap());
    for failed in said() {
        assert_eq!(failed["report"], "failed");
        assert!(failed["because"].as_str().unwrap().contains("i3"), "{failed}");
    }
    for rank in &mut ranks {
        assert!(!rank.wait().unwrap().success());
    }
}
