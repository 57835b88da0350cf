//! Waits, their ends, and what others do meanwhile.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use symmem_hal::{CancelToken, Fault, Kind, Wait};

use super::{Ranks, long, missing};
use crate::store::{Contribution, Missing, StoreError};

pub fn missing_keys_are_named(ranks: &Ranks) {
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

pub fn a_cancelled_token_ends_a_wait(ranks: &Ranks) {
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

pub fn a_cancelled_token_prevents_a_call(ranks: &Ranks) {
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

pub fn limits_are_refused_before_any_effect(ranks: &Ranks) {
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

pub fn every_setter_wakes(ranks: &Ranks) {
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

pub fn adds_of_many_threads_add_up(ranks: &Ranks) {
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

pub fn one_of_many_swaps_wins(ranks: &Ranks) {
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
pub fn waits_do_not_hold_up_sets(ranks: &Ranks) {
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

pub fn all_ranks_meet(ranks: &Ranks) {
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

pub fn barriers_let_all_go(ranks: &Ranks) {
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
