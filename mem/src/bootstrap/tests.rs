#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::TcpListener;
use std::thread;

use super::*;

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
        "MASTER_PORT is not set, though RANK, WORLD_SIZE, MASTER_ADDR is; expected a port from 1 \
         to 65535"
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

/// A port that nobody listens on. Another process could take it in between; the kernel gives out
/// the same one again only after all others.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn rank_of(world_size: usize, rank: usize, host: &str, port: u16) -> Bootstrap {
    Bootstrap {
        rank,
        world_size,
        local_rank: None,
        local_world_size: None,
        run: RunId { launcher: None, restart: 0 },
        store: StoreAddress { host: host.into(), port },
        host: StoreHost::RankZero,
    }
}

#[test]
fn ranks_meet_on_rank_zeros_store() {
    for host in ["127.0.0.1", "localhost"] {
        let port = free_port();
        let wait = Wait::seconds(60);
        // The others first: they wait for the server.
        thread::scope(|scope| {
            for rank in (0..4).rev() {
                let wait = &wait;
                scope.spawn(move || {
                    let store = rank_of(4, rank, host, port).connect(wait).unwrap();
                    store.set(&format!("rank/{rank}"), &[rank as u8], wait).unwrap();
                    let keys: Vec<String> = (0..4).map(|r| format!("rank/{r}")).collect();
                    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                    let values = store.multi_get(&keys, wait).unwrap();
                    assert_eq!(values, [[0], [1], [2], [3]]);
                    // The host leaves last.
                    store.add("done", 1, wait).unwrap();
                    if rank == 0 {
                        while store.get("done", wait).unwrap() != b"4" {
                            thread::yield_now();
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_port_in_use_and_a_store_that_is_not_there() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    match rank_of(2, 0, "127.0.0.1", port).connect(&Wait::seconds(10)) {
        Err(JoinError::Serve(error)) => {
            assert_eq!(error.cause.kind(), std::io::ErrorKind::AddrInUse);
            assert!(error.to_string().contains(&port.to_string()), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let port = free_port();
    let error = rank_of(2, 1, "127.0.0.1", port).connect(&Wait::millis(30)).unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut);
    let text = error.to_string();
    assert!(text.starts_with("rank 1 of 2 cannot reach the store that rank 0 hosts"), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn addresses_to_listen_at() {
    let bind = |host| bind_address(host, 1).ip().to_string();
    assert_eq!(bind("127.0.0.1"), "127.0.0.1");
    assert_eq!(bind("localhost"), "127.0.0.1");
    // An address of documentation: no host's own.
    assert_eq!(bind("192.0.2.1"), "0.0.0.0");
    assert!(["::", "0.0.0.0"].contains(&bind("node-0").as_str()));
    assert_eq!(own_address("0.0.0.0:7".parse().unwrap()).to_string(), "127.0.0.1:7");
    assert_eq!(own_address("[::]:7".parse().unwrap()).to_string(), "[::1]:7");
}
