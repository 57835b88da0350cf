//! Queues.

use std::thread;
use std::time::Duration;

use symmem_hal::{Fault, Kind, Wait};

use super::{Ranks, long, missing};

pub fn queues_are_first_in_first_out(ranks: &Ranks) {
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

pub fn queues_and_values_do_not_touch(ranks: &Ranks) {
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
pub fn a_queue_serves_each_value_once(ranks: &Ranks) {
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
