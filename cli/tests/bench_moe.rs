//! `symmem bench moe` as its users see it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

fn moe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symmem"));
    command.args(["bench", "moe"]).args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it; returns what it wrote, and what it said.
fn results(args: &[&str]) -> (Value, Output) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let output = moe(args).args(["--iterations", "3", "--json"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    (serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap(), output)
}

/// Rows of both sizes and all parts.
fn check(results: &Value, backend: &str, mode: &str, tokens: [u64; 2]) {
    let found = ["op", "backend", "mode"].map(|key| results[key].as_str().unwrap());
    assert_eq!(found, ["moe", backend, mode]);
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for (rows, tokens) in rows.chunks(3).zip(tokens) {
        for (row, part) in rows.iter().zip(["dispatch", "combine", "round"]) {
            assert_eq!((&row["algorithm"], &row["tokens"]), (&part.into(), &tokens.into()));
            assert_eq!(row["checked"], true);
            let number = |key: &str| row[key].as_f64().unwrap();
            assert!(number("p10_us") <= number("median_us"));
            assert!(number("across_bytes") <= number("bytes"));
            let bandwidth = number("bytes") / number("period_us") / 1e3;
            assert!((number("algbw_gbps") - bandwidth).abs() <= 1e-9 * bandwidth, "{row}");
            let bandwidth = number("across_bytes") / number("period_us") / 1e3;
            assert!((number("busbw_gbps") - bandwidth).abs() <= 1e-9 * bandwidth, "{row}");
            assert_eq!(row["routes"], rows[0]["routes"]);
        }
    }
    assert_ne!(rows[0]["routes"], rows[3]["routes"]);
}

const SIZES: [&str; 6] = ["--ranks", "4", "--tokens", "1,33", "--hidden", "136"];

#[test]
fn every_layout_on_processes_and_threads_host_and_stub() {
    for layout in ["compact", "padded", "rank-major", "vdev"] {
        for (backend, mode) in
            [("host", "process"), ("host", "thread"), ("stub", "process"), ("stub", "thread")]
        {
            let mut args = vec!["--layout", layout, "--backend", backend, "--no-limit"];
            args.extend(SIZES.into_iter().chain((mode == "thread").then_some("--threads")));
            let (results, _) = results(&args);
            check(&results, backend, mode, [1, 33]);
            assert_eq!(results["setting"]["layout"], layout);
        }
    }
}

#[test]
fn in_graphs_of_every_type_skewed_quantised_and_aligned() {
    for (extra, dtype) in [
        (&["--graph"][..], "bf16"),
        (&["--graph", "--layout", "vdev", "--align", "8", "--skew", "1.2"], "f16"),
        (&["--quantised"], "f32"),
        (&["--quantised", "--graph", "--layout", "rank-major", "--skew", "2"], "bf16"),
        (&["--quantised", "--layout", "padded"], "f16"),
        (&["--align", "16", "--experts", "3", "--top-k", "3"], "f32"),
        (&["--experts", "37", "--top-k", "8", "--seed", "5"], "bf16"),
    ] {
        for backend in ["host", "stub"] {
            let args = [extra, &SIZES, &["--dtype", dtype, "--backend", backend, "--threads"]];
            let (results, _) = results(&[&args.concat()[..], &["--no-limit"]].concat());
            check(&results, backend, "thread", [1, 33]);
            assert_eq!(results["dtype"], dtype);
        }
    }
}

#[test]
fn a_copy_is_counted_once_and_what_stays_is_no_traffic() {
    // Two experts on two ranks, both of which every token chooses: half of everything stays.
    let common = ["--tokens", "10,20", "--hidden", "256", "--experts", "2", "--threads"];
    for (extra, dispatch, combine) in [
        (&[][..], 20 * 512, 20 * 512),
        (&["--quantised"], 20 * (256 + 8), 20 * 512),
        (&["--layout", "rank-major", "--dtype", "f32"], 20 * 1024, 20 * 1024),
    ] {
        let (results, output) = results(&[&common, extra].concat());
        let row = |index: usize, key: &str| results["rows"][index][key].as_u64().unwrap();
        for (index, bytes) in [dispatch, combine, dispatch + combine].into_iter().enumerate() {
            assert_eq!((row(index, "bytes"), row(index, "across_bytes")), (bytes, bytes / 2));
            assert_eq!(row(index + 3, "bytes"), 2 * bytes);
        }
        let table = text(&output.stdout);
        assert!(table.contains("bytes       tokens' rows, once for each (token, rank)"), "{table}");
        assert!(table.contains("limit       every rank copies as much"), "{table}");
        assert!(!table.contains("  -  yes"), "every row has its share of the limit: {table}");
    }
    // Four experts on two ranks: a token goes to a rank once, and comes back for each choice.
    let args = ["--tokens", "10", "--hidden", "256", "--experts", "4", "--top-k", "4", "--threads"];
    let (found, _) = results(&args);
    assert_eq!(
        (&found["rows"][0]["bytes"], &found["rows"][1]["bytes"]),
        (&10240.into(), &20480.into())
    );
    // A rank alone speaks to nobody.
    let (alone, _) = results(&["--ranks", "1", "--tokens", "10", "--hidden", "256"]);
    assert!(alone["rows"].as_array().unwrap().iter().all(|row| row["across_bytes"] == 0));
}

#[test]
fn parts_are_chosen_and_what_is_not_checked_says_so() {
    let args = ["--threads", "--tokens", "8", "--hidden", "64", "--parts", "round", "--no-check"];
    let (results, output) = results(&args);
    let rows = results["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["algorithm"]), (1, &"round".into()));
    assert_eq!(rows[0]["checked"], false);
    let line = "checked     equal routes on all ranks; no results";
    assert!(text(&output.stdout).lines().any(|found| found == line), "{output:?}");
}

#[test]
fn a_figure_has_a_curve_for_each_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figure.svg");
    let args = ["--threads", "--tokens", "1,8", "--hidden", "64", "--plot"];
    let (results, _) = results(&[&args[..], &[path.to_str().unwrap()]].concat());
    let figure = fs::read_to_string(&path).unwrap();
    let figure = roxmltree::Document::parse(&figure).unwrap();
    let circles = figure.descendants().filter(|node| node.has_tag_name("circle"));
    assert_eq!(circles.count(), 2 * results["rows"].as_array().unwrap().len());
    let texts: Vec<_> = figure.descendants().filter(|node| node.has_tag_name("text")).collect();
    for part in ["dispatch", "combine", "round"] {
        let found = texts.iter().filter(|node| node.text().unwrap_or_default().trim() == part);
        assert_eq!(found.count(), 2, "{part}: once in the legend of each panel");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_ranks_start() {
    for (args, reason) in [
        (&["--tokens", "0"][..], "0"),
        (&["--tokens", "1,x"], "x"),
        (&["--hidden", "0"], "0"),
        (&["--hidden", "18446744073709551615"], "more bytes than a rank can have"),
        (&["--top-k", "9"], "more than the 8 experts"),
        (&["--top-k", "1025"], "1025"),
        (&["--skew=-1"], "from 0 to 16"),
        (&["--skew", "nan"], "from 0 to 16"),
        (&["--dtype", "i8"], "i8"),
        (&["--layout", "heap"], "heap"),
        (&["--parts", "half"], "half"),
        (&["--layout", "vdev", "--ranks", "3"], "not as many for each of 3 ranks"),
        (&["--layout", "vdev", "--quantised"], "without --quantised"),
        (&["--layout", "padded", "--align", "8"], "of the layouts compact and vdev"),
        (&["--tokens", "100000000000"], "more than 268435456 choices"),
        (&["--plot", "figure.svg", "--ranks", "1"], "at least 2 are needed"),
    ] {
        let output = moe(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(reason), "{args:?}: {errors}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
