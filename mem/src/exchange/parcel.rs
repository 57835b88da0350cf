//! What makes memory mappable by another process, as frames carry it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use symmem_hal::Shareable;
use symmem_hal::types::Bytes;

use super::Handle;

/// 64 bytes, as serde knows them.
type Halves = [[u8; 32]; 2];

/// One handle of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Parcel {
    /// The next of the descriptors that are beside the frame.
    Descriptor,
    Fabric(Halves),
    Ipc {
        handle: Halves,
        offset: u64,
    },
}

/// What frames carry of these handles, and what travels beside them. A mapping of this process means
/// nothing to another, and stays.
pub(crate) fn pack<'a>(handles: &'a [Handle]) -> (Vec<Parcel>, Vec<BorrowedFd<'a>>) {
    let mut fds = Vec::new();
    let parcel = |handle: &'a Handle| {
        let Handle::Shared(shared) = handle else { return None };
        match shared {
            Shareable::Fd(fd) => {
                fds.push(fd.as_fd());
                Some(Parcel::Descriptor)
            }
            Shareable::Fabric(bytes) => Some(Parcel::Fabric(bytemuck::cast(*bytes))),
            Shareable::Ipc { handle, offset } => {
                Some(Parcel::Ipc { handle: bytemuck::cast(*handle), offset: offset.get() })
            }
            _ => None,
        }
    };
    (handles.iter().filter_map(parcel).collect(), fds)
}

/// The handles again; `None` where descriptors are missing.
pub(crate) fn unpack(parcels: &[Parcel], fds: Vec<OwnedFd>) -> Option<Vec<Handle>> {
    let mut fds = fds.into_iter();
    let handle = |parcel: &Parcel| {
        Some(Handle::Shared(match *parcel {
            Parcel::Descriptor => Shareable::Fd(fds.next()?),
            Parcel::Fabric(bytes) => Shareable::Fabric(bytemuck::cast(bytes)),
            Parcel::Ipc { handle, offset } => {
                Shareable::Ipc { handle: bytemuck::cast(handle), offset: Bytes(offset) }
            }
        }))
    };
    parcels.iter().map(handle).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::fs::File;
    use std::io::Read as _;

    use super::super::frame::{Frame, MAX_FDS, decode};
    use super::*;

    fn file(text: &str) -> OwnedFd {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        file.reopen().unwrap().into()
    }

    fn read(fd: OwnedFd) -> String {
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn handles_of_all_sorts_travel_in_their_order() {
        let bytes: [u8; 64] = core::array::from_fn(|i| i as u8 + 1);
        let offset = Bytes(u64::MAX - 1);
        let sent = [
            Shareable::Fd(file("first")),
            Shareable::Fabric(bytes),
            Shareable::Ipc { handle: bytes, offset },
            Shareable::Fd(file("second")),
        ];
        let sent = sent.map(Handle::Shared);
        let (parcels, fds) = pack(&sent);
        assert_eq!(fds.len(), MAX_FDS);
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let frame = Frame::Part { index: 1, payload: vec![7], parcels };
        let Frame::Part { index: 1, payload, parcels } = decode(&frame.encode().unwrap()).unwrap()
        else {
            panic!("another frame");
        };
        assert_eq!(payload, [7]);
        let found = unpack(&parcels, fds).unwrap();
        let [first, fabric, ipc, second] = found.try_into().unwrap();
        let Handle::Shared(Shareable::Fd(first)) = first else { panic!("{first:?}") };
        let Handle::Shared(Shareable::Fd(second)) = second else { panic!("{second:?}") };
        assert_eq!((read(first), read(second)), ("first".to_owned(), "second".to_owned()));
        assert!(
            matches!(fabric, Handle::Shared(Shareable::Fabric(found)) if found == bytes),
            "{fabric:?}"
        );
        assert!(
            matches!(
                ipc,
                Handle::Shared(Shareable::Ipc { handle, offset: found })
                    if handle == bytes && found == offset
            ),
            "{ipc:?}"
        );
    }

    #[test]
    fn a_descriptor_that_did_not_come_is_missed() {
        let parcels = [Parcel::Descriptor, Parcel::Descriptor];
        assert!(unpack(&parcels, vec![file("one")]).is_none());
        assert_eq!(unpack(&parcels[..1], vec![file("one")]).unwrap().len(), 1);
    }
}
