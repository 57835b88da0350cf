//! What clients may use together, and who is closed where it is too much.

use super::*;

/// Waits for what the server does at its own time.
pub(super) fn becomes(what: &str, holds: impl Fn() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < until, "never: {what}");
        thread::yield_now();
    }
}

/// As much of a SET of `announced` bytes as `sent`.
fn half_a_set(raw: &mut Raw, announced: u64, sent: usize) {
    let mut bytes = vec![Query::Set.code()];
    bytes.extend_from_slice(&1u64.to_le_bytes());
    bytes.push(b'k');
    bytes.extend_from_slice(&announced.to_le_bytes());
    bytes.resize(bytes.len() + sent, 7);
    // The server may close it before all is written.
    let _ = raw.0.write_all(&bytes);
}

#[test]
fn a_key_too_many_is_refused_and_those_that_are_there_change() {
    let server = serve(ServerLimits { keys: 2, ..ServerLimits::DEFAULT });
    let (good, greedy) = (client(&server), client(&server));
    good.set("a", b"1", &long()).unwrap();
    good.set("b", b"1", &long()).unwrap();
    good.wait(&["a", "b"], &long()).unwrap();
    for refused in ["add", "compare_set"] {
        let greedy = client(&server);
        let error = match refused {
            "add" => greedy.add("c", 1, &long()).map(drop),
            _ => greedy.compare_set("c", b"", b"1", &long()).map(drop),
        };
        match lost(&error.unwrap_err()) {
            LostCause::Refused { reason } => {
                assert!(reason.contains("limit of 2 keys"), "{reason}")
            }
            other => panic!("{refused}: {other}"),
        }
    }
    greedy.set("c", b"1", &long()).unwrap();
    let error = greedy.check(&["c"], &long()).unwrap_err();
    assert!(error.to_string().contains("refused a request: a key beside the 2"), "{error}");
    assert_eq!(good.add("a", 1, &long()).unwrap(), 2);
    assert!(!good.check(&["c"], &long()).unwrap());
    assert_eq!((server.stats().keys, server.stats().expelled), (2, 3));
}

#[test]
fn a_wait_too_many_is_refused_until_one_has_ended() {
    let server = serve(ServerLimits { waits: 2, ..ServerLimits::DEFAULT });
    let good = client(&server);
    let wait = |key: &[u8]| {
        let mut raw = Raw::validated(&server);
        raw.request(&Request::Wait { keys: vec![key] });
        raw
    };
    let waits = |key: &str| {
        let before = server.stats().requests;
        let raw = wait(key.as_bytes());
        becomes(key, || server.stats().requests > before);
        raw
    };
    let (mut first, second) = (waits("first"), waits("second"));
    assert!(wait(b"third").is_closed());
    // One for what is there waits for nothing. A set has no answer: asked for on its connection, it is there.
    good.set("there", b"", &long()).unwrap();
    assert_eq!(good.get("there", &long()).unwrap(), b"");
    assert_eq!(wait(b"there").read(1), [0]);
    // The end of a wait makes room, by an answer and by the end of its connection.
    good.set("first", b"", &long()).unwrap();
    assert_eq!(first.read(1), [0]);
    let mut third = waits("third");
    drop(second);
    becomes("the second is gone", || server.stats().open == 3);
    let mut fourth = waits("fourth");
    for (key, raw) in [("third", &mut third), ("fourth", &mut fourth)] {
        good.set(key, b"", &long()).unwrap();
        assert_eq!(raw.read(1), [0], "{key}");
    }
    assert_eq!(server.stats().expelled, 1);
}

#[test]
fn who_only_connects_makes_room() {
    let limits = ServerLimits { unidentified: 4, connections: 8, ..ServerLimits::DEFAULT };
    let server = serve(limits);
    let good = client(&server);
    let mut silent: Vec<Raw> = (0..10).map(|_| Raw::connect(&server)).collect();
    // The first of them; the good one, which is older, is not among them.
    for raw in &mut silent[..6] {
        assert!(raw.is_closed());
    }
    becomes("four are left", || server.stats().open == 5);
    // Up to the limit of all connections those who identify themselves come in, one for another.
    let more: Vec<TcpStore> = (0..7).map(|_| client(&server)).collect();
    for store in more.iter().chain([&good]) {
        store.add("n", 1, &long()).unwrap();
    }
    assert_eq!(good.add("n", 0, &long()).unwrap(), 8);
    for raw in &mut silent[6..] {
        assert!(raw.is_closed());
    }
    assert_eq!((server.stats().open, server.stats().refused), (8, 0));
    // All have: one more is refused.
    assert!(Raw::connect(&server).is_closed());
    assert_eq!(server.stats().refused, 1);
}

#[test]
fn who_has_identified_itself_stays_however_many_come_at_once() {
    let server = serve(ServerLimits { unidentified: 1, ..ServerLimits::DEFAULT });
    // Whether the server has read the handshake of one when it sees the next is up to it.
    let mut all: Vec<Raw> = (0..300).map(|_| Raw::validated(&server)).collect();
    for (raw, nonce) in all.iter_mut().zip(0..) {
        raw.request(&Request::Ping { nonce });
    }
    for (raw, nonce) in all.iter_mut().zip(0u32..) {
        assert_eq!(raw.read(4), nonce.to_le_bytes());
    }
    assert_eq!((server.stats().open, server.stats().expelled), (300, 0));
}

#[test]
fn who_holds_most_is_closed_for_the_others() {
    let server = serve(ServerLimits { buffered: 4 << 20, ..ServerLimits::DEFAULT });
    let good = client(&server);
    good.set("large", &vec![5; 1 << 20], &long()).unwrap();
    good.wait(&["large"], &long()).unwrap();
    // Halves of messages, of which three fit: more come than there is room for.
    let mut halves: Vec<Raw> = (0..8)
        .map(|_| {
            let mut raw = Raw::validated(&server);
            half_a_set(&mut raw, 8 << 20, 1 << 20);
            raw
        })
        .collect();
    for i in 0..100 {
        assert_eq!(good.add("n", 1, &long()).unwrap(), i + 1);
    }
    becomes("some are closed", || server.stats().expelled >= 5);
    // Answers that nobody reads, beside what is left of those.
    let _slow: Vec<Raw> = (0..8)
        .map(|_| {
            let mut raw = Raw::validated(&server);
            (0..32).for_each(|_| raw.request(&Request::Get { key: b"large" }));
            raw
        })
        .collect();
    for i in 100..200 {
        assert_eq!(good.add("n", 1, &long()).unwrap(), i + 1);
    }
    // Waits for long lists count as well.
    let key = vec![b'w'; 8 << 10];
    let keys = vec![&*key; 200];
    let mut waits: Vec<Raw> = (0..8)
        .map(|_| {
            let mut raw = Raw::validated(&server);
            let mut bytes = Vec::new();
            Request::Wait { keys: keys.clone() }.encode(&mut bytes);
            let _ = raw.0.write_all(&bytes);
            raw
        })
        .collect();
    for i in 200..300 {
        assert_eq!(good.add("n", 1, &long()).unwrap(), i + 1);
    }
    becomes("most are closed", || server.stats().expelled >= 8);
    halves.clear();
    waits.clear();
    assert_eq!(good.get("large", &long()).unwrap().len(), 1 << 20);
}

#[test]
fn what_exceeds_a_limit_is_refused_before_it_is_sent() {
    let wire = Limits { key: 8, value: 16, keys: 2, ..Limits::DEFAULT };
    let server = serve(ServerLimits { wire, ..ServerLimits::DEFAULT });
    let port = server.local_addr().port();
    let store = TcpStore::connect_with("127.0.0.1", port, &wire, &long()).unwrap();
    let refused = |result: Result<(), StoreError>| match result.unwrap_err() {
        StoreError::TooLarge { what, found, limit, .. } => (what, found, limit),
        other => panic!("{other}"),
    };
    assert_eq!(refused(store.set("123456789", b"", &long())), ("a key", 9, 8));
    assert_eq!(refused(store.set("k", &[0; 17], &long())), ("a value", 17, 16));
    assert_eq!(refused(store.wait(&["a", "b", "c"], &long())), ("the list of keys", 3, 2));
    // At the limits it is stored; nothing was sent before.
    assert_eq!(server.stats().requests, 0);
    store.set("12345678", &[0; 16], &long()).unwrap();
    assert_eq!(store.get("12345678", &long()).unwrap(), [0; 16]);
}
