//! `symmem bench rendezvous --logical-ranks` as its users see it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Output};

use serde_json::Value;
use symmem::mem::store::tcp::StoreServer;

fn symmem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symmem"));
    command.args(["bench", "rendezvous"]).args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a benchmark; returns its rows, and what it said.
fn rows(args: &[&str]) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let output = symmem(args).arg("--json").arg(&path).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    let results: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(results["op"], "rendezvous");
    (results["rows"].as_array().unwrap().clone(), text(&output.stdout))
}

fn plans(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["plan"].as_str().unwrap()).collect()
}

#[test]
fn every_plan_costs_what_it_says() {
    let (rows, said) = rows(&["--logical-ranks", "144,100", "--iterations", "2"]);
    assert_eq!(plans(&rows), ["gather", "keys", "flat", "multi_get"].repeat(2));
    for (row, ranks) in rows.iter().zip([144; 4].into_iter().chain([100; 4])) {
        assert_eq!((&row["logical_ranks"], &row["group"]), (&ranks.into(), &72.into()));
        assert_eq!((&row["checked"], &row["waves"]), (&true.into(), &1.into()));
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("seconds") > 0.0 && number("connect_seconds") > 0.0, "{row}");
        assert_eq!(row["runs"].as_array().unwrap().len(), 2);
        // All of a group's records, at least, come to each host.
        assert!(
            number("bytes_per_rank") * f64::from(row["per_host"].as_u64().unwrap() as u32)
                > 28.0 * 200.0
        );
        assert!(row.get("missing").is_none());
    }
    let requests = |row: &Value| {
        (row["requests_per_rank"].as_f64().unwrap(), row["most_requests"].as_u64().unwrap())
    };
    let found: Vec<_> = rows[..4].iter().map(requests).collect();
    // A get is a wait and a fetch.
    assert_eq!(found, [(1.25, 3), (1.75, 7), (143.0, 143), (3.0, 3)]);
    assert!(said.contains("us a rank") && said.contains("multi_get"), "{said}");
}

#[test]
fn the_load_asks_what_the_librarys_client_asks() {
    let common = ["--logical-ranks", "30", "--group", "10", "--per-host", "4", "--processes", "3"];
    let of = |client| {
        let args = [&common[..], &["--iterations", "1", "--plan", "gather", "--client", client]];
        rows(&args.concat()).0.swap_remove(0)
    };
    let (wire, library) = (of("wire"), of("library"));
    for key in ["requests_per_rank", "most_requests", "bytes_per_rank"] {
        assert_eq!(wire[key], library[key], "{key}");
    }
    assert_eq!((&wire["client"], &library["client"]), (&"wire".into(), &"library".into()));
    // Keys are for servers of others, as far as the library's client goes.
    let (rest, _) = rows(&[&common[..], &["--iterations", "1", "--client", "library"]].concat());
    assert_eq!(plans(&rest), ["gather", "flat", "multi_get"]);
    assert_eq!(rest[1]["requests_per_rank"], 19.0);
}

#[test]
fn a_missing_rank_is_named_by_all_others_of_its_group() {
    let check = |rank: &str, plan: &str, client: &str, count: usize| {
        // All that the others do without it takes some milliseconds.
        let args = ["--logical-ranks", "39", "--group", "13", "--per-host", "4", "--deadline", "4"];
        let more = ["--missing", rank, "--plan", plan, "--client", client];
        let (rows, said) = rows(&[&args[..], &more].concat());
        assert_eq!(rows.len(), count);
        for row in &rows {
            let missing = &row["missing"];
            assert_eq!(missing["rank"].to_string(), rank);
            assert_eq!(missing["named_by"], 12);
            let after = |key: &str| missing[key].as_f64().unwrap();
            assert_eq!(after("deadline_seconds"), 4.0);
            assert!(after("first_seconds") >= 4.0);
            assert!(after("last_seconds") >= after("first_seconds"));
        }
        let named = format!("rank {rank} did not come: named by all 12 others");
        assert_eq!(said.matches(&named).count(), count, "{said}");
    };
    std::thread::scope(|scope| {
        // One whom others lead, the first of its host, and the only one of the last host.
        scope.spawn(|| check("15", "all", "wire", 4));
        scope.spawn(|| check("17", "gather,keys", "wire", 2));
        scope.spawn(|| check("25", "gather,keys", "wire", 2));
        scope.spawn(|| check("15", "all", "library", 3));
    });
}

#[test]
fn who_is_too_slow_is_no_figure() {
    let output = symmem(&["--logical-ranks", "144", "--plan", "flat", "--deadline", "0.001"])
        .output()
        .unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains("after the deadline of 0.001 s") && errors.contains("--deadline"),
        "{errors}"
    );
    assert!(!text(&output.stdout).contains("us a rank"));
}

#[test]
fn groups_meet_in_waves_where_descriptors_do_not_suffice() {
    let limited = |most: u32, args: &str| -> Output {
        let program = env!("CARGO_BIN_EXE_symmem");
        let line = format!("ulimit -n {most}; exec {program} bench rendezvous {args}");
        Command::new("sh").args(["-c", &line]).output().unwrap()
    };
    let args = "--logical-ranks 400 --group 20 --plan gather,flat --iterations 1";
    let output = limited(200, args);
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    // 136 for ranks: six groups.
    assert!(said.contains("RLIMIT_NOFILE is 200 at most: up to 4 waves of whole groups"), "{said}");
    let line = said.lines().find(|line| line.contains(" gather ")).unwrap();
    assert!(line.split_whitespace().rev().nth(1) == Some("4"), "{line}");
    let output = limited(80, args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("a group of 20 needs") && errors.contains("ulimit -Hn"), "{errors}");
}

#[test]
fn a_store_that_is_there_serves_as_well() {
    let server = StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = server.local_addr().to_string();
    let own = std::process::id().to_string();
    let (rows, said) = rows(&["--logical-ranks", "40", "--server", &address, "--server-pid", &own]);
    assert_eq!(plans(&rows), ["gather", "keys", "flat", "multi_get"]);
    assert!(rows.iter().all(|row| row["server"] == *address) && said.contains(&address));
    assert!(server.stats().requests > 40 * 3);
    drop(server);
    let output = symmem(&["--logical-ranks", "40", "--server", &address]).output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains(&address), "{output:?}");
}

#[test]
fn what_answers_but_is_no_store_is_told() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let output = symmem(&["--logical-ranks", "8", "--server", &address]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains(&address), "{output:?}");
    serve.join().unwrap();
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_starts() {
    for (args, reason) in [
        (&["--logical-ranks", "0"][..], "0"),
        (&["--logical-ranks", "16777217"], "16777217"),
        (&["--logical-ranks", "144", "--group", "0"], "0"),
        (&["--logical-ranks", "144", "--per-host", "73"], "--per-host 73 is more than --group 72"),
        (
            &["--logical-ranks", "144", "--plan", "round"],
            "there are gather, keys, flat, multi_get and all",
        ),
        (&["--logical-ranks", "144", "--missing", "144"], "there are ranks 0 to 143"),
        (
            &["--logical-ranks", "144", "--group", "1", "--per-host", "1", "--missing", "3"],
            "leaves nobody",
        ),
        (&["--logical-ranks", "144", "--record", "0"], "--record 0"),
        (&["--logical-ranks", "144", "--record", "2M"], "fit in one answer"),
        (&["--logical-ranks", "144", "--processes", "0"], "0"),
        (&["--logical-ranks", "144", "--ranks", "2"], "cannot be used with"),
        (&["--logical-ranks", "144", "--threads"], "cannot be used with"),
        (&["--logical-ranks", "144", "--server", "nowhere"], "nowhere"),
        (&["--logical-ranks", "144", "--server-pid", "1"], "--server"),
        (&["--group", "72"], "--logical-ranks"),
        (&["--missing", "1"], "--logical-ranks"),
    ] {
        let output = symmem(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(reason), "{args:?}: {errors}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let output =
        symmem(&["--logical-ranks", "8", "--json", "/nowhere/rows.json"]).output().unwrap();
    assert!(text(&output.stderr).contains("/nowhere/rows.json") && output.stdout.is_empty());
    let output = symmem(&["--logical-ranks", "8", "--client", "library", "--plan", "keys"])
        .output()
        .unwrap();
    assert!(text(&output.stderr).contains("no plan is left"), "{output:?}");
}
