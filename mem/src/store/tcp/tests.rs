//! What the two ends do with peers that misbehave, and what they count.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cuts;
mod gather;
mod limits;
mod pending;
pub(crate) mod proxy;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use symmem_hal::{CancelToken, Fault, Kind, Wait};

use super::wire::{Answer, Limits, Query, Request};
use super::*;
use crate::store::{LostCause, Missing, Store, StoreError};

fn long() -> Wait {
    Wait::seconds(120)
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn serve(limits: ServerLimits) -> StoreServer {
    StoreServer::bind_with(loopback(), limits).unwrap()
}

fn client(server: &StoreServer) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.local_addr().port(), &long()).unwrap()
}

/// A client without any manners.
struct Raw(TcpStream);

impl Raw {
    fn connect(server: &StoreServer) -> Self {
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        Raw(stream)
    }

    fn validated(server: &StoreServer) -> Self {
        let mut raw = Raw::connect(server);
        raw.request(&Request::Validate);
        raw
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn request(&mut self, request: &Request<'_>) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.send(&bytes);
    }

    fn read(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Waits for the server to close; a reset is a close too.
    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Answers for one client, from a script.
fn scripted(script: impl FnOnce(TcpStream) + Send + 'static) -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // VALIDATE and its magic, PING and its nonce.
        let mut hello = [0; 10];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&hello[6..]).unwrap();
        script(stream);
    });
    (port, thread)
}

fn lost(error: &StoreError) -> &LostCause {
    match error {
        StoreError::Lost { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_no_request_closes_that_connection_only() {
    let server = serve(ServerLimits::DEFAULT);
    let good = client(&server);
    // Waited for: other connections see it.
    good.set("k", b"v", &long()).unwrap();
    good.wait(&["k"], &long()).unwrap();

    let mut expelled = 0;
    let mut expel = |bytes: &[u8], validate: bool| {
        let mut raw = if validate { Raw::validated(&server) } else { Raw::connect(&server) };
        raw.send(bytes);
        assert!(raw.is_closed(), "{bytes:?}");
        expelled += 1;
    };
    // No VALIDATE first, or a wrong one.
    expel(b"GET / HTTP/1.1\r\n\r\n", false);
    expel(&[Query::CancelWait.code()], false);
    expel(&[Query::Validate.code(), 0, 0, 0, 0], false);
    // Codes of nothing, and of what only this crate's clients know to ask for.
    expel(&[255], true);
    for request in [
        Request::Open { session: 1 },
        Request::Resume { session: 1, next: 1 },
        Request::Gather { key: b"g", total: 1, slots: &[0; 4], value: b"" },
    ] {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        expel(&bytes, true);
    }
    // Lengths beyond the limits, without the bytes.
    for code in [Query::Set, Query::Get, Query::Wait] {
        let mut bytes = vec![code.code()];
        bytes.extend_from_slice(&u64::MAX.to_le_bytes());
        expel(&bytes, true);
    }
    // A second WAIT in the first, and an addition to text.
    let mut bytes = Vec::new();
    Request::Wait { keys: vec![b"never"] }.encode(&mut bytes);
    Request::Wait { keys: vec![b"never"] }.encode(&mut bytes);
    expel(&bytes, true);
    let mut bytes = Vec::new();
    Request::Add { key: b"k", amount: 1 }.encode(&mut bytes);
    expel(&bytes, true);

    assert_eq!(good.get("k", &long()).unwrap(), b"v");
    assert_eq!(server.stats().expelled, expelled);
    assert_eq!(server.stats().open, 1);
}

#[test]
fn a_request_in_pieces_is_a_request() {
    let server = serve(ServerLimits::DEFAULT);
    let mut raw = Raw::validated(&server);
    let good = client(&server);
    let value = vec![7; 100_000];
    let mut bytes = Vec::new();
    Request::Set { key: b"k", value: &value }.encode(&mut bytes);
    Request::MultiGet { keys: vec![b"k", b"absent", b"k"] }.encode(&mut bytes);
    let (head, tail) = bytes.split_at(3);
    raw.send(head);
    // Half a request holds nobody up.
    assert!(!good.check(&["k"], &long()).unwrap());
    for piece in tail.chunks(9973) {
        raw.send(piece);
    }
    let answer = raw.read(3 * 8 + 200_000);
    assert_eq!(Answer::values(&answer), [value.clone(), Vec::new(), value]);
    // One that ends within a request has no effect.
    let mut bytes = Vec::new();
    Request::Set { key: b"cut", value: b"12345" }.encode(&mut bytes);
    raw.send(&bytes[..bytes.len() - 1]);
    raw.0.shutdown(Shutdown::Write).unwrap();
    assert!(raw.is_closed());
    assert!(!good.check(&["cut"], &long()).unwrap());
}

#[test]
fn arbitrary_bytes_leave_the_server_whole() {
    let server = serve(ServerLimits::DEFAULT);
    let good = client(&server);
    let strategy = (any::<bool>(), 0..20u8, proptest::collection::vec(any::<u8>(), 0..200));
    let mut runner = TestRunner::deterministic();
    for i in 0..200 {
        let (validate, code, bytes) = strategy.new_tree(&mut runner).unwrap().current();
        let mut raw = if validate { Raw::validated(&server) } else { Raw::connect(&server) };
        // The server may have closed it before all is written.
        let _ = raw.0.write_all(&[code]).and_then(|()| raw.0.write_all(&bytes));
        let _ = raw.0.shutdown(Shutdown::Write);
        let _ = raw.0.read_to_end(&mut Vec::new());
        assert_eq!(good.add("n", 1, &long()).unwrap(), i + 1);
    }
}

#[test]
fn a_silent_connection_is_closed_and_an_idle_client_is_not() {
    let handshake = Duration::from_millis(50);
    let server = serve(ServerLimits { handshake, ..ServerLimits::DEFAULT });
    let idle = client(&server);
    let mut silent = Raw::connect(&server);
    let mut half = Raw::connect(&server);
    half.send(&[Query::Validate.code(), 0xce]);
    assert!(silent.is_closed());
    assert!(half.is_closed());
    assert_eq!(server.stats().expelled, 2);
    assert_eq!(idle.add("n", 1, &long()).unwrap(), 1);
}

#[test]
fn connections_over_the_limit_are_refused_until_one_leaves() {
    let server = serve(ServerLimits { connections: 2, ..ServerLimits::DEFAULT });
    let (first, second) = (client(&server), client(&server));
    assert!(Raw::connect(&server).is_closed());
    let port = server.local_addr().port();
    let error = TcpStore::connect("127.0.0.1", port, &Wait::millis(30)).unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut);
    assert!(error.to_string().contains("handshake"), "{error}");
    assert!(server.stats().refused >= 2);
    drop(first);
    // Tries again until the server has seen the other leave.
    let third = client(&server);
    second.set("k", b"v", &long()).unwrap();
    assert_eq!(third.get("k", &long()).unwrap(), b"v");
}

#[test]
fn memory_has_limits() {
    let server = serve(ServerLimits { stored: 100_000, ..ServerLimits::DEFAULT });
    let (good, greedy) = (client(&server), client(&server));
    good.set("k", &[1; 50_000], &long()).unwrap();
    good.wait(&["k"], &long()).unwrap();
    greedy.set("l", &[1; 50_000], &long()).unwrap();
    let error = greedy.check(&["l"], &long()).unwrap_err();
    assert!(matches!(lost(&error), LostCause::Refused { .. }), "{error}");
    assert!(!good.check(&["l"], &long()).unwrap());
    let stats = server.stats();
    assert_eq!((stats.keys, stats.expelled), (1, 1));
    assert!(stats.stored > 50_000 && stats.stored < 51_000, "{stats:?}");

    // A message under way counts as soon as its bytes come.
    let server = serve(ServerLimits { buffered: 300_000, ..ServerLimits::DEFAULT });
    let good = client(&server);
    let mut raw = Raw::validated(&server);
    raw.send(&[Query::Set.code()]);
    raw.send(&1u64.to_le_bytes());
    raw.send(b"k");
    raw.send(&(8u64 << 20).to_le_bytes());
    let _ = raw.0.write_all(&vec![0; 1 << 20]);
    assert!(raw.is_closed());
    assert_eq!(good.add("n", 1, &long()).unwrap(), 1);

    // An answer larger than its limit is not begun.
    let wire = Limits { answer: 1000, ..Limits::DEFAULT };
    let server = serve(ServerLimits { wire, ..ServerLimits::DEFAULT });
    let good = client(&server);
    good.set("k", &[1; 400], &long()).unwrap();
    assert_eq!(good.multi_get(&["k", "k"], &long()).unwrap().len(), 2);
    let error = good.multi_get(&["k", "k", "k"], &long()).unwrap_err();
    assert_eq!(error.kind(), Kind::System);
}

#[test]
fn a_slow_reader_is_served_at_its_own_pace() {
    const REQUESTS: usize = 200;
    const BYTES: usize = 1 << 20;
    let server = serve(ServerLimits { buffered: 16 << 20, ..ServerLimits::DEFAULT });
    let good = client(&server);
    good.set("large", &vec![5; BYTES], &long()).unwrap();
    good.wait(&["large"], &long()).unwrap();
    let mut slow = Raw::validated(&server);
    let mut bytes = Vec::new();
    for _ in 0..REQUESTS {
        Request::Get { key: b"large" }.encode(&mut bytes);
    }
    slow.send(&bytes);
    // 200 MiB of answers wait for a reader; the server holds a few, and the others are served.
    for i in 0..50 {
        assert_eq!(good.add("n", 1, &long()).unwrap(), i + 1);
    }
    for _ in 0..REQUESTS {
        let answer = slow.read(8 + BYTES);
        assert_eq!(answer[..8], (BYTES as u64).to_le_bytes());
        assert!(answer[8..].iter().all(|byte| *byte == 5));
    }
    assert_eq!(server.stats().expelled, 0);
}

#[test]
fn a_pipelined_wait_is_woken_by_its_own_connection() {
    let server = serve(ServerLimits::DEFAULT);
    let mut raw = Raw::validated(&server);
    let mut bytes = Vec::new();
    Request::Wait { keys: vec![b"a", b"b"] }.encode(&mut bytes);
    Request::Set { key: b"a", value: b"" }.encode(&mut bytes);
    Request::Add { key: b"b", amount: 3 }.encode(&mut bytes);
    Request::CancelWait.encode(&mut bytes);
    raw.send(&bytes);
    let mut expected = 3i64.to_le_bytes().to_vec();
    expected.extend([0, 1]);
    assert_eq!(raw.read(10), expected);
}

#[test]
fn one_server_a_port_and_the_port_is_free_after_it() {
    let server = serve(ServerLimits::DEFAULT);
    let address = server.local_addr();
    let error = StoreServer::bind(address).unwrap_err();
    assert_eq!(error.cause.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let store = client(&server);
    store.set("k", b"v", &long()).unwrap();
    drop(server);
    let again = StoreServer::bind(address).unwrap();
    // It is another store, and the old client does not wander over to it.
    assert!(!client(&again).check(&["k"], &long()).unwrap());
    assert_eq!(store.check(&["k"], &long()).unwrap_err().kind(), Kind::System);
}

#[test]
fn a_server_that_ends_ends_every_call() {
    let server = serve(ServerLimits::DEFAULT);
    let store = client(&server);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|i| {
                let store = &store;
                scope.spawn(move || store.get(&format!("never/{i}"), &long()).unwrap_err())
            })
            .collect();
        // All three wait once the server has read their requests.
        while server.stats().requests < 3 {
            thread::yield_now();
        }
        drop(server);
        for waiter in waiters {
            let error = waiter.join().unwrap();
            assert_eq!(error.kind(), Kind::System, "{error}");
        }
    });
    for error in [
        store.set("k", b"", &long()).unwrap_err(),
        store.get("k", &long()).unwrap_err(),
        store.check(&["k"], &long()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("key \"k\""), "{error}");
        lost(&error);
    }
}

#[test]
fn a_call_given_up_leaves_the_connection_in_step() {
    let (resume, resumed) = mpsc::channel();
    let (port, server) = scripted(move |mut stream| {
        resumed.recv().unwrap();
        // The first ADD's answer, which nobody waits for any more, then the second's.
        stream.write_all(&1i64.to_le_bytes()).unwrap();
        let mut requests = [0; 2 * 18];
        stream.read_exact(&mut requests).unwrap();
        stream.write_all(&2i64.to_le_bytes()).unwrap();
    });
    let store = TcpStore::connect("127.0.0.1", port, &long()).unwrap();
    let error = store.add("n", 1, &Wait::millis(10)).unwrap_err();
    match &error {
        StoreError::TimedOut { missing: Missing::Answer(keys), .. } => assert_eq!(keys, &["n"]),
        other => panic!("{other}"),
    }
    let token = CancelToken::new();
    let wait = long().with_cancel(token.clone());
    thread::scope(|scope| {
        let cancelled = scope.spawn(|| store.add("n", 1, &wait).unwrap_err());
        token.cancel();
        assert_eq!(cancelled.join().unwrap().kind(), Kind::Cancelled);
    });
    resume.send(()).unwrap();
    assert_eq!(store.add("n", 1, &long()).unwrap(), 2);
    server.join().unwrap();
}

#[test]
fn a_wait_that_is_met_while_it_ends_is_met() {
    let (port, server) = scripted(move |mut stream| {
        // WAIT for a key of one byte, then CANCEL_WAIT and the CHECK of that key.
        let mut requests = [0; 18 + 1 + 18];
        stream.read_exact(&mut requests).unwrap();
        assert_eq!((requests[0], requests[18], requests[19]), (6, 12, 5));
        stream.write_all(&[0, 1, 0]).unwrap();
    });
    let store = TcpStore::connect("127.0.0.1", port, &long()).unwrap();
    store.wait(&["k"], &Wait::millis(10)).unwrap();
    server.join().unwrap();
}

#[test]
fn a_server_that_breaks_the_protocol_is_left() {
    let bad: [(&[u8], &str); 4] = [
        (&[2], "ready or not ready"),
        (&[0, 0], "2 bytes"),
        (&[0, 9, 9, 9], "bytes that answer no request"),
        (&[], "closed"),
    ];
    for (answer, text) in bad {
        let (port, server) = scripted(move |mut stream| {
            stream.read_exact(&mut [0; 18]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let store = TcpStore::connect("127.0.0.1", port, &long()).unwrap();
        let first = store.check(&["k"], &long());
        server.join().unwrap();
        // What follows an answer may come after it was taken: then the next call sees it.
        let error = first.and_then(|_| store.check(&["k"], &long())).unwrap_err();
        let cause = lost(&error).to_string();
        assert!(
            cause.contains(text) || cause.contains("closed") || cause.contains("bytes"),
            "{error}"
        );
    }
}

#[test]
fn what_answers_must_be_a_store() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let greeter = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = TcpStore::connect("127.0.0.1", port, &long()).unwrap_err();
    assert!(matches!(error, ConnectError::NotAStore { .. }), "{error}");
    greeter.join().unwrap();
}

#[test]
fn connecting_is_bounded() {
    // Listens and never accepts: the kernel completes the connection, nobody answers.
    let mute = TcpListener::bind(loopback()).unwrap();
    let port = mute.local_addr().unwrap().port();
    let error = TcpStore::connect("127.0.0.1", port, &Wait::millis(20)).unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut);
    let token = CancelToken::new();
    thread::scope(|scope| {
        let wait = long().with_cancel(token.clone());
        let connecting = scope.spawn(move || TcpStore::connect("127.0.0.1", port, &wait));
        token.cancel();
        assert_eq!(connecting.join().unwrap().unwrap_err().kind(), Kind::Cancelled);
    });
    // A name that by definition has no address.
    let error = TcpStore::connect("store.invalid", 1, &Wait::millis(200)).unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut);
    assert!(error.to_string().contains("store.invalid:1"), "{error}");
}

#[test]
fn names_and_both_families_work() {
    let server = serve(ServerLimits::DEFAULT);
    let port = server.local_addr().port();
    let by_name = TcpStore::connect("localhost", port, &long()).unwrap();
    assert_eq!(by_name.add("n", 1, &long()).unwrap(), 1);
    match StoreServer::bind("[::]:0".parse().unwrap()) {
        Ok(server) => {
            let port = server.local_addr().port();
            for (i, host) in ["::1", "127.0.0.1"].into_iter().enumerate() {
                let store = TcpStore::connect(host, port, &long()).unwrap();
                assert_eq!(store.add("n", 1, &long()).unwrap(), i as i64 + 1);
            }
        }
        Err(error) => eprintln!("skipped: IPv6 is off here: {error}"),
    }
}

#[test]
fn requests_are_counted_on_both_sides() {
    let server = serve(ServerLimits::DEFAULT);
    let store = client(&server);
    assert_eq!(store.traffic(), Traffic::default());
    store.set("k", b"v", &long()).unwrap();
    store.get("k", &long()).unwrap();
    store.multi_get(&["k", "k"], &long()).unwrap();
    store.check(&["k"], &long()).unwrap();
    store.wait(&[], &long()).unwrap();
    let traffic = store.traffic();
    assert_eq!((traffic.calls, traffic.requests), (4, 6));
    // The handshake is 10 bytes there and 4 back. The server counts what it sent after sending it.
    while server.stats().sent < traffic.received + 4 {
        thread::yield_now();
    }
    let stats = server.stats();
    assert_eq!((stats.requests, stats.accepted, stats.open, stats.keys), (6, 1, 1, 1));
    let connections = server.connections();
    assert_eq!(connections.len(), 1);
    assert_eq!(connections[0].requests, 6);
    assert_eq!(connections[0].received, traffic.sent + 10);
    assert_eq!(connections[0].sent, traffic.received + 4);
    // A wait that runs out adds its cancellation and a question for each key.
    store.wait(&["a", "b"], &Wait::millis(0)).unwrap_err();
    assert_eq!(store.traffic().requests, 6 + 4);
}

#[test]
fn many_connections_at_once() {
    let server = serve(ServerLimits::DEFAULT);
    let stores: Vec<TcpStore> = (0..200).map(|_| client(&server)).collect();
    thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| store.get("go", &long()).unwrap());
        }
        while server.stats().requests < 200 {
            thread::yield_now();
        }
        stores[0].set("go", b"", &long()).unwrap();
    });
    drop(stores);
    while server.stats().open > 0 {
        thread::yield_now();
    }
    assert_eq!(server.stats().expelled, 0);
    assert!(server.connections().is_empty());
}
