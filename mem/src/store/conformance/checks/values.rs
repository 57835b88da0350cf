//! Values under keys.

use std::thread;
use std::time::Duration;

use symmem_hal::Wait;

use super::{Ranks, long, missing};

pub fn values_come_back(ranks: &Ranks) {
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

pub fn add_counts(ranks: &Ranks) {
    let (a, b, wait) = (ranks(), ranks(), long());
    assert_eq!(a.add("n", 5, &wait).unwrap(), 5);
    assert_eq!(b.add("n", -7, &wait).unwrap(), -2);
    assert_eq!(a.add("n", 0, &wait).unwrap(), -2);
    assert_eq!(b.get("n", &wait).unwrap(), b"-2");
    a.set("n", b"9223372036854775806", &wait).unwrap();
    assert_eq!(a.add("n", 1, &wait).unwrap(), i64::MAX);
    assert_eq!(a.add("n", i64::MIN, &wait).unwrap(), -1);
}

pub fn compare_set_swaps(ranks: &Ranks) {
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

pub fn lists_of_keys(ranks: &Ranks) {
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

pub fn keys_come_and_go(ranks: &Ranks) {
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

pub fn a_key_that_came_counts_for_who_waited(ranks: &Ranks) {
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

pub fn many_values_at_once(ranks: &Ranks) {
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

pub fn values_grow(ranks: &Ranks) {
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
