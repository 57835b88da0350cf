//! `symmem store`: found where it says it is, within its limits, and gone when told to go.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use symmem::mem::store::Store as _;
use symmem::mem::store::tcp::TcpStore;
use symmem::prelude::*;

/// A running store; killed with the test if it is not ended before.
struct Served {
    process: Child,
    first_line: String,
}

impl Served {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_symmem"));
        command.args(["store", "--port", "0"]).args(args);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first_line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut first_line).unwrap();
        Served { process, first_line: first_line.trim().to_owned() }
    }

    fn address(&self) -> SocketAddr {
        self.first_line.parse().unwrap()
    }

    fn client(&self) -> TcpStore {
        let address = self.address();
        let host = address.ip().to_string();
        TcpStore::connect(&host, address.port(), &Wait::seconds(30)).unwrap()
    }

    /// Sends a signal; returns the exit code and what was said on standard error.
    fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let process = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
        let code = self.process.wait().unwrap().code();
        let mut errors = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (code, errors)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Ended already, most often.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn refused(args: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_symmem")).arg("store").args(args).output().unwrap();
    assert!(!status.success() && stdout.is_empty(), "{args:?}");
    String::from_utf8(stderr).unwrap()
}

#[test]
fn clients_share_what_they_store_and_the_end_frees_the_port() {
    for signal in ["-TERM", "-INT", "-HUP"] {
        let served = Served::start(&["--print-address"]);
        let address = served.address();
        assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
        let (a, b) = (served.client(), served.client());
        let wait = Wait::seconds(30);
        a.set("key", b"value", &wait).unwrap();
        assert_eq!(b.get("key", &wait).unwrap(), b"value");
        assert_eq!(b.add("number", 40, &wait).unwrap(), 40);
        assert_eq!(a.add("number", 2, &wait).unwrap(), 42);
        let (code, errors) = served.end(signal);
        assert_eq!(code, Some(0), "{errors}");
        assert!(errors.contains(" requests on 2 connections"), "{errors}");
        assert!(errors.contains("held 2 keys"), "{errors}");
        assert!(a.get("key", &wait).is_err());
        TcpListener::bind(address).unwrap();
    }
}

#[test]
fn json_is_where_it_is() {
    let served = Served::start(&["--json", "--host", "localhost"]);
    let place: serde_json::Value = serde_json::from_str(&served.first_line).unwrap();
    let port = u16::try_from(place["port"].as_u64().unwrap()).unwrap();
    let host = place["host"].as_str().unwrap();
    TcpStore::connect(host, port, &Wait::seconds(30)).unwrap();
    assert_eq!(served.end("-TERM").0, Some(0));
}

#[test]
fn text_says_what_ranks_need() {
    let served = Served::start(&[]);
    assert!(
        served.first_line.starts_with("serving a store at 127.0.0.1:"),
        "{}",
        served.first_line
    );
}

#[test]
fn limits_hold() {
    let served = Served::start(&["--print-address", "--connections", "1", "--stored", "1K"]);
    let wait = Wait::seconds(30);
    let only = served.client();
    only.set("small", &[0; 100], &wait).unwrap();
    // One too many is closed at once.
    let mut second = TcpStream::connect(served.address()).unwrap();
    assert!(matches!(second.read(&mut [0]), Ok(0) | Err(_)));
    // So is who stores too much.
    let much = only.set("large", &[0; 2000], &wait).and_then(|()| only.get("large", &wait));
    assert!(much.is_err());
    let (code, errors) = served.end("-TERM");
    assert_eq!(code, Some(0));
    assert!(errors.contains("1 refused, 1 expelled"), "{errors}");
}

#[test]
fn keys_and_waits_have_limits() {
    let served = Served::start(&["--print-address", "--keys", "1", "--waits", "1"]);
    let wait = Wait::seconds(30);
    let [first, second] = [served.client(), served.client()];
    first.set("a", b"", &wait).unwrap();
    first.get("a", &wait).unwrap();
    let refused = second.set("b", b"", &wait).and_then(|()| second.check(&["b"], &wait));
    assert!(refused.is_err());
    const BRIEF: Wait = Wait::millis(500);
    std::thread::scope(|scope| {
        let waits: Vec<_> = [served.client(), served.client()]
            .into_iter()
            .map(|store| scope.spawn(move || store.wait(&["never"], &BRIEF).unwrap_err().kind()))
            .collect();
        // One waits; the other is refused, asks again since that changes nothing, and is refused again.
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Kind::TimedOut);
        }
    });
    let (code, errors) = served.end("-TERM");
    assert_eq!(code, Some(0));
    let counts: Vec<&str> = errors.split([',', ';']).map(str::trim).collect();
    let expelled = counts.iter().find_map(|count| count.strip_suffix(" expelled")).unwrap();
    assert!(expelled.parse::<u64>().unwrap() >= 2, "{errors}");
}

#[test]
fn a_silent_connection_is_closed() {
    let served = Served::start(&["--print-address", "--handshake", "0.05"]);
    let mut silent = TcpStream::connect(served.address()).unwrap();
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    assert!(refused(&["--port", &port]).contains("in use"));
    assert!(refused(&["--host", "no.such.host.invalid"]).contains("no.such.host.invalid"));
    assert!(refused(&["--port", "65536"]).contains("65536"));
    assert!(refused(&["--connections", "0"]).contains("from 1"));
    assert!(refused(&["--json", "--print-address"]).contains("cannot be used with"));
}
