//! torchrun's variables, by themselves.

use symmem_hal::{Fault, Kind};

use super::super::*;

const BASE: [(&str, &str); 9] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node-0"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "job-7"),
    ("TORCHELASTIC_RESTART_COUNT", "2"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
];

/// The base environment with some variables changed, or taken out where the value is "-".
fn read(changes: &[(&str, &str)]) -> Result<Bootstrap, EnvError> {
    Bootstrap::from_lookup(&|name| {
        let changed = changes.iter().find(|(n, _)| *n == name);
        let (_, value) = changed.or_else(|| BASE.iter().find(|(n, _)| *n == name))?;
        (*value != "-").then(|| (*value).to_owned())
    })
}

#[test]
fn all_of_torchrun() {
    let expected = Bootstrap {
        rank: 3,
        world_size: 8,
        local_rank: Some(1),
        local_world_size: Some(2),
        node: None,
        nodes: None,
        launcher: Launcher::Torchrun,
        run: RunId { launcher: Some("job-7".into()), restart: 2 },
        store: StoreAddress { host: "node-0".into(), port: 29500 },
        host: StoreHost::Launcher,
    };
    assert_eq!(read(&[]), Ok(expected));
}

#[test]
fn what_may_be_absent() {
    let optional = BASE.map(|(name, _)| (name, "-"));
    let bootstrap = read(&[&optional[2..4], &optional[6..]].concat()).unwrap();
    assert_eq!(bootstrap.local_rank, None);
    assert_eq!(bootstrap.local_world_size, None);
    assert_eq!(bootstrap.run, RunId { launcher: None, restart: 0 });
    assert_eq!(bootstrap.host, StoreHost::RankZero);
    assert_eq!(bootstrap.launcher, Launcher::Exported);
    // torchrun's own way to say that nobody chose an id.
    assert_eq!(read(&[("TORCHELASTIC_RUN_ID", "none")]).unwrap().run.launcher, None);
    assert_eq!(read(&[("TORCHELASTIC_RUN_ID", "")]).unwrap().run.launcher, None);
    let own = read(&[("TORCHELASTIC_USE_AGENT_STORE", "False")]).unwrap();
    assert_eq!(own.host, StoreHost::RankZero);
}

#[test]
fn what_must_be_there() {
    let required = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
    for name in required {
        for value in ["-", ""] {
            match read(&[(name, value)]) {
                Err(EnvError::Missing { variable, present, .. }) => {
                    assert_eq!(variable, name);
                    assert_eq!(present.len(), 3);
                }
                other => panic!("{name} = {value:?}: {other:?}"),
            }
        }
    }
    assert_eq!(read(&required.map(|name| (name, "-"))), Err(EnvError::NotLaunched));
    let error = read(&[("MASTER_PORT", "-")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "MASTER_PORT is not set, beside RANK, WORLD_SIZE, MASTER_ADDR; expected a port from 1 to \
         65535"
    );
    assert_eq!(error.kind(), Kind::InvalidArgument);
}

#[test]
fn what_is_refused() {
    for (name, value) in [
        ("RANK", "-1"),
        ("RANK", "three"),
        ("RANK", "1.0"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", " 8"),
        ("LOCAL_WORLD_SIZE", "0"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("TORCHELASTIC_RESTART_COUNT", "-1"),
        ("TORCHELASTIC_USE_AGENT_STORE", "true"),
        ("TORCHELASTIC_USE_AGENT_STORE", "1"),
    ] {
        match read(&[(name, value)]) {
            Err(EnvError::Invalid { variable, found, .. }) => {
                assert_eq!((variable, found.as_str()), (name, value));
            }
            other => panic!("{name} = {value:?}: {other:?}"),
        }
    }
}

#[test]
fn what_contradicts() {
    for (changes, first, second) in [
        (&[("RANK", "8")][..], "RANK", "WORLD_SIZE"),
        (&[("LOCAL_WORLD_SIZE", "9")], "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
        (&[("LOCAL_RANK", "2")], "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        (&[("LOCAL_WORLD_SIZE", "-"), ("LOCAL_RANK", "8")], "LOCAL_RANK", "WORLD_SIZE"),
    ] {
        match read(changes) {
            Err(EnvError::Conflict { first: a, second: b, .. }) => {
                assert_eq!((a, b), (first, second));
            }
            other => panic!("{changes:?}: {other:?}"),
        }
    }
    let error = read(&[("RANK", "8")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RANK is 8 and WORLD_SIZE is 8: a rank is below the number of ranks"
    );
    assert!(read(&[("RANK", "7"), ("LOCAL_WORLD_SIZE", "8"), ("LOCAL_RANK", "7")]).is_ok());
}
