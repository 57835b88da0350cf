//! Our client on PyTorch's servers: every check that every store passes, and lost connections.

use std::sync::{Arc, Mutex};
use std::thread;

use libtest_mimic::Trial;
use symmem_hal::{Fault, Kind};
use symmem_mem::store::tcp::TcpStore;
use symmem_mem::store::{Store, StoreError};

use crate::checks::{self, Ranks, every_check, long};
use crate::proxy::{Cut, Proxy};
use crate::python::{Python, Running};

type Check = fn(&Ranks);

macro_rules! list {
    ($($module:ident::{$($check:ident),* $(,)?},)*) => {
        &[$($((stringify!($check), checks::$module::$check as Check)),*),*]
    };
}

const CHECKS: &[(&str, Check)] = every_check!(list);

/// What PyTorch's older server does not do: it has no queues, and its compare_set wakes nobody.
const NOT_POLL: &[&str] = &[
    "keys_come_and_go",
    "queues_are_first_in_first_out",
    "queues_and_values_do_not_touch",
    "a_queue_serves_each_value_once",
    "every_setter_wakes",
];

type Make<'a> = &'a dyn Fn(&str, Box<dyn FnOnce(&Python) + Send>) -> Trial;

pub fn trials(trial: Make<'_>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for backend in ["libuv", "poll"] {
        let servers: Arc<Mutex<Option<Running>>> = Arc::default();
        let checks = CHECKS.iter().chain(&[(
            "a_key_that_came_counts_for_who_waited",
            checks::values::a_key_that_came_counts_for_who_waited as Check,
        )]);
        for (name, check) in checks {
            if backend == "poll" && NOT_POLL.contains(name) {
                continue;
            }
            let (check, servers) = (*check, servers.clone());
            let run = Box::new(move |python: &Python| {
                let port = fresh(&servers, python, backend);
                let connect = move || TcpStore::connect("127.0.0.1", port, &long()).unwrap();
                check(&(Box::new(move || -> Arc<dyn Store> { Arc::new(connect()) }) as Ranks));
            });
            trials.push(trial(&format!("torch_{backend}::{name}"), run));
        }
        let of = servers.clone();
        let run = Box::new(move |python: &Python| cuts(&|| fresh(&of, python, backend)));
        trials.push(trial(&format!("torch_{backend}::nothing_is_done_twice"), run));
        let run = Box::new(move |python: &Python| ends(python, backend));
        trials.push(trial(&format!("torch_{backend}::a_server_that_ends_is_lost"), run));
    }
    trials
}

/// The port of a server that nobody has used; all of a back end are in one process.
fn fresh(servers: &Mutex<Option<Running>>, python: &Python, backend: &str) -> u16 {
    let mut servers = servers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    servers.get_or_insert_with(|| python.script(["servers", backend])).ask().parse().unwrap()
}

fn ends(python: &Python, backend: &str) {
    let mut server = python.script(["servers", backend]);
    let port = server.ask().parse().unwrap();
    let store = TcpStore::connect("127.0.0.1", port, &long()).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| store.wait(&["never"], &long()).unwrap_err());
        server.end();
        assert_eq!(waiter.join().unwrap().kind(), Kind::System);
    });
    assert_eq!(store.check(&["n"], &long()).unwrap_err().kind(), Kind::System);
}

/// Additions over connections that are cut at each byte: each counts once, or its call says that it is
/// not known whether it did.
fn cuts(fresh: &dyn Fn() -> u16) {
    let port = fresh();
    let server = ([127, 0, 0, 1], port).into();
    let direct = TcpStore::connect("127.0.0.1", port, &long()).unwrap();
    for make in [Cut::Up as fn(usize) -> Cut, Cut::Down] {
        for n in 0.. {
            let proxy = Proxy::new(server, vec![Some(make(n))], false);
            let store = TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
            let key = format!("{:?}", make(n));
            let mut sure = 0;
            let mut doubtful = 0;
            for i in 0..2 {
                let set = store.set(&format!("{key}/{i}"), b"1", &long());
                let added = store.add(&key, 1, &long());
                for result in [set.map(|()| 0), added.map(|_| 1)] {
                    match result {
                        Ok(n) => sure += n,
                        Err(StoreError::Doubtful { doubtful: keys, .. }) => {
                            doubtful += keys.iter().filter(|found| **found == key).count();
                        }
                        Err(other) => panic!("{n}: {other}"),
                    }
                }
            }
            let counted = direct.add(&key, 0, &long()).unwrap() as usize;
            assert!(
                (sure..=sure + doubtful).contains(&counted),
                "{n}: {sure} {counted} {doubtful}"
            );
            assert!(sure >= 1, "{n}: {sure}");
            if proxy.made() == 0 {
                assert!(n >= 4 + 2 * 8, "{n}");
                break;
            }
        }
    }
}
