//! Connections that are lost at any moment: everything is done once, or said to be doubtful.

use std::collections::BTreeSet;

use super::proxy::{Cut, Proxy};
use super::*;
use crate::store::{Contribution, Part};

/// Everything that changes something, and everything that does not, over one connection and those
/// that it takes beside it.
fn conversation(store: &TcpStore) {
    let wait = long();
    assert_eq!(store.add("n", 5, &wait).unwrap(), 5);
    store.set("s", b"one", &wait).unwrap();
    store.append("s", b" two", &wait).unwrap();
    store.append("s", b" three", &wait).unwrap();
    assert_eq!(store.compare_set("c", b"", b"x", &wait).unwrap(), b"x");
    assert_eq!(store.compare_set("c", b"x", b"y", &wait).unwrap(), b"y");
    store.queue_push("q", b"1", &wait).unwrap();
    store.queue_push("q", b"2", &wait).unwrap();
    assert_eq!(store.add("n", 1, &wait).unwrap(), 6);
    assert_eq!(store.queue_pop("q", &wait).unwrap(), b"1");
    store.multi_set(&[("m", b"1"), ("d", b"2")], &wait).unwrap();
    assert!(store.delete("d", &wait).unwrap());
    assert_eq!(store.get("s", &wait).unwrap(), b"one two three");
    assert_eq!(store.multi_get(&["c", "m"], &wait).unwrap(), [b"y", b"1"]);
    let mine = Contribution::new(&[0], 1, b"v");
    let part = Part { slots: vec![0], value: b"v".to_vec() };
    assert_eq!(store.gather("g", &mine, &wait).unwrap(), [part]);
    store.barrier("b", 1, &wait).unwrap();
    assert!(store.check(&["c", "q"], &wait).unwrap());
    store.queue_push("q", b"3", &wait).unwrap();
    assert_eq!(store.queue_len("q", &wait).unwrap(), 2);
    assert_eq!(store.num_keys(&wait).unwrap(), 5);
}

/// What is there after it, whoever asks.
fn outcome(server: &StoreServer) {
    let (store, wait) = (client(server), long());
    let values = store.multi_get(&["n", "s", "c", "m", "b"], &wait).unwrap();
    assert_eq!(values, [&b"6"[..], b"one two three", b"y", b"1", b"1"]);
    let queued = [(); 2].map(|()| store.queue_pop("q", &wait).unwrap());
    assert_eq!((queued, store.queue_len("q", &wait).unwrap()), ([b"2", b"3"].map(Vec::from), 0));
    assert_eq!(store.num_keys(&wait).unwrap(), 5);
}

/// Has the conversation over connections that are cut so; how many were.
fn cut(cuts: Vec<Option<Cut>>) -> usize {
    let server = serve(ServerLimits::DEFAULT);
    let proxy = Proxy::new(server.local_addr(), cuts.clone(), false);
    let store = TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
    conversation(&store);
    outcome(&server);
    proxy.made()
}

#[test]
fn each_request_is_done_once_wherever_the_connection_is_cut() {
    for make in [Cut::Up, Cut::Down] {
        // Of the first connection, up to where the conversation is through before the cut.
        let last = (0..).find(|n| cut(vec![Some(make(*n))]) == 0).unwrap();
        assert!(last > 100, "{last}");
        // Of the one that a barrier takes.
        let last = (0..).find(|n| cut(vec![None, Some(make(*n))]) == 0).unwrap();
        assert!(last > 4, "{last}");
    }
}

#[test]
fn each_request_is_done_once_over_many_connections() {
    // None gets far. The third of a call lets all that it needs through.
    for step in [7usize, 17, 23, 31, 47, 60] {
        for (make, enough) in [(Cut::Up as fn(usize) -> Cut, 200), (Cut::Down, 60)] {
            let short = |i: usize| if i % 3 == 2 { enough } else { 4 + i * step % (enough / 2) };
            let made = cut((0..90).map(|i| Some(make(short(i)))).collect());
            assert!(made > 5, "{made}");
        }
    }
}

#[test]
fn a_lost_connection_does_not_end_a_wait() {
    let server = serve(ServerLimits::DEFAULT);
    let proxy = Proxy::new(server.local_addr(), Vec::new(), false);
    let connect = || TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
    let (a, b, c, direct) = (connect(), connect(), connect(), client(&server));
    thread::scope(|scope| {
        let waiting = scope.spawn(move || a.get("k", &long()).unwrap());
        let popping = scope.spawn(move || b.queue_pop("q", &long()).unwrap());
        let gathering = scope.spawn(move || {
            let mine = Contribution::new(&[0], 2, b"0");
            c.gather("g", &mine, &long()).unwrap()
        });
        for _ in 0..3 {
            let requests = server.stats().requests;
            proxy.cut_all();
            while server.stats().requests < requests + 3 {
                thread::yield_now();
            }
        }
        direct.set("k", b"v", &long()).unwrap();
        direct.queue_push("q", b"w", &long()).unwrap();
        let all = direct.gather("g", &Contribution::new(&[1], 2, b"1"), &long()).unwrap();
        assert_eq!(waiting.join().unwrap(), b"v");
        assert_eq!(popping.join().unwrap(), b"w");
        assert_eq!(gathering.join().unwrap(), all);
    });
    // Of those who were cut nothing is left.
    assert_eq!(direct.num_keys(&long()).unwrap(), 1);
}

#[test]
fn another_server_in_its_place_is_not_taken_for_it() {
    for foreign in [false, true] {
        let (first, second) = (serve(ServerLimits::DEFAULT), serve(ServerLimits::DEFAULT));
        let proxy = Proxy::new(first.local_addr(), Vec::new(), foreign);
        let store = TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
        assert_eq!(store.add("n", 1, &long()).unwrap(), 1);
        proxy.cut_all();
        assert_eq!(store.add("n", 1, &long()).unwrap(), 2);
        proxy.lead_to(second.local_addr());
        proxy.cut_all();
        for _ in 0..2 {
            let error = store.add("n", 1, &long()).unwrap_err();
            assert!(matches!(lost(&error), LostCause::Restarted), "{error}");
        }
        assert!(!client(&second).check(&["n"], &long()).unwrap());
    }
}

#[test]
fn who_cannot_come_back_ends_at_its_bound() {
    let server = serve(ServerLimits::DEFAULT);
    let proxy = Proxy::new(server.local_addr(), Vec::new(), false);
    let store = TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
    assert_eq!(store.add("n", 1, &long()).unwrap(), 1);
    let nobody = TcpListener::bind(loopback()).unwrap();
    proxy.lead_to(nobody.local_addr().unwrap());
    proxy.cut_all();
    let error = store.add("n", 1, &Wait::millis(50)).unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    let token = CancelToken::new();
    let wait = long().with_cancel(token.clone());
    thread::scope(|scope| {
        let cancelled = scope.spawn(|| store.add("n", 1, &wait).unwrap_err());
        token.cancel();
        assert_eq!(cancelled.join().unwrap().kind(), Kind::Cancelled);
    });
    // The next call finds the server again; calls that were given up may have been done, once.
    proxy.lead_to(server.local_addr());
    proxy.cut_all();
    assert_eq!(store.add("n", 1, &long()).unwrap(), 4 - given_up(&store));
}

/// How many of two calls that were given up had no effect.
fn given_up(store: &TcpStore) -> i64 {
    let now = store.add("n", 0, &long()).unwrap();
    assert!((2..=4).contains(&now), "{now}");
    4 - now
}

/// What a call came to where nothing is done twice.
enum Done {
    Yes,
    Doubtful(BTreeSet<String>),
}

fn done(result: Result<(), StoreError>) -> Done {
    match result {
        Ok(()) => Done::Yes,
        Err(StoreError::Doubtful { doubtful, .. }) => {
            Done::Doubtful(doubtful.iter().cloned().collect())
        }
        Err(other) => panic!("{other}"),
    }
}

/// One request after another, with keys of their own, to a server that does not know sessions; how many
/// cuts were made.
pub(super) fn foreign_conversation(proxy: &Proxy, direct: &TcpStore) -> usize {
    let wait = long();
    let store = TcpStore::connect("127.0.0.1", proxy.port(), &wait).unwrap();
    let mut sure = BTreeSet::new();
    let mut doubtful = BTreeSet::new();
    let mut not_done = BTreeSet::new();
    let mut errors = 0;
    for i in 0..8 {
        let key = format!("{i}");
        let keys: Vec<String> =
            ["set", "add", "append", "push"].map(|s| format!("{s}/{key}")).into();
        let calls: [Result<(), StoreError>; 4] = [
            store.set(&keys[0], b"1", &wait),
            store.add(&keys[1], 1, &wait).map(drop),
            store.append(&keys[2], b"1", &wait),
            store.compare_set(&keys[3], b"", b"1", &wait).map(drop),
        ];
        for (key, call) in keys.into_iter().zip(calls) {
            match done(call) {
                Done::Yes => drop(sure.insert(key)),
                Done::Doubtful(keys) => {
                    errors += 1;
                    if !keys.contains(&key) {
                        not_done.insert(key);
                    }
                    doubtful.extend(keys);
                }
            }
        }
    }
    // The last ones wait for an answer.
    if let Done::Doubtful(keys) = done(store.num_keys(&wait).map(drop)) {
        errors += 1;
        doubtful.extend(keys);
    }
    assert!(errors <= 1, "{errors}");
    for key in sure.difference(&doubtful) {
        assert_eq!(direct.get(key, &wait).unwrap(), b"1", "{key}");
    }
    for key in &doubtful {
        let there = direct.check(&[key], &wait).unwrap();
        assert!(!there || direct.get(key, &wait).unwrap() == b"1", "{key}");
    }
    for key in &not_done {
        assert!(!direct.check(&[key], &wait).unwrap(), "{key}");
    }
    proxy.made()
}

#[test]
fn what_may_have_been_done_elsewhere_is_not_done_again() {
    for make in [Cut::Up, Cut::Down] {
        let made = |n| {
            let server = serve(ServerLimits::DEFAULT);
            let proxy = Proxy::new(server.local_addr(), vec![Some(make(n))], true);
            foreign_conversation(&proxy, &client(&server))
        };
        let last = (0..).find(|n| made(*n) == 0).unwrap();
        assert!(last > 100, "{last}");
    }
}

/// A contribution that is written twice is one.
#[test]
fn a_gather_by_keys_goes_on_wherever_the_connection_is_cut() {
    for make in [Cut::Up, Cut::Down] {
        let made = |n| {
            let server = serve(ServerLimits::DEFAULT);
            let proxy = Proxy::new(server.local_addr(), vec![Some(make(n))], true);
            let store = TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
            for (key, slots) in [("one", &[0][..]), ("three", &[0, 1, 2])] {
                let mine = Contribution::new(slots, slots.len() as u32, b"value");
                let all = store.gather(key, &mine, &long()).unwrap();
                assert_eq!(all, [Part { slots: slots.to_vec(), value: b"value".to_vec() }]);
            }
            proxy.made()
        };
        let last = (0..).find(|n| made(*n) == 0).unwrap();
        assert!(last > 50, "{last}");
    }
}

#[test]
fn a_set_that_was_lost_is_told_by_the_next_call() {
    let server = serve(ServerLimits::DEFAULT);
    // VALIDATE, PING and a half of the set.
    let proxy = Proxy::new(server.local_addr(), vec![Some(Cut::Up(10 + 9))], true);
    let store = TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
    store.set("lost", b"value", &long()).unwrap();
    while proxy.made() == 0 {
        thread::yield_now();
    }
    let error = store.check(&["other"], &long()).unwrap_err();
    match &error {
        StoreError::Doubtful { doubtful, keys, operation, .. } => {
            assert_eq!(
                (&**doubtful, &**keys),
                (&["lost".to_owned()][..], &["other".to_owned()][..])
            );
            assert_eq!(*operation, "check");
        }
        other => panic!("{other}"),
    }
    // Told once; the store goes on.
    assert!(!store.check(&["lost"], &long()).unwrap());
    store.set("lost", b"value", &long()).unwrap();
    assert_eq!(store.get("lost", &long()).unwrap(), b"value");
}

#[test]
fn a_request_that_is_refused_is_not_sent_for_ever() {
    let wire = Limits { answer: 1000, ..Limits::DEFAULT };
    let server = serve(ServerLimits { wire, ..ServerLimits::DEFAULT });
    for foreign in [false, true] {
        let proxy = Proxy::new(server.local_addr(), Vec::new(), foreign);
        let store = TcpStore::connect("127.0.0.1", proxy.port(), &long()).unwrap();
        store.set("k", &[1; 2000], &long()).unwrap();
        let error = store.get("k", &long()).unwrap_err();
        match (foreign, lost(&error)) {
            (false, LostCause::Refused { reason }) => {
                assert!(reason.contains("limit of 1000"), "{reason}");
            }
            (true, LostCause::Closed) => {}
            (_, other) => panic!("{other}"),
        }
        assert!(server.stats().accepted < 20, "{:?}", server.stats());
    }
}

#[test]
fn sets_without_an_answer_are_bounded() {
    let server = serve(ServerLimits::DEFAULT);
    let store = client(&server);
    let value = vec![7; 1 << 20];
    for i in 0..64 {
        store.set(&format!("{}", i % 4), &value, &long()).unwrap();
    }
    (0..10_000).for_each(|_| store.append("k", b"1", &long()).unwrap());
    assert_eq!(store.get("k", &long()).unwrap().len(), 10_000);
    // One that has an answer for each 16 MiB, and for each 4096.
    let asked = store.traffic().requests - (64 + 10_000 + 2);
    assert!((3..=9).contains(&asked), "{asked}");
}
