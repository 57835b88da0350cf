//! Queues and barriers among clients that do not share them well.

use super::limits::becomes;
use super::*;

fn waits(server: &StoreServer, key: &[u8]) -> Raw {
    let (mut raw, before) = (Raw::validated(server), server.stats().requests);
    raw.request(&Request::Wait { keys: vec![key] });
    becomes("it waits", || server.stats().requests > before);
    raw
}

#[test]
fn a_pushed_value_calls_one_and_if_that_one_does_not_take_it_the_next() {
    let server = serve(ServerLimits::DEFAULT);
    let store = client(&server);
    let mut all: Vec<Raw> = (0..4).map(|_| waits(&server, b"q")).collect();
    store.queue_push("q", b"1", &long()).unwrap();
    assert_eq!(all[0].read(1), [0]);
    // Gone before it took the value, and busy with something else.
    drop(all.remove(0));
    assert_eq!(all[0].read(1), [0]);
    all[0].request(&Request::QueueLen { key: b"q" });
    assert_eq!(all[0].read(8), 1i64.to_le_bytes());
    assert_eq!(all[1].read(1), [0]);
    all[1].request(&Request::QueuePop { key: b"q" });
    let mut popped = Vec::new();
    Answer::put_popped(&mut popped, 1, Some(b"1"));
    assert_eq!(all[1].read(popped.len()), popped);
    // The last one was not called for nothing.
    all[2].0.set_nonblocking(true).unwrap();
    let error = (&all[2].0).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    all[2].0.set_nonblocking(false).unwrap();
    store.queue_push("q", b"2", &long()).unwrap();
    assert_eq!(all[2].read(1), [0]);
}

#[test]
fn who_waits_for_more_than_a_queue_leaves_its_value_to_the_next() {
    let server = serve(ServerLimits::DEFAULT);
    let store = client(&server);
    let mut both = Raw::validated(&server);
    both.request(&Request::Wait { keys: vec![b"q", b"k"] });
    becomes("it waits", || server.stats().requests == 1);
    let mut next = waits(&server, b"q");
    store.queue_push("q", b"1", &long()).unwrap();
    assert_eq!(next.read(1), [0]);
    // The first one has seen it all the same.
    next.request(&Request::QueuePop { key: b"q" });
    next.read(17);
    store.set("k", b"", &long()).unwrap();
    assert_eq!(both.read(1), [0]);
}

#[test]
fn a_value_wakes_all_who_wait_for_its_key_and_a_queue_one() {
    let server = serve(ServerLimits::DEFAULT);
    let store = client(&server);
    let mut all: Vec<Raw> = (0..3).map(|_| waits(&server, b"k")).collect();
    store.queue_push("k", b"1", &long()).unwrap();
    assert_eq!(all[0].read(1), [0]);
    store.set("k", b"1", &long()).unwrap();
    assert_eq!((all[1].read(1), all[2].read(1)), (vec![0], vec![0]));
}

/// As observed of PyTorch's servers.
#[test]
fn a_barrier_is_a_number_that_is_waited_for() {
    let server = serve(ServerLimits::DEFAULT);
    let store = client(&server);
    let arrives = |key: &[u8], count| {
        let (mut raw, before) = (Raw::validated(&server), server.stats().requests);
        raw.request(&Request::Barrier { key, count });
        becomes("it arrives", || server.stats().requests > before);
        raw
    };
    // One that does not complete it wakes nobody; the number is there.
    let mut waiter = waits(&server, b"b");
    let mut first = arrives(b"b", 3);
    assert_eq!(store.add("b", 0, &long()).unwrap(), 1);
    // Any value that comes lets all go, and so does the last one.
    assert_eq!((first.read(1), waiter.read(1)), (vec![0], vec![0]));
    let mut second = arrives(b"b", 3);
    let mut third = arrives(b"b", 3);
    assert_eq!((second.read(1), third.read(1)), (vec![0], vec![0]));
    for count in [0, -1, i64::MIN] {
        assert_eq!(arrives(b"nobody", count).read(1), [0]);
    }
    // Two that count differently: the one that completes it does so for both.
    let (mut two, mut three) = (arrives(b"c", 2), arrives(b"c", 3));
    let mut last = arrives(b"c", 3);
    assert_eq!((two.read(1), three.read(1), last.read(1)), (vec![0], vec![0], vec![0]));
    // Cancelled, it has counted; a number that is none closes the connection.
    let mut gone = arrives(b"d", 2);
    gone.request(&Request::CancelWait);
    assert_eq!(gone.read(1), [1]);
    assert_eq!(arrives(b"d", 2).read(1), [0]);
    store.set("text", b"x", &long()).unwrap();
    assert!(!store.check(&["other"], &long()).unwrap());
    assert!(arrives(b"text", 2).is_closed());
}
