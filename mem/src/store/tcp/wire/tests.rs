//! Bytes observed from PyTorch, round trips, and bytes of no meaning.

#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

const SMALL: Limits = Limits { key: 16, value: 64, keys: 8, request: 800, answer: 400 };

fn whole<T: std::fmt::Debug>(decoded: Decoded<T>) -> (T, usize) {
    match decoded {
        Decoded::Whole { message, length } => (message, length),
        partial @ Decoded::Partial { .. } => panic!("{partial:?}"),
    }
}

/// The first bytes of a client of PyTorch 2.15 that connects, sets `k` to `v` and gets `zz`.
#[test]
fn a_real_client_is_understood() {
    let bytes = b"\x00\xce\xf7\x85<\r\x8a#\x00\x00\
        \x01\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v\
        \x06\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0/zz\x0c";
    let expected = [
        Request::Validate,
        Request::Ping { nonce: 0x238a },
        Request::Set { key: b"/k", value: b"v" },
        Request::Wait { keys: vec![b"/zz"] },
        Request::CancelWait,
    ];
    let (mut at, mut encoded) = (0, Vec::new());
    for request in expected {
        let (found, length) = whole(Request::decode(&bytes[at..], &Limits::DEFAULT).unwrap());
        assert_eq!(found, request);
        request.encode(&mut encoded);
        at += length;
    }
    assert_eq!(at, bytes.len());
    assert_eq!(encoded, bytes);
}

#[test]
fn limits_hold_at_their_edge() {
    let key = |n: usize| vec![b'k'; n];
    let encode = |request: Request<'_>| {
        let mut out = Vec::new();
        request.encode(&mut out);
        out
    };
    let (fits, over) = (key(16), key(17));
    assert!(Request::decode(&encode(Request::Get { key: &fits }), &SMALL).is_ok());
    let error = Request::decode(&encode(Request::Get { key: &over }), &SMALL).unwrap_err();
    assert_eq!(error, WireError::TooLong { what: "a key", found: 17, limit: 16 });

    let value = vec![0; 65];
    let bytes = encode(Request::Set { key: b"k", value: &value });
    // Refused as soon as the length is there, before any of the value.
    let error = Request::decode(&bytes[..18], &SMALL).unwrap_err();
    assert_eq!(error, WireError::TooLong { what: "a value", found: 65, limit: 64 });

    for (count, ok) in [(0, true), (7, true), (8, true), (9, false)] {
        let bytes = encode(Request::Wait { keys: vec![b"k"; count] });
        assert_eq!(Request::decode(&bytes, &SMALL).is_ok(), ok, "{count} keys");
    }
    let tight = Limits { request: 40, ..SMALL };
    let bytes = encode(Request::Wait { keys: vec![b"k"; 4] });
    // 9 bytes and 4 lengths are 41: known from the count alone.
    let error = Request::decode(&bytes[..9], &tight).unwrap_err();
    assert_eq!(error, WireError::TooLong { what: "a message", found: 41, limit: 40 });

    for huge in [u64::MAX, u64::MAX - 8, 1 << 63] {
        let mut bytes = vec![Query::Get.code()];
        bytes.extend_from_slice(&huge.to_le_bytes());
        let error = Request::decode(&bytes, &Limits::DEFAULT).unwrap_err();
        assert_eq!(error, WireError::TooLong { what: "a key", found: huge, limit: 8 << 10 });
        assert!(Answer::Values { count: 1 }.decode(&bytes[1..], &Limits::DEFAULT).is_err());
    }
}

#[test]
fn what_is_unknown_is_named() {
    for code in 0..=255u8 {
        let known = Query::ALL.iter().any(|query| query.code() == code);
        match Request::decode(&[code], &SMALL) {
            Err(WireError::UnknownQuery { code: found }) => assert!(found == code && !known),
            Ok(_) => assert!(known, "{code}"),
            Err(other) => panic!("{code}: {other}"),
        }
        assert_eq!(Query::from_code(code).is_some(), known);
    }
    let error = Request::decode(&[0, 1, 2, 3, 4], &SMALL).unwrap_err();
    assert_eq!(error.to_string(), "answer 0x4030201 where the magic number was expected");
    // Slots come whole.
    let bytes = Request::Gather { key: b"k", total: 1, slots: &[0; 5], value: b"" };
    let mut encoded = Vec::new();
    bytes.encode(&mut encoded);
    assert!(Request::decode(&encoded, &SMALL).is_err());
}

/// What the client and the server of PyTorch 2.15 sent each other for the calls that came after the
/// first ones.
#[test]
fn later_requests_of_a_real_client_are_understood() {
    let bytes = b"\x08\x02\0\0\0\0\0\0\0/a\x07\
        \x09\x03\0\0\0\0\0\0\0/ap\x02\0\0\0\0\0\0\0xy\
        \x0b\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0/m1\x02\0\0\0\0\0\0\0v1\
        \x03\0\0\0\0\0\0\0/m2\x03\0\0\0\0\0\0\0v22\x11\
        \x10\x02\0\0\0\0\0\0\0/q\x0e\x02\0\0\0\0\0\0\0/q\x03\0\0\0\0\0\0\0one\
        \x0f\x02\0\0\0\0\0\0\0/q\
        \x12\x05\0\0\0\0\0\0\0/bar2\x02\0\0\0\0\0\0\0";
    let expected = [
        Request::DeleteKey { key: b"/a" },
        Request::GetNumKeys,
        Request::Append { key: b"/ap", value: b"xy" },
        Request::MultiSet { entries: vec![(b"/m1", b"v1"), (b"/m2", b"v22")] },
        Request::ListKeys,
        Request::QueueLen { key: b"/q" },
        Request::QueuePush { key: b"/q", value: b"one" },
        Request::QueuePop { key: b"/q" },
        Request::Barrier { key: b"/bar2", count: 2 },
    ];
    let (mut at, mut encoded) = (0, Vec::new());
    for request in expected {
        let (found, length) = whole(Request::decode(&bytes[at..], &Limits::DEFAULT).unwrap());
        assert_eq!(found, request);
        request.encode(&mut encoded);
        at += length;
    }
    assert_eq!(encoded, bytes);

    let popped = b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0one";
    let (found, _) = whole(Answer::Popped.decode(popped, &Limits::DEFAULT).unwrap());
    assert_eq!(Answer::popped(found).as_deref(), Some(&b"one"[..]));
    let (found, _) = whole(Answer::Popped.decode(&[0; 8], &Limits::DEFAULT).unwrap());
    assert_eq!(Answer::popped(found), None);
    let keys = b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0/m2\x03\0\0\0\0\0\0\0/ap";
    let (found, length) = whole(Answer::Keys.decode(keys, &Limits::DEFAULT).unwrap());
    assert_eq!((Answer::keys(found), length), (vec![b"/m2".to_vec(), b"/ap".to_vec()], keys.len()));
}

#[test]
fn the_hello_is_no_process_and_no_welcome() {
    assert!(HELLO > 1 << 22 && welcomed(HELLO).is_none() && welcomed(1 << 22).is_none());
    assert_eq!(welcomed(welcome(u32::MAX)), Some(0x00ff_ffff));
}

#[test]
fn a_cancelled_wait_has_one_or_two_bytes() {
    let decode = |bytes: &[u8]| match Answer::CancelledWait.decode(bytes, &SMALL) {
        Ok(Decoded::Whole { length, .. }) => Ok(Some(length)),
        Ok(Decoded::Partial { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    assert_eq!(decode(&[]), Ok(None));
    assert_eq!(decode(&[1]), Ok(Some(1)));
    assert_eq!(decode(&[1, 0]), Ok(Some(1)));
    assert_eq!(decode(&[0]), Ok(None));
    assert_eq!(decode(&[0, 1]), Ok(Some(2)));
    assert!(decode(&[0, 0]).is_err());
    assert!(decode(&[2]).is_err());
}

#[derive(Clone, Debug)]
struct Parts {
    query: usize,
    key: Vec<u8>,
    first: Vec<u8>,
    second: Vec<u8>,
    number: i64,
    keys: Vec<Vec<u8>>,
}

impl Parts {
    fn request(&self) -> Request<'_> {
        let keys = || self.keys.iter().map(Vec::as_slice).collect();
        let (key, value) = (self.key.as_slice(), self.first.as_slice());
        match self.query {
            0 => Request::Validate,
            1 => Request::Ping { nonce: self.number as u32 },
            2 => Request::Set { key, value },
            3 => Request::CompareSet { key, expected: value, desired: &self.second },
            4 => Request::Get { key },
            5 => Request::Add { key, amount: self.number },
            6 => Request::Check { keys: keys() },
            7 => Request::Wait { keys: keys() },
            8 => Request::MultiGet { keys: keys() },
            9 => Request::GetNumKeys,
            10 => Request::DeleteKey { key },
            11 => Request::Append { key, value },
            12 => {
                Request::MultiSet { entries: self.keys.iter().map(|key| (&**key, value)).collect() }
            }
            13 => Request::QueuePush { key, value },
            14 => Request::QueuePop { key },
            15 => Request::QueueLen { key },
            16 => Request::ListKeys,
            17 => Request::Barrier { key, count: self.number },
            18 => Request::Open { session: self.number as u64 },
            19 => Request::Resume { session: self.number as u64, next: 7 },
            20 => {
                let slots = &self.second[..self.second.len() / 4 * 4];
                Request::Gather { key, total: self.number as u32, slots, value }
            }
            _ => Request::CancelWait,
        }
    }
}

fn bytes(n: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..=n)
}

prop_compose! {
    fn parts()(
        query in 0..22usize, key in bytes(16), first in bytes(64), second in bytes(64),
        number in any::<i64>(), keys in proptest::collection::vec(bytes(16), 0..=8),
    ) -> Parts {
        Parts { query, key, first, second, number, keys }
    }
}

proptest! {
    #[test]
    fn requests_round_trip_and_prefixes_ask_for_more(parts in parts(), tail in bytes(20)) {
        let request = parts.request();
        let mut encoded = Vec::new();
        request.encode(&mut encoded);
        let length = encoded.len();
        for cut in 0..length {
            match Request::decode(&encoded[..cut], &SMALL).unwrap() {
                Decoded::Partial { needed } => prop_assert!(cut < needed && needed <= length),
                Decoded::Whole { .. } => prop_assert!(false, "whole at {cut} of {length}"),
            }
        }
        encoded.extend_from_slice(&tail);
        let (found, used) = whole(Request::decode(&encoded, &SMALL).unwrap());
        prop_assert_eq!((found, used), (request, length));
    }

    #[test]
    fn answers_round_trip(values in proptest::collection::vec(bytes(20), 0..8), n in any::<i64>()) {
        let shape = Answer::Values { count: values.len() };
        let mut encoded = Vec::new();
        values.iter().for_each(|value| Answer::put_value(&mut encoded, value));
        for cut in 0..encoded.len() {
            let decoded = shape.decode(&encoded[..cut], &SMALL).unwrap();
            let partial = matches!(decoded, Decoded::Partial { needed } if needed > cut);
            prop_assert!(partial);
        }
        let (found, length) = whole(shape.decode(&encoded, &SMALL).unwrap());
        prop_assert_eq!(Answer::values(found), values);
        prop_assert_eq!(length, encoded.len());

        let mut encoded = Vec::new();
        Answer::put_integer(&mut encoded, n);
        let (found, _) = whole(Answer::Integer.decode(&encoded, &SMALL).unwrap());
        prop_assert_eq!(Answer::integer(found), Some(n));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in bytes(300), count in 0..12usize) {
        for limits in [&SMALL, &Limits::DEFAULT] {
            if let Ok(Decoded::Whole { message, length }) = Request::decode(&bytes, limits) {
                prop_assert!(length <= bytes.len());
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(&again, &bytes[..length]);
            }
            for shape in [Answer::Values { count }, Answer::Integer, Answer::Nonce, Answer::Check,
                Answer::Wait, Answer::CancelledWait, Answer::Cancelled, Answer::Popped, Answer::Keys,
                Answer::Resumed, Answer::Gathered]
            {
                if let Ok(Decoded::Whole { length, .. }) = shape.decode(&bytes, limits) {
                    prop_assert!(length <= bytes.len());
                }
            }
        }
        let _ = (Answer::values(&bytes), Answer::integer(&bytes), Answer::nonce(&bytes));
        let _ = (Answer::popped(&bytes), Answer::keys(&bytes), Answer::resumed(&bytes));
        let _ = Answer::gathered(&bytes);
    }

    #[test]
    fn arbitrary_arguments_never_panic(code in (0..22usize).prop_map(|i| Query::ALL[i].code()), rest in bytes(300)) {
        let mut bytes = vec![code];
        bytes.extend(rest);
        let _ = Request::decode(&bytes, &SMALL);
        let _ = Request::decode(&bytes, &Limits::DEFAULT);
    }
}
