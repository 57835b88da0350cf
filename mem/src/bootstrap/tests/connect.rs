//! Joining and hosting the store.

use std::net::TcpListener;
use std::thread;

use symmem_hal::{Fault, Kind, Wait};

use super::super::connect::{bind_address, own_address};
use super::super::*;

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
        node: None,
        nodes: None,
        launcher: Launcher::Exported,
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
            let text = JoinError::Serve(error).to_string();
            assert!(text.contains(&port.to_string()) && text.contains("MASTER_PORT"), "{text}");
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
