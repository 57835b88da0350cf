//! `symmem info`: both forms tell the same, and every answer has its reason.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

fn info(args: &[&str], environment: &[(&str, &str)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_symmem"))
        .arg("info")
        .args(args)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(environment: &[(&str, &str)]) -> Value {
    serde_json::from_str(&info(&["--json"], environment)).unwrap()
}

fn feature<'a>(info: &'a Value, name: &str) -> &'a Value {
    let features = info["features"].as_array().unwrap();
    features.iter().find(|feature| feature["name"] == name).unwrap()
}

#[test]
fn json_tells_devices_libraries_features_and_knobs() {
    let found = json(&[]);
    let backends: Vec<&Value> =
        found["devices"].as_array().unwrap().iter().map(|device| &device["backend"]).collect();
    // Then GPUs, where there are any.
    assert_eq!(backends[..2], ["host", "stub"]);
    assert!(backends[2..].iter().all(|backend| *backend == "cuda"));
    for feature in found["features"].as_array().unwrap() {
        assert!(feature["supported"].is_boolean());
        assert!(!feature["because"].as_str().unwrap().is_empty(), "{feature}");
    }
    // These tests run on such a machine, or the rest of the suite could not.
    for name in [
        "ranks as threads",
        "ranks as processes",
        "sealed shared memory",
        "descriptors sent to peers",
        "sleeping until a peer writes",
        "host",
        "stub",
    ] {
        assert_eq!(feature(&found, name)["supported"], true, "{name}");
    }
    for library in found["libraries"].as_array().unwrap() {
        match library["found"].as_str().unwrap() {
            "yes" => assert!(library["path"].is_string()),
            _ => assert!(!library["searched"].as_array().unwrap().is_empty()),
        }
    }
    assert_eq!(found["options"]["workspace_bytes_per_lane"], 32 << 20);
    assert!(found["memory_limits"].as_array().unwrap().iter().any(|limit| {
        limit["available_bytes"].as_u64().unwrap() > 0 && limit["source"].is_string()
    }));
}

#[test]
fn json_tells_what_the_system_allows() {
    let found = json(&[]);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(found["system"]["kernel"], format!("Linux {}", kernel.trim()));
    assert!(found["system"]["memory_bytes"].as_u64().unwrap() > 0);
    let namespaces = found["namespaces"].as_array().unwrap();
    for namespace in namespaces {
        let name = namespace["name"].as_str().unwrap();
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_eq!(namespace["id"], own.to_str().unwrap());
    }
    assert!(namespaces.iter().any(|n| n["name"] == "net" && n["must_be_shared"] == true));
}

#[test]
fn a_limit_of_open_files_is_what_it_is_set_to() {
    let script = "ulimit -S -n 77; ulimit -H -n 99; exec \"$0\" info --json";
    let output =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_symmem")]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let limits = found["limits"].as_array().unwrap();
    let files = limits.iter().find(|limit| limit["name"] == "open files").unwrap();
    assert_eq!((&files["limit"], &files["hard_limit"]), (&77.into(), &99.into()));
    assert!(files["used"].as_u64().unwrap() >= 3);
    assert!(limits.iter().any(|limit| limit["source"] == "RLIMIT_MEMLOCK (ulimit -l)"));
}

#[test]
fn the_environment_is_what_it_is() {
    let path = "/nowhere/libcuda.so.1";
    let found = json(&[("SYMMEM_CUDA_LIBRARY", path), ("NCCL_NVLS_ENABLE", "0")]);
    let library = &found["libraries"][0];
    assert_eq!((&library["found"], &library["searched"][0]["path"]), (&"no".into(), &path.into()));
    let multicast = feature(&found, "multicast");
    assert_eq!(multicast["supported"], false);
    assert_eq!(multicast["because"], "switched off by NCCL_NVLS_ENABLE=0");
    let variables = found["environment"].as_array().unwrap();
    let cuda = variables.iter().find(|v| v["name"] == "SYMMEM_CUDA_LIBRARY").unwrap();
    assert_eq!(cuda["value"], path);
}

#[test]
fn the_launcher_is_told_or_why_there_is_none() {
    let rank = [("RANK", ""), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
    let here = [("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")];
    let variables = [&rank[..], &here, &[("MASTER_PORT", "7")]].concat();
    let found = json(&variables);
    assert_eq!(found["launcher"]["name"], "Open MPI's mpirun");
    let because =
        "rank 1 of 4, 4 of them on this host; the store is at 127.0.0.1:7, hosted by rank 0";
    assert_eq!(found["launcher"]["because"], because);
    assert!(info(&[], &variables).contains(because));
    let found = json(&[&variables[..], &[("PMI_RANK", "0"), ("PMI_SIZE", "2")]].concat());
    assert_eq!(found["launcher"]["name"], Value::Null);
    let because = found["launcher"]["because"].as_str().unwrap();
    assert!(
        because.contains("PMI_RANK=0") && because.contains("OMPI_COMM_WORLD_RANK=1"),
        "{because}"
    );
    let found = json(&[]);
    assert_eq!(found["launcher"]["name"], Value::Null);
    assert!(found["launcher"]["because"].as_str().unwrap().starts_with("no launcher"));
}

#[test]
fn text_tells_every_feature_and_reason() {
    let text = info(&[], &[]);
    let found = json(&[]);
    for feature in found["features"].as_array().unwrap() {
        for part in ["name", "because"] {
            let part = feature[part].as_str().unwrap();
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    for (list, key) in [("limits", "source"), ("namespaces", "because"), ("devices", "uuid")] {
        for item in found[list].as_array().unwrap() {
            let part = item[key].as_str().unwrap();
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
