//! What every store does, as one body of tests for all of them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use symmem_hal::{CancelToken, Fault, Kind, Wait};

use super::tcp::{StoreServer, TcpStore};
use super::{Contribution, GatherFault, LocalStore, Missing, Part, PrefixStore, Store, StoreError};

/// Gives handles of one fresh store, as different ranks hold them.
type Ranks = Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>;

fn local() -> Ranks {
    let store = LocalStore::new();
    Box::new(move || Arc::new(store.clone()))
}

/// Each rank its own connection.
fn tcp() -> Ranks {
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    Box::new(move || {
        let port = server.local_addr().port();
        Arc::new(TcpStore::connect("127.0.0.1", port, &long()).unwrap())
    })
}

/// All ranks on one connection, as the threads of a process.
fn tcp_shared() -> Ranks {
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.local_addr().port();
    let store = TcpStore::connect("127.0.0.1", port, &long()).unwrap().hosting(server);
    Box::new(move || Arc::new(store.clone()))
}

fn prefixed() -> Ranks {
    let store: Arc<dyn Store> = Arc::new(LocalStore::new());
    Box::new(move || Arc::new(PrefixStore::new(store.clone(), "run/1")))
}

/// Far beyond what any test needs.
fn long() -> Wait {
    Wait::seconds(120)
}

macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        conformance!(@module local, local, $($test),*);
        conformance!(@module tcp, tcp, $($test),*);
        conformance!(@module tcp_shared, tcp_shared, $($test),*);
        conformance!(@module prefixed, prefixed, $($test),*);
    };
    (@module $module:ident, $make:ident, $($test:ident),*) => {
        mod $module {
            $(#[test] fn $test() { super::$test(&super::$make()); })*
        }
    };
}

conformance!(
    values_come_back,
    add_counts,
    compare_set_swaps,
    lists_of_keys,
    missing_keys_are_named,
    a_cancelled_token_ends_a_wait,
    a_cancelled_token_prevents_a_call,
    limits_are_refused_before_any_effect,
    every_setter_wakes,
    adds_of_many_threads_add_up,
    one_of_many_swaps_wins,
    waits_do_not_hold_up_sets,
    all_ranks_meet,
    keys_come_and_go,
    many_values_at_once,
    values_grow,
    queues_are_first_in_first_out,
    queues_and_values_do_not_touch,
    a_queue_serves_each_value_once,
    barriers_let_all_go,
    leaders_gather,
    a_gather_names_who_is_missing,
    a_gather_can_be_repeated,
    contributions_that_do_not_fit,
);

// Not where ranks share a connection: there a wait may have to move to another one, and begins anew.
conformance!(@module local_alone, local, a_key_that_came_counts_for_who_waited);
conformance!(@module tcp_alone, tcp, a_key_that_came_counts_for_who_waited);
conformance!(@module prefixed_alone, prefixed, a_key_that_came_counts_for_who_waited);

fn values_come_back(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    a.set("k", b"v", &wait).unwrap();
    assert_eq!(b.get("k", &wait).unwrap(), b"v");
    let every: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> =
        (0..8 << 20).map(|i: u32| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    for (key, value) in [("", &b""[..]), ("empty", b""), ("é/\0", &every), ("large", &large)] {
        b.set(key, value, &wait).unwrap();
        assert!(a.get(key, &wait).unwrap() == value, "{key:?}");
    }
    a.set("k", b"other", &wait).unwrap();
    assert_eq!(a.get("k", &wait).unwrap(), b"other");
}

fn add_counts(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    assert_eq!(a.add("n", 5, &wait).unwrap(), 5);
    assert_eq!(b.add("n", -7, &wait).unwrap(), -2);
    assert_eq!(a.add("n", 0, &wait).unwrap(), -2);
    assert_eq!(b.get("n", &wait).unwrap(), b"-2");
    a.set("n", b"9223372036854775806", &wait).unwrap();
    assert_eq!(a.add("n", 1, &wait).unwrap(), i64::MAX);
    assert_eq!(a.add("n", i64::MIN, &wait).unwrap(), -1);
}

fn compare_set_swaps(ranks: &Ranks) {
    let (a, wait) = (ranks(), long());
    let swap =
        |expected: &[u8], desired: &[u8]| a.compare_set("k", expected, desired, &wait).unwrap();
    // Absent: stored only where nothing is expected.
    assert_eq!(swap(b"x", b"y"), b"x");
    assert!(!a.check(&["k"], &wait).unwrap());
    assert_eq!(swap(b"", b"one"), b"one");
    assert_eq!(swap(b"", b"two"), b"one");
    assert_eq!(swap(b"two", b"three"), b"one");
    assert_eq!(swap(b"one", b""), b"");
    assert!(a.check(&["k"], &wait).unwrap());
    assert_eq!(swap(b"", b"four"), b"four");
}

fn lists_of_keys(ranks: &Ranks) {
    let (a, wait) = (ranks(), long());
    a.wait(&[], &wait).unwrap();
    assert!(a.check(&[], &wait).unwrap());
    assert!(a.multi_get(&[], &wait).unwrap().is_empty());
    a.set("a", b"1", &wait).unwrap();
    a.set("b", b"", &wait).unwrap();
    assert!(a.check(&["a"], &wait).unwrap());
    assert!(!a.check(&["a", "c"], &wait).unwrap());
    assert!(!a.check(&["c", "a"], &wait).unwrap());
    a.wait(&["b", "a", "b"], &wait).unwrap();
    assert_eq!(a.multi_get(&["b", "a", "b"], &wait).unwrap(), [&b""[..], b"1", b""]);
    let names: Vec<String> = (0..5000).map(|i| format!("many/{i}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    for key in &keys {
        a.set(key, key.as_bytes(), &wait).unwrap();
    }
    let values = ranks().multi_get(&keys, &wait).unwrap();
    assert!(values.iter().zip(&keys).all(|(value, key)| value == key.as_bytes()));
    assert_eq!(values.len(), 5000);
}

fn missing(error: StoreError) -> Vec<String> {
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    match error {
        StoreError::TimedOut { missing: Missing::Keys(keys), elapsed, allowed, .. } => {
            assert!(elapsed >= allowed, "{elapsed:?} of {allowed:?}");
            keys
        }
        other => panic!("{other}"),
    }
}

fn missing_keys_are_named(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    a.set("there", b"1", &wait).unwrap();
    a.wait(&["there"], &wait).unwrap();
    for millis in [0, 20] {
        let short = Wait::millis(millis);
        let ends_with = |found: Vec<String>, keys: &[&str]| {
            assert_eq!(found.len(), keys.len(), "{found:?}");
            assert!(found.iter().zip(keys).all(|(f, k)| f.ends_with(k)), "{found:?}");
        };
        ends_with(missing(b.get("absent", &short).unwrap_err()), &["absent"]);
        let keys = ["absent/0", "there", "absent/1"];
        ends_with(missing(b.wait(&keys, &short).unwrap_err()), &["absent/0", "absent/1"]);
        ends_with(missing(b.multi_get(&keys, &short).unwrap_err()), &["absent/0", "absent/1"]);
        // What is there needs no time, and the store is as usable as before.
        b.wait(&["there"], &short).unwrap();
        assert_eq!(b.get("there", &wait).unwrap(), b"1");
        assert_eq!(b.add("n", 0, &wait).unwrap(), 0);
    }
    // Waits that were given up take no later value.
    a.set("absent", b"now", &wait).unwrap();
    assert_eq!(b.get("absent", &wait).unwrap(), b"now");
}

fn a_cancelled_token_ends_a_wait(ranks: &Ranks) {
    let (a, b) = (ranks(), ranks());
    let token = CancelToken::new();
    let wait = long().with_cancel(token.clone());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| a.get("never", &wait).unwrap_err());
        b.set("other", b"", &long()).unwrap();
        token.cancel();
        let error = waiter.join().unwrap();
        assert_eq!(error.kind(), Kind::Cancelled);
        assert!(error.to_string().contains("never\""), "{error}");
    });
    a.set("never", b"1", &long()).unwrap();
    assert_eq!(a.get("never", &long()).unwrap(), b"1");
}

fn a_cancelled_token_prevents_a_call(ranks: &Ranks) {
    let a = ranks();
    let token = CancelToken::new();
    token.cancel();
    let wait = long().with_cancel(token);
    let errors = [
        a.set("k", b"v", &wait).unwrap_err(),
        a.add("k", 1, &wait).unwrap_err(),
        a.compare_set("k", b"", b"v", &wait).unwrap_err(),
        a.get("k", &wait).unwrap_err(),
        a.wait(&["k"], &wait).unwrap_err(),
        a.check(&["k"], &wait).unwrap_err(),
        a.multi_get(&["k"], &wait).unwrap_err(),
        a.multi_set(&[("k", b"v")], &wait).unwrap_err(),
        a.append("k", b"v", &wait).unwrap_err(),
        a.delete("k", &wait).unwrap_err(),
        a.num_keys(&wait).unwrap_err(),
        a.list_keys(&wait).unwrap_err(),
        a.queue_push("k", b"v", &wait).unwrap_err(),
        a.queue_pop("k", &wait).unwrap_err(),
        a.queue_try_pop("k", &wait).unwrap_err(),
        a.queue_len("k", &wait).unwrap_err(),
        a.barrier("k", 1, &wait).unwrap_err(),
        a.gather("k", &Contribution::new(&[0], 1, b""), &wait).unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.kind() == Kind::Cancelled), "{errors:?}");
    assert!(!a.check(&["k"], &long()).unwrap());
}

fn limits_are_refused_before_any_effect(ranks: &Ranks) {
    let (a, wait) = (ranks(), long());
    let long_key = "k".repeat((8 << 10) + 1);
    let large = vec![0; (8 << 20) + 1];
    let many = vec!["k"; (128 << 10) + 1];
    for error in [
        a.set(&long_key, b"", &wait).unwrap_err(),
        a.set("k", &large, &wait).unwrap_err(),
        a.compare_set("k", b"", &large, &wait).unwrap_err(),
        a.compare_set("k", &large, b"", &wait).unwrap_err(),
        a.get(&long_key, &wait).unwrap_err(),
        a.wait(&many, &wait).unwrap_err(),
        a.check(&many, &wait).unwrap_err(),
        a.multi_get(&many, &wait).unwrap_err(),
        a.multi_set(&[("k", &large)], &wait).unwrap_err(),
        a.multi_set(&[(&long_key, b"")], &wait).unwrap_err(),
        a.multi_set(&[("k", &large[1..]); 9], &wait).unwrap_err(),
        a.append("k", &large, &wait).unwrap_err(),
        a.delete(&long_key, &wait).unwrap_err(),
        a.queue_push("k", &large, &wait).unwrap_err(),
        a.queue_pop(&long_key, &wait).unwrap_err(),
        a.barrier(&long_key, 1, &wait).unwrap_err(),
        a.gather("k", &Contribution::new(&[0], 1, &large), &wait).unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.to_string().len() < 1000, "{error}");
        match error {
            StoreError::TooLarge { found, limit, .. } => assert!(found > limit),
            other => panic!("{other}"),
        }
    }
    assert!(!a.check(&["k"], &wait).unwrap());
}

fn every_setter_wakes(ranks: &Ranks) {
    let setter = ranks();
    let set = |how: &str, key: &str| match how {
        "set" => setter.set(key, b"1", &long()).unwrap(),
        "add" => assert_eq!(setter.add(key, 1, &long()).unwrap(), 1),
        "append" => setter.append(key, b"1", &long()).unwrap(),
        "multi_set" => setter.multi_set(&[(key, b"1")], &long()).unwrap(),
        _ => assert_eq!(setter.compare_set(key, b"", b"1", &long()).unwrap(), b"1"),
    };
    for how in ["set", "add", "append", "multi_set", "compare_set"] {
        thread::scope(|scope| {
            for _ in 0..3 {
                let waiter = ranks();
                scope.spawn(move || {
                    let other = format!("{how}/other");
                    waiter.wait(&[how, &other], &long()).unwrap();
                    assert_eq!(waiter.get(how, &long()).unwrap(), b"1");
                });
            }
            set(how, how);
            set(how, &format!("{how}/other"));
        });
    }
}

fn adds_of_many_threads_add_up(ranks: &Ranks) {
    const THREADS: i64 = 8;
    const EACH: i64 = 100;
    let seen = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (store, seen) = (ranks(), &seen);
            scope.spawn(move || {
                for _ in 0..EACH {
                    if store.add("n", 1, &long()).unwrap() == THREADS * EACH {
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(seen.into_inner(), 1);
    assert_eq!(ranks().get("n", &long()).unwrap(), b"800");
}

fn one_of_many_swaps_wins(ranks: &Ranks) {
    let start = Barrier::new(8);
    let winners: Vec<Vec<u8>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8u8)
            .map(|i| {
                let (store, start) = (ranks(), &start);
                scope.spawn(move || {
                    start.wait();
                    store.compare_set("leader", b"", &[i], &long()).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(winners.iter().all(|winner| *winner == winners[0]), "{winners:?}");
}

/// Rank 0's threads wait for rank 1's and the other way round, on as many keys as there are threads
/// and in several steps: a store whose waits block its other calls never gets through.
fn waits_do_not_hold_up_sets(ranks: &Ranks) {
    let (zero, one) = (ranks(), ranks());
    thread::scope(|scope| {
        for lane in 0..4 {
            for (own, store) in [(0, &zero), (1, &one)] {
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
}

fn all_ranks_meet(ranks: &Ranks) {
    const RANKS: usize = 16;
    let names: Vec<String> = (0..RANKS).map(|rank| format!("rank/{rank}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    thread::scope(|scope| {
        for rank in 0..RANKS {
            let (store, keys) = (ranks(), &keys);
            scope.spawn(move || {
                store.set(keys[rank], &[rank as u8], &long()).unwrap();
                let values = store.multi_get(keys, &long()).unwrap();
                assert!((0..RANKS).all(|r| values[r] == [r as u8]));
            });
        }
    });
}

fn keys_come_and_go(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    assert_eq!((a.num_keys(&wait).unwrap(), a.list_keys(&wait).unwrap()), (0, vec![]));
    assert!(!a.delete("k", &wait).unwrap());
    a.set("k", b"v", &wait).unwrap();
    a.set("l", b"", &wait).unwrap();
    a.queue_push("q", b"v", &wait).unwrap();
    assert_eq!(a.num_keys(&wait).unwrap(), 2);
    let mut keys = b.list_keys(&wait).unwrap();
    keys.sort();
    assert_eq!(keys, ["k", "l"]);
    assert!(b.delete("k", &wait).unwrap() && !a.delete("k", &wait).unwrap());
    assert!(!a.check(&["k"], &wait).unwrap());
    assert_eq!(missing(a.get("k", &Wait::millis(10)).unwrap_err()).len(), 1);
    assert_eq!(
        (a.num_keys(&wait).unwrap(), a.list_keys(&wait).unwrap()),
        (1, vec!["l".to_owned()])
    );
    // As new.
    assert_eq!(a.add("k", 1, &wait).unwrap(), 1);
    assert!(a.delete("k", &wait).unwrap());
    assert_eq!(a.compare_set("k", b"1", b"2", &wait).unwrap(), b"1");
    assert!(!a.check(&["k"], &wait).unwrap());
}

fn a_key_that_came_counts_for_who_waited(ranks: &Ranks) {
    let (a, wait) = (ranks(), long());
    // In both orders: the first was deleted before the second came.
    for (first, second) in [("a", "b"), ("b", "a")] {
        thread::scope(|scope| {
            let waiter = ranks();
            let waiting = scope.spawn(move || waiter.wait(&["a", "b"], &long()));
            thread::sleep(Duration::from_millis(100));
            a.set(first, b"", &wait).unwrap();
            assert!(a.delete(first, &wait).unwrap());
            a.set(second, b"", &wait).unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert!(a.delete(second, &wait).unwrap());
        // Not for who came later.
        assert_eq!(missing(a.wait(&["a", "b"], &Wait::millis(10)).unwrap_err()).len(), 2);
    }
}

fn many_values_at_once(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    a.multi_set(&[], &wait).unwrap();
    a.set("old", b"1", &wait).unwrap();
    a.multi_set(&[("old", b"2"), ("x", b""), ("y", b"3"), ("y", b"4")], &wait).unwrap();
    let values = a.multi_get(&["old", "x", "y"], &wait).unwrap();
    assert_eq!(values, [&b"2"[..], b"", b"4"]);
    let names: Vec<String> = (0..5000).map(|i| format!("many/{i}")).collect();
    let entries: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), n.as_bytes())).collect();
    a.multi_set(&entries, &wait).unwrap();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let values = b.multi_get(&keys, &wait).unwrap();
    assert!(values.iter().zip(&keys).all(|(value, key)| value == key.as_bytes()));
}

fn values_grow(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    a.append("k", b"one", &wait).unwrap();
    a.append("k", b"", &wait).unwrap();
    a.append("k", b" two", &wait).unwrap();
    assert_eq!(a.get("k", &wait).unwrap(), b"one two");
    // Beyond what one call takes.
    let piece: Vec<u8> = (0..8 << 20).map(|i: u32| (i >> 5) as u8).collect();
    (0..3).for_each(|_| a.append("large", &piece, &wait).unwrap());
    assert!(a.get("large", &wait).unwrap() == piece.repeat(3));
    assert_eq!(b.get("large", &wait).unwrap().len(), 24 << 20);
}

fn queues_are_first_in_first_out(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    assert_eq!(a.queue_len("q", &wait).unwrap(), 0);
    assert_eq!(a.queue_try_pop("q", &wait).unwrap(), None);
    assert_eq!(missing(a.queue_pop("q", &Wait::millis(10)).unwrap_err()).len(), 1);
    let large = vec![7; 8 << 20];
    for value in [&b"one"[..], b"", &large, b"four"] {
        a.queue_push("q", value, &wait).unwrap();
    }
    // Sent before this is: from here on the other rank sees them, too.
    assert_eq!(a.queue_len("q", &wait).unwrap(), 4);
    assert_eq!(a.queue_pop("q", &wait).unwrap(), b"one");
    assert_eq!(a.queue_try_pop("q", &wait).unwrap(), Some(vec![]));
    assert!(a.queue_pop("q", &wait).unwrap() == large);
    assert_eq!(a.queue_pop("q", &Wait::millis(0)).unwrap(), b"four");
    assert_eq!((a.queue_len("q", &wait).unwrap(), a.check(&["q"], &wait).unwrap()), (0, false));
    // One that waits is woken.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| b.queue_pop("q", &long()).unwrap());
        thread::sleep(Duration::from_millis(20));
        a.queue_push("q", b"late", &wait).unwrap();
        assert_eq!(waiting.join().unwrap(), b"late");
    });
}

fn queues_and_values_do_not_touch(ranks: &Ranks) {
    let (a, wait) = (ranks(), long());
    a.queue_push("k", b"queued", &wait).unwrap();
    assert!(a.check(&["k"], &wait).unwrap());
    a.wait(&["k"], &wait).unwrap();
    assert!(!a.delete("k", &wait).unwrap());
    assert_eq!(a.add("k", 5, &wait).unwrap(), 5);
    a.set("k", b"value", &wait).unwrap();
    assert_eq!(a.get("k", &wait).unwrap(), b"value");
    assert_eq!(a.queue_pop("k", &wait).unwrap(), b"queued");
    assert!(a.check(&["k"], &wait).unwrap() && a.delete("k", &wait).unwrap());
    assert!(!a.check(&["k"], &wait).unwrap());
}

/// More takers than values at a time, of whom some give up.
fn a_queue_serves_each_value_once(ranks: &Ranks) {
    const VALUES: u32 = 200;
    let taken: Vec<u32> = thread::scope(|scope| {
        let takers: Vec<_> = (0..6)
            .map(|i| {
                let store = ranks();
                scope.spawn(move || {
                    let mut taken = Vec::new();
                    let patience = if i % 2 == 0 { long() } else { Wait::millis(1) };
                    loop {
                        match store.queue_pop("q", &patience) {
                            Ok(value) if value.is_empty() => return taken,
                            Ok(value) => {
                                taken.push(String::from_utf8(value).unwrap().parse().unwrap());
                            }
                            Err(error) => assert_eq!(error.kind(), Kind::TimedOut, "{error}"),
                        }
                    }
                })
            })
            .collect();
        let giver = ranks();
        for i in 0..VALUES {
            giver.queue_push("q", i.to_string().as_bytes(), &long()).unwrap();
        }
        takers.iter().for_each(|_| giver.queue_push("q", b"", &long()).unwrap());
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    let mut sorted = taken;
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..VALUES), "{sorted:?}");
}

fn barriers_let_all_go(ranks: &Ranks) {
    const RANKS: u64 = 6;
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..RANKS {
            let (store, arrived) = (ranks(), &arrived);
            scope.spawn(move || {
                for round in 1..=5 {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    store.barrier(&format!("round/{round}"), RANKS, &long()).unwrap();
                    assert!(arrived.load(Ordering::SeqCst) >= round * RANKS as usize);
                }
            });
        }
    });
    let a = ranks();
    // Who comes later finds it open, and one for nobody is.
    a.barrier("round/5", RANKS, &Wait::millis(500)).unwrap();
    a.barrier("nobody", 0, &Wait::millis(500)).unwrap();
    assert_eq!(a.get("round/5", &long()).unwrap(), b"7");
    match a.barrier("few", 3, &Wait::millis(10)).unwrap_err() {
        StoreError::TimedOut { missing: Missing::Arrivals { arrived, count, .. }, .. } => {
            assert_eq!((arrived, count), (Some(1), 3));
        }
        other => panic!("{other}"),
    }
    // The one that gave up was counted.
    assert_eq!(a.add("few", 1, &long()).unwrap(), 2);
    a.barrier("few", 3, &long()).unwrap();
    let token = CancelToken::new();
    thread::scope(|scope| {
        let wait = long().with_cancel(token.clone());
        let store = &a;
        let waiting = scope.spawn(move || store.barrier("never", 2, &wait).unwrap_err());
        a.set("other", b"", &long()).unwrap();
        token.cancel();
        assert_eq!(waiting.join().unwrap().kind(), Kind::Cancelled);
    });
}

/// Hosts of unlike sizes, the ranks of one not in a row.
const HOSTS: [&[u32]; 4] = [&[0, 2, 5], &[1], &[3, 4], &[6, 7, 8, 9]];

fn host_parts(key: &str) -> Vec<Part> {
    let part = |slots: &&[u32]| Part { slots: slots.to_vec(), value: host_value(key, slots) };
    HOSTS.iter().map(part).collect()
}

fn host_value(key: &str, slots: &[u32]) -> Vec<u8> {
    format!("{key} of {slots:?}").into_bytes()
}

/// First by leaders that do not know each other, then by the same that do.
fn leaders_gather(ranks: &Ranks) {
    thread::scope(|scope| {
        for slots in HOSTS {
            let store = ranks();
            scope.spawn(move || {
                let value = host_value("first", slots);
                let mine = Contribution::new(slots, 10, &value);
                let first = store.gather("first", &mine, &long()).unwrap();
                assert_eq!(first, host_parts("first"));
                let heads: Vec<u32> = first.iter().map(|part| part.slots[0]).collect();
                for round in 0..20 {
                    let key = format!("round/{round}");
                    let value = host_value(&key, slots);
                    let mine = Contribution::new(slots, 10, &value).with_heads(&heads);
                    let parts = store.gather(&key, &mine, &long()).unwrap();
                    assert_eq!(parts, host_parts(&key));
                }
            });
        }
    });
    // One alone, of one and of all slots, with an empty and a large value.
    let (store, large) = (ranks(), vec![7; 8 << 20 >> 1]);
    for (key, slots, value) in [("alone/0", &[0][..], &b""[..]), ("alone/1", &[0, 1, 2], &large)] {
        let mine = Contribution::new(slots, slots.len() as u32, value);
        let expected = [Part { slots: slots.to_vec(), value: value.to_vec() }];
        assert_eq!(store.gather(key, &mine, &long()).unwrap(), expected);
    }
}

fn a_gather_names_who_is_missing(ranks: &Ranks) {
    let (a, b) = (ranks(), ranks());
    let parts = |slots| Contribution::new(slots, 6, b"v");
    for millis in [0, 20] {
        let error = a.gather("k", &parts(&[1, 3]), &Wait::millis(millis)).unwrap_err();
        match &error {
            StoreError::TimedOut { missing: Missing::Slots { key, slots }, operation, .. } => {
                assert!(key.ends_with('k') && *operation == "gather", "{error}");
                assert_eq!(**slots, [0, 2, 4, 5], "{error}");
            }
            other => panic!("{other}"),
        }
    }
    let error = b.gather("k", &parts(&[0, 2, 5]), &Wait::millis(5)).unwrap_err();
    assert!(error.to_string().contains("missing slot 4 of key"), "{error}");
    // What was brought by calls that failed is there.
    let all = b.gather("k", &parts(&[4]), &long()).unwrap();
    assert_eq!(all.iter().map(|part| part.slots.len()).collect::<Vec<_>>(), [3, 2, 1]);

    let token = CancelToken::new();
    thread::scope(|scope| {
        let wait = long().with_cancel(token.clone());
        let store = &a;
        let waiting = scope.spawn(move || store.gather("never", &parts(&[1]), &wait).unwrap_err());
        a.set("other", b"", &long()).unwrap();
        token.cancel();
        assert_eq!(waiting.join().unwrap().kind(), Kind::Cancelled);
    });
    // In time by now: nothing has to be waited for.
    let again = a.gather("k", &parts(&[1, 3]), &Wait::millis(0)).unwrap();
    assert_eq!(again, all);
}

fn a_gather_can_be_repeated(ranks: &Ranks) {
    let (a, b) = (ranks(), ranks());
    let (first, second) = (Contribution::new(&[0], 2, b"1"), Contribution::new(&[1], 2, b"2"));
    a.gather("k", &first, &Wait::millis(0)).unwrap_err();
    let all = b.gather("k", &second, &long()).unwrap();
    for store in [&a, &b] {
        assert_eq!(store.gather("k", &first, &long()).unwrap(), all);
        assert_eq!(store.gather("k", &second, &long()).unwrap(), all);
    }
}

fn contributions_that_do_not_fit(ranks: &Ranks) {
    let a = ranks();
    let fault = |key: &str, mine: Contribution<'_>| match a.gather(key, &mine, &Wait::millis(200)) {
        Err(StoreError::Gather { key: found, fault, .. }) => {
            assert!(found.ends_with(key));
            fault
        }
        other => panic!("{other:?}"),
    };
    let alone = [
        (Contribution::new(&[], 2, b""), GatherFault::NoSlots),
        (Contribution::new(&[1, 1], 2, b""), GatherFault::Order { slot: 1 }),
        (Contribution::new(&[1, 0], 2, b""), GatherFault::Order { slot: 0 }),
        (Contribution::new(&[2], 2, b""), GatherFault::OutOfRange { slot: 2, total: 2 }),
        (Contribution::new(&[0], u32::MAX, b""), GatherFault::TooMany { total: u32::MAX }),
        (Contribution::new(&[1], 2, b"").with_heads(&[0]), GatherFault::NotAHead { slot: 1 }),
    ];
    for (mine, expected) in alone {
        assert_eq!(fault("alone", mine), expected);
    }
    // Two claim one slot, with other values or other slots: at least one of them is told.
    let told = |result: &Result<Vec<Part>, StoreError>| {
        let Err(StoreError::Gather { fault, .. }) = result else { return false };
        assert!(matches!(fault, GatherFault::Overlap { slot: 0 | 1 }), "{fault:?}");
        true
    };
    let results: Vec<_> = thread::scope(|scope| {
        let gather = |value: &'static [u8]| {
            let (store, mine) = (ranks(), Contribution::new(&[0], 2, value));
            scope.spawn(move || store.gather("value", &mine, &Wait::seconds(1)))
        };
        let claims = [gather(b"1"), gather(b"3")];
        thread::sleep(Duration::from_millis(50));
        a.gather("value", &Contribution::new(&[1], 2, b"2"), &long()).unwrap();
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    assert!(results.iter().any(told), "{results:?}");
    let first = Contribution::new(&[0], 3, b"1");
    a.gather("slots", &first, &Wait::millis(0)).unwrap_err();
    let second = a.gather("slots", &Contribution::new(&[0, 1], 3, b"3"), &Wait::millis(0));
    let _ = a.gather("slots", &Contribution::new(&[2], 3, b"2"), &Wait::millis(0));
    let first = a.gather("slots", &first, &Wait::millis(0));
    assert!(told(&second) || told(&first), "{first:?} {second:?}");
}
