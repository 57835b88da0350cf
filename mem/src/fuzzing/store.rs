//! The store's messages, and what launchers say.

use crate::bootstrap::Bootstrap;
use crate::store::tcp::wire::{Answer, Decoded, Gathered, Limits, Request, Resumed};

/// Limits that short inputs reach.
const SMALL: Limits = Limits { key: 16, value: 64, keys: 8, request: 400, answer: 400 };

/// What a server reads: requests, one after the other.
pub fn store_request(bytes: &[u8]) {
    for limits in [&SMALL, &Limits::DEFAULT] {
        let mut rest = bytes;
        while let Some(length) = one_request(rest, limits) {
            rest = &rest[length..];
        }
    }
}

/// Checks the request at the front; how long it is, if it is whole.
fn one_request(bytes: &[u8], limits: &Limits) -> Option<usize> {
    match Request::decode(bytes, limits) {
        Ok(Decoded::Whole { message, length }) => {
            assert!((1..=bytes.len().min(limits.request)).contains(&length));
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            assert_eq!(encoded, bytes[..length]);
            assert!(message.answer().is_none_or(|answer| match answer {
                Answer::Values { count } => count <= limits.keys.max(1),
                _ => true,
            }));
            // Less of it is never enough, and says by how much it falls short at least.
            for cut in [0, length / 2, length - 1] {
                match Request::decode(&bytes[..cut], limits) {
                    Ok(Decoded::Partial { needed }) => assert!(cut < needed && needed <= length),
                    found => panic!("{cut} of {length} bytes: {found:?}"),
                }
            }
            Some(length)
        }
        Ok(Decoded::Partial { needed }) => {
            assert!(bytes.len() < needed && needed <= limits.request, "{needed}");
            None
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// What a client reads, for each request that it may have sent.
pub fn store_answer(bytes: &[u8]) {
    let mut rest = bytes;
    let count = usize::from(super::byte(&mut rest));
    let shapes = [
        Answer::Values { count },
        Answer::Values { count: 1 },
        Answer::Integer,
        Answer::Nonce,
        Answer::Check,
        Answer::Wait,
        Answer::CancelledWait,
        Answer::Cancelled,
        Answer::Popped,
        Answer::Keys,
        Answer::Resumed,
        Answer::Gathered,
    ];
    for shape in shapes {
        for limits in [&SMALL, &Limits::DEFAULT] {
            one_answer(shape, rest, limits);
        }
    }
}

fn one_answer(shape: Answer, bytes: &[u8], limits: &Limits) {
    match shape.decode(bytes, limits) {
        Ok(Decoded::Whole { message, length }) => {
            assert!(message == &bytes[..length] && length <= limits.answer);
            match shape {
                Answer::Values { count } => {
                    let values = Answer::values(message);
                    assert_eq!(values.len(), count);
                    let mut encoded = Vec::new();
                    values.iter().for_each(|value| Answer::put_value(&mut encoded, value));
                    assert_eq!(encoded, message);
                }
                Answer::Integer => {
                    let mut encoded = Vec::new();
                    Answer::put_integer(&mut encoded, Answer::integer(message).unwrap_or_default());
                    assert_eq!(encoded, message);
                }
                Answer::Nonce => {
                    let mut encoded = Vec::new();
                    Answer::put_nonce(&mut encoded, Answer::nonce(message).unwrap_or_default());
                    assert_eq!(encoded, message);
                }
                Answer::Check => {
                    let mut encoded = Vec::new();
                    Answer::put_check(&mut encoded, Answer::is_ready(message));
                    assert_eq!(encoded, message);
                }
                Answer::Wait | Answer::CancelledWait => assert!((1..=2).contains(&length)),
                Answer::Cancelled => assert_eq!(length, 1),
                Answer::Popped => {
                    let value = Answer::popped(message);
                    let queued = Answer::integer(&message[..8]).unwrap_or_default();
                    assert_eq!(value.is_some(), queued > 0);
                    let mut encoded = Vec::new();
                    Answer::put_popped(&mut encoded, queued as usize, value.as_deref());
                    assert_eq!(encoded, message);
                }
                Answer::Keys => {
                    let mut encoded = Vec::new();
                    let keys = Answer::keys(message);
                    Answer::put_keys(&mut encoded, keys.iter().map(Vec::as_slice));
                    assert_eq!(encoded, message);
                }
                Answer::Resumed => resumed(message),
                Answer::Gathered => gathered(message),
            }
        }
        Ok(Decoded::Partial { needed }) => {
            assert!(bytes.len() < needed && needed <= limits.answer, "{needed}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn resumed(message: &[u8]) {
    match Answer::resumed(message) {
        Some(resumed) => {
            let mut encoded = Vec::new();
            Answer::put_resumed(&mut encoded, &resumed);
            // A reason that is no text is not kept as it is.
            let exact = !matches!(resumed, Resumed::Refused { .. });
            assert!(!exact || encoded == message);
        }
        None => panic!("{message:?} is whole"),
    }
}

fn gathered(message: &[u8]) {
    let Some(found) = Answer::gathered(message) else { panic!("{message:?} is whole") };
    let mut encoded = Vec::new();
    match &found {
        Gathered::Complete(parts) => {
            let parts = parts.iter().map(|part| (&*part.slots, &*part.value));
            Answer::put_parts(&mut encoded, parts);
        }
        Gathered::Missing(slots) => Answer::put_missing(&mut encoded, slots),
        Gathered::Fault(fault) => Answer::put_fault(&mut encoded, *fault),
        // What is no text is longer as text, and may be cut.
        Gathered::Refused(_) => return,
    }
    assert_eq!(Answer::gathered(&encoded), Some(found));
}

/// A launcher's variables: a line each, the name before the first `=`.
pub fn environment(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let lookup = |name: &str| {
        lines.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_owned())
    };
    match Bootstrap::from_lookup(&lookup) {
        Ok(found) => {
            assert!(found.rank < found.world_size && found.store.port != 0, "{found:?}");
            let local = found.local_world_size.unwrap_or(found.world_size);
            assert!(local <= found.world_size, "{found:?}");
            assert!(found.local_rank.is_none_or(|rank| rank < local), "{found:?}");
            assert!(!found.store.host.is_empty(), "{found:?}");
            assert!(
                found.node.is_none_or(|node| found.nodes.is_none_or(|n| node < n)),
                "{found:?}"
            );
            if let Ok(here) = found.on_this_host() {
                assert!(here.rank < here.world_size && here.store.port != 0, "{here:?}");
                assert!(here.world_size <= found.world_size, "{here:?}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
