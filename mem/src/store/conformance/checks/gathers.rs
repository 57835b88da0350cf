//! Gathers.

use std::thread;
use std::time::Duration;

use symmem_hal::{CancelToken, Fault, Kind, Wait};

use super::{Ranks, long};
use crate::store::{Contribution, GatherFault, Missing, Part, StoreError};

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
pub fn leaders_gather(ranks: &Ranks) {
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

pub fn a_gather_names_who_is_missing(ranks: &Ranks) {
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

pub fn a_gather_can_be_repeated(ranks: &Ranks) {
    let (a, b) = (ranks(), ranks());
    let (first, second) = (Contribution::new(&[0], 2, b"1"), Contribution::new(&[1], 2, b"2"));
    a.gather("k", &first, &Wait::millis(0)).unwrap_err();
    let all = b.gather("k", &second, &long()).unwrap();
    for store in [&a, &b] {
        assert_eq!(store.gather("k", &first, &long()).unwrap(), all);
        assert_eq!(store.gather("k", &second, &long()).unwrap(), all);
    }
}

pub fn contributions_that_do_not_fit(ranks: &Ranks) {
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
        // A store that gathers by keys does not know whether the gather is over.
        let is_told = matches!(
            fault,
            GatherFault::Overlap { slot: 0 | 1 } | GatherFault::Ended { slot: 0 | 1 }
        );
        assert!(is_told, "{fault:?}");
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
