//! Gathers that the server does.

use rustix::process::{Resource, getrlimit, setrlimit};

use super::limits::becomes;
use super::*;
use crate::store::{Contribution, GatherFault, LocalStore};

/// Bytes of the slots of a GATHER.
fn slots(slots: &[u32]) -> Vec<u8> {
    slots.iter().flat_map(|slot| slot.to_le_bytes()).collect()
}

/// A client without any manners that the server knows as one of this crate.
fn extended(server: &StoreServer) -> Raw {
    let mut raw = Raw::validated(server);
    raw.request(&Request::Ping { nonce: super::super::wire::HELLO });
    let nonce = Answer::nonce(&raw.read(4)).unwrap();
    assert!(super::super::wire::welcomed(nonce).is_some());
    raw
}

#[test]
fn a_gather_is_one_request() {
    let server = serve(ServerLimits::DEFAULT);
    let stores = [(); 3].map(|()| client(&server));
    thread::scope(|scope| {
        for (i, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                let mine = Contribution::new(&[0, 1, 2][i..=i], 3, b"v");
                assert_eq!(store.gather("g", &mine, &long()).unwrap().len(), 3);
            });
        }
    });
    for store in &stores {
        let traffic = store.traffic();
        assert_eq!((traffic.calls, traffic.requests), (1, 1));
    }
    assert_eq!((server.stats().requests, server.stats().keys), (3, 0));
}

#[test]
fn who_comes_second_to_a_place_is_refused() {
    let server = serve(ServerLimits::DEFAULT);
    let remote = client(&server);
    let local = LocalStore::new();
    for store in [&remote as &dyn Store, &local] {
        let brief = Wait::millis(0);
        let bring = |slots: &[u32], total, value: &[u8], wait: &Wait| {
            store.gather("g", &Contribution::new(slots, total, value), wait)
        };
        let fault = |result: Result<_, StoreError>| match result {
            Err(StoreError::Gather { fault, .. }) => fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(bring(&[0, 2], 3, b"1", &brief).unwrap_err().kind(), Kind::TimedOut);
        for (slots, value, slot) in
            [(&[0, 2][..], b"2", 0), (&[0], b"1", 0), (&[0, 1], b"1", 1), (&[1, 2], b"1", 2)]
        {
            let found = fault(bring(slots, 3, value, &long()));
            assert_eq!(found, GatherFault::Overlap { slot });
        }
        let total = GatherFault::Total { mine: 4, theirs: 3 };
        assert_eq!(fault(bring(&[1], 4, b"1", &long())), total);
        // Who was first is not touched by any of it, before the end and after it.
        let all = bring(&[1], 3, b"", &long()).unwrap();
        assert_eq!((all.len(), &*all[0].value), (2, &b"1"[..]));
        assert_eq!(fault(bring(&[1], 3, b"2", &long())), GatherFault::Ended { slot: 1 });
        assert_eq!(bring(&[0, 2], 3, b"1", &brief).unwrap(), all);
    }
}

/// Two threads share a connection: one gathers for as long as the other does everything else.
#[test]
fn a_gather_does_not_hold_up_others() {
    let server = serve(ServerLimits::DEFAULT);
    let (store, other) = (client(&server), client(&server));
    thread::scope(|scope| {
        let gathering =
            scope.spawn(|| store.gather("g", &Contribution::new(&[0], 2, b"0"), &long()).unwrap());
        for i in 1..=100 {
            assert_eq!(store.add("n", 1, &long()).unwrap(), i);
        }
        let all = other.gather("g", &Contribution::new(&[1], 2, b"1"), &long()).unwrap();
        assert_eq!(gathering.join().unwrap(), all);
    });
}

#[test]
fn a_cancelled_gather_is_answered_by_what_is_missing() {
    let server = serve(ServerLimits { waits: 1, ..ServerLimits::DEFAULT });
    let mut raw = extended(&server);
    let covered = slots(&[1]);
    let request = Request::Gather { key: b"g", total: 3, slots: &covered, value: b"v" };
    let mut missing = Vec::new();
    Answer::put_missing(&mut missing, &[0, 2]);
    Answer::put_wait(&mut missing, true);
    for _ in 0..2 {
        raw.request(&request);
        // The place of a wait is taken, and given back.
        becomes("it waits", || server.stats().requests % 2 == 1);
        raw.request(&Request::CancelWait);
        assert_eq!(raw.read(missing.len()), missing);
    }
    raw.request(&request);
    becomes("it waits", || server.stats().requests == 5);
    let mut second = extended(&server);
    second.request(&Request::Wait { keys: vec![b"k"] });
    assert!(second.is_closed());
    let mut third = extended(&server);
    third.request(&request);
    assert_eq!(third.read(1), [3]);
    // A second pending request, too.
    raw.request(&request);
    assert!(raw.is_closed());
    assert_eq!(server.stats().expelled, 2);
}

#[test]
fn gathers_are_limited_as_keys_are() {
    let limits = ServerLimits { keys: 2, stored: 100_000, ..ServerLimits::DEFAULT };
    let server = serve(limits);
    let store = client(&server);
    let bring = |key: &str, slot: u32, value: &[u8]| {
        store.gather(key, &Contribution::new(&[slot], 2, value), &Wait::millis(0))
    };
    let refused = |key: &str, value: &[u8]| match bring(key, 0, value).unwrap_err() {
        StoreError::Refused { reason, .. } => Some(reason),
        StoreError::TimedOut { .. } => None,
        other => panic!("{other}"),
    };
    assert_eq!(refused("a", b"1"), None);
    assert_eq!(refused("a", b"1"), None);
    assert!(refused("b", &[1; 100_000]).unwrap().contains("limit of 100000"));
    assert_eq!(refused("b", b"1"), None);
    assert!(refused("c", b"1").unwrap().contains("limit of 2 keys"));
    // The store goes on, and so do the others' gathers.
    assert_eq!(bring("a", 1, b"2").unwrap().len(), 2);
    assert_eq!((server.stats().open, server.stats().expelled), (1, 0));

    let wire = Limits { answer: 100, ..Limits::DEFAULT };
    let server = serve(ServerLimits { wire, ..ServerLimits::DEFAULT });
    let error =
        client(&server).gather("g", &Contribution::new(&[0], 1, &[7; 100]), &long()).unwrap_err();
    assert!(error.to_string().contains("limit of 100"), "{error}");
}

/// As many as the machine allows connect at once, each gets everybody's contribution, and the server
/// holds one copy of it.
#[test]
fn thousands_gather() {
    const MOST: u64 = 3000;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    // Two of a process's descriptors each, and some for the tests beside this one.
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
    let count = MOST.min(allowed) as u32;
    if u64::from(count) < MOST {
        eprintln!("with {count} connections of {MOST}: RLIMIT_NOFILE is low");
    }
    // A tenth of the answers.
    let answer = 9 + count as usize * (8 + 4 + 8 + 16);
    let buffered = answer * count as usize / 10;
    let server = serve(ServerLimits { buffered, ..ServerLimits::DEFAULT });
    let mut all: Vec<Raw> = (0..count).map(|_| extended(&server)).collect();
    for (i, raw) in all.iter_mut().enumerate() {
        let (covered, value) = (slots(&[i as u32]), [i as u8; 16]);
        raw.request(&Request::Gather { key: b"g", total: count, slots: &covered, value: &value });
    }
    let first = all[0].read(answer);
    for raw in &mut all[1..] {
        assert!(raw.read(answer) == first);
    }
    let Some(super::super::wire::Gathered::Complete(parts)) = Answer::gathered(&first) else {
        panic!("{:?}", &first[..9]);
    };
    assert_eq!(parts.len(), count as usize);
    for (i, part) in parts.iter().enumerate() {
        assert_eq!((&*part.slots, &*part.value), (&[i as u32][..], &[i as u8; 16][..]));
    }
    let stats = server.stats();
    assert_eq!((stats.open, stats.expelled, stats.refused), (u64::from(count), 0, 0));
    // Who has only some of it taken holds nobody up, and is no copy either.
    let good = client(&server);
    let covered = slots(&[0]);
    let request = Request::Gather { key: b"g", total: count, slots: &covered, value: &[0; 16] };
    for raw in &mut all {
        raw.request(&request);
    }
    assert_eq!(good.add("n", 1, &long()).unwrap(), 1);
    assert_eq!(server.stats().expelled, 0);
}
