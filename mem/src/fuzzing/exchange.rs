//! What ranks say to each other.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use symmem_hal::Fault;

use crate::exchange::Part;
use crate::exchange::frame::{self, Frame, MAX_FDS, MAX_FRAME};
use crate::exchange::hosts;
use crate::exchange::parcel::{self, Parcel};
use crate::exchange::token::Token;
use crate::group::{agree, recover};
use crate::liveness::{Message, Register};
use crate::rendezvous::record::{Record, compare};
use crate::rendezvous::{exchange, multicast};

/// A datagram at the meeting point, either way.
pub fn exchange_frame(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_FRAME)];
    let Ok(found) = frame::decode(bytes) else { return };
    super::round_trip::<Frame>(bytes);
    let encoded = found.encode();
    assert!(encoded.is_ok_and(|encoded| frame::decode(&encoded).as_ref() == Ok(&found)));
    if let Frame::Failed(error) = found {
        // Of a round of eight, whatever the leader says.
        let error = error.of_round(8);
        assert!(error.ranks().iter().all(|rank| rank < 8) && !error.to_string().is_empty());
    }
}

/// The handles of a frame, and as many descriptors beside it as the first byte says.
pub fn parcel(bytes: &[u8]) {
    let mut rest = bytes;
    let beside = usize::from(super::byte(&mut rest)) % (MAX_FDS + 1);
    let Some(parcels) = super::round_trip::<Vec<Parcel>>(rest) else { return };
    let fds: Vec<OwnedFd> =
        (0..beside).filter_map(|_| eventfd(0, EventfdFlags::CLOEXEC).ok()).collect();
    let (beside, wanted) =
        (fds.len(), parcels.iter().filter(|parcel| **parcel == Parcel::Descriptor).count());
    match parcel::unpack(&parcels, fds) {
        Some(handles) => {
            assert!(wanted <= beside);
            let (again, fds) = parcel::pack(&handles);
            assert_eq!((again, fds.len()), (parcels, wanted));
            assert!(fds.iter().all(|fd| rustix::io::fcntl_getfd(fd.as_fd()).is_ok()));
        }
        None => assert!(wanted > beside),
    }
}

/// Two ranks' records, one after the other, compared.
pub fn agreement_record(bytes: &[u8]) {
    let Ok((first, rest)) = postcard::take_from_bytes::<Record>(bytes) else { return };
    super::round_trip::<Record>(bytes);
    assert_eq!(Record::decode(&first.encode()).as_ref(), Some(&first));
    assert!(compare(&[first.clone(), first.clone()]).is_ok());
    let Some(second) = super::round_trip::<Record>(rest) else { return };
    let _ = first.reported.imports_from(&second.reported);
    let verdict = compare(&[first.clone(), second.clone()]);
    assert_eq!(verdict.is_ok(), compare(&[second, first]).is_ok());
    if let Err(mismatch) = verdict {
        assert_eq!(mismatch.values.len(), 2, "{mismatch}");
        assert!(mismatch.ranks().iter().eq([1]));
    }
}

/// What members vote, in all rounds that have votes, and what hosts say of theirs: lengths of one byte, each before its vote.
pub fn votes(bytes: &[u8]) {
    let mut rest = bytes;
    let mut parts = Vec::new();
    while !rest.is_empty() && parts.len() < 8 {
        let length = usize::from(super::byte(&mut rest)).min(rest.len());
        let (payload, after) = rest.split_at(length);
        agree::fuzz(payload);
        parts.push(Part::plain(payload.to_vec()));
        rest = after;
    }
    exchange::fuzz(&parts);
    multicast::lockstep::fuzz(&parts);
    if let [first, second, ..] = &parts[..] {
        hosts::fuzz(&first.payload, &second.payload);
    }
}

/// The value in the store by which ranks agree on who goes on.
pub fn roll(bytes: &[u8]) {
    recover::roll::fuzz(bytes);
}

/// What arrives on a link.
pub fn link_message(bytes: &[u8]) {
    if let Some(message) = super::round_trip::<Message>(bytes) {
        Register::default().receive(1, message);
    }
}

/// A run's token, as the store has it.
pub fn token(bytes: &[u8]) {
    let Some(token) = Token::from_hex(bytes) else { return };
    assert!(token.to_hex().as_bytes().eq_ignore_ascii_case(bytes));
    assert_eq!(format!("{token:?}"), "Token(..)");
}
