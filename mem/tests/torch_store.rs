//! The TCP store against PyTorch's: its clients on our server, our client on its servers.
//!
//! Needs a Python that has torch, named by `SYMMEM_TEST_PYTHON`; without it the tests are skipped
//! and say so.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;

use libtest_mimic::{Arguments, Failed, Trial};
use symmem_hal::{CancelToken, Fault, Kind, Wait};
use symmem_mem::store::tcp::{StoreServer, TcpStore};
use symmem_mem::store::{Missing, PrefixStore, Store, StoreError};

const VARIABLE: &str = "SYMMEM_TEST_PYTHON";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch_store.py");

fn main() -> ExitCode {
    let python = env::var_os(VARIABLE).filter(|python| !python.is_empty());
    let trial = |name: &str, run: fn(&OsString)| {
        let (named, python) = (python.is_some(), python.clone().unwrap_or_default());
        let run = move || -> Result<(), Failed> {
            run(&python);
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(!named)
    };
    let trials = vec![
        trial("torch_clients_on_our_server", torch_clients_on_our_server),
        trial("our_client_on_torchs_libuv_server", |python| our_client(python, "libuv")),
        trial("our_client_on_torchs_poll_server", |python| our_client(python, "poll")),
    ];
    if python.is_none() {
        println!("skipped: {} tests: {VARIABLE} names no Python that has torch", trials.len());
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn long() -> Wait {
    Wait::seconds(120)
}

/// Ends with the test, whatever its outcome.
struct Script(Child);

impl Script {
    fn start(python: &OsString, arguments: [&str; 2]) -> Self {
        let mut command = Command::new(python);
        command.arg(SCRIPT).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        Script(command.spawn().unwrap())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Ends its input and waits for its end.
    fn finish(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The store as Python code sees it, which puts a slash before each key.
fn as_python(store: TcpStore) -> Arc<dyn Store> {
    Arc::new(PrefixStore::new(Arc::new(store), ""))
}

fn torch_clients_on_our_server(python: &OsString) {
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.local_addr().port();
    let store = as_python(TcpStore::connect("127.0.0.1", port, &long()).unwrap());
    store.set("from-rust", b"\x00\xff rust", &long()).unwrap();
    let script = Script::start(python, ["client", &port.to_string()]);
    store.wait(&["ready"], &long()).unwrap();
    assert_eq!(store.get("text", &long()).unwrap(), b"from python");
    assert_eq!(store.get("count", &long()).unwrap(), b"-2");
    assert_eq!(store.get("b/a/k", &long()).unwrap(), b"prefixed");
    assert_eq!(store.get("large", &long()).unwrap().len(), 256 << 14);
    store.set("answer", b"42", &long()).unwrap();
    store.wait(&["done", "rank/0", "rank/3"], &long()).unwrap();
    script.finish();
    assert_eq!(server.stats().expelled, 0);
}

fn our_client(python: &OsString, backend: &str) {
    let mut script = Script::start(python, ["server", backend]);
    let port = script.line().parse().unwrap();
    let direct = TcpStore::connect("127.0.0.1", port, &long()).unwrap();
    let store = as_python(direct.clone());
    let wait = long();
    assert_eq!(store.get("from-python", &wait).unwrap(), b"\x00\xff python");

    let large: Vec<u8> = (0..8 << 20).map(|i: u32| (i >> 3) as u8).collect();
    store.set("large", &large, &wait).unwrap();
    assert!(store.get("large", &wait).unwrap() == large);
    assert_eq!(store.add("n", 5, &wait).unwrap(), 5);
    assert_eq!(store.add("n", -7, &wait).unwrap(), -2);
    assert_eq!(store.compare_set("swap", b"x", b"y", &wait).unwrap(), b"x");
    assert!(!store.check(&["swap"], &wait).unwrap());
    assert_eq!(store.compare_set("swap", b"", b"one", &wait).unwrap(), b"one");
    assert_eq!(store.compare_set("swap", b"two", b"three", &wait).unwrap(), b"one");
    assert_eq!(store.compare_set("swap", b"one", b"two", &wait).unwrap(), b"two");
    store.set("empty", b"", &wait).unwrap();
    let values = store.multi_get(&["swap", "empty", "n", "swap"], &wait).unwrap();
    assert_eq!(values, [&b"two"[..], b"", b"-2", b"two"]);

    for millis in [0, 20] {
        match store.wait(&["absent/0", "n", "absent/1"], &Wait::millis(millis)) {
            Err(StoreError::TimedOut { missing: Missing::Keys(keys), .. }) => {
                assert_eq!(keys, ["/absent/0", "/absent/1"]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(store.add("n", 0, &wait).unwrap(), -2);
    }
    let token = CancelToken::new();
    let cancelled = long().with_cancel(token.clone());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| store.get("never", &cancelled).unwrap_err());
        token.cancel();
        assert_eq!(waiter.join().unwrap().kind(), Kind::Cancelled);
    });

    // Threads that share the connection, and a rank of its own beside them.
    let other = as_python(TcpStore::connect("127.0.0.1", port, &wait).unwrap());
    thread::scope(|scope| {
        for lane in 0..4 {
            for (own, store) in [(0, &store), (1, &other)] {
                scope.spawn(move || {
                    for step in 0..20 {
                        let key = |rank| format!("lane/{lane}/{step}/{rank}");
                        store.set(&key(own), b"x", &long()).unwrap();
                        assert_eq!(store.get(&key(1 - own), &long()).unwrap(), b"x");
                    }
                });
            }
        }
    });

    // The server ends while a call waits.
    thread::scope(|scope| {
        let waiter = scope.spawn(|| direct.wait(&["never"], &long()).unwrap_err());
        script.finish();
        assert_eq!(waiter.join().unwrap().kind(), Kind::System);
    });
    assert_eq!(direct.check(&["n"], &long()).unwrap_err().kind(), Kind::System);
}
