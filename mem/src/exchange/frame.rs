//! Messages between a member and the leader: one datagram each, with descriptors beside it.
//!
//! # References
//! - `unix(7)`: `SOCK_SEQPACKET`, `SCM_RIGHTS`

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::parcel::Parcel;
use super::{ExchangeError, RoundKey};

/// The version of everything that ranks say to each other: this socket's frames, the agreement
/// record, links' messages and the lane protocol.
pub(crate) const WIRE_VERSION: u32 = 4;

/// Largest datagram. Half of the least default buffer of a Linux socket, so that one always fits.
pub(crate) const MAX_FRAME: usize = 96 * 1024;

/// Most descriptors beside one frame: a link and its process, or a region and its control page.
pub(crate) const MAX_FDS: usize = 2;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// Leader to member, first: prove that you know the token.
    Challenge { version: u32, nonce: [u8; 16] },
    /// Member to leader: here is proof; now yours.
    Hello { nonce: [u8; 16], proof: [u8; 32] },
    /// Leader to member.
    Welcome { proof: [u8; 32] },
    /// Member to leader, with the descriptors among the part's handles. `left` of what its caller
    /// `allowed` remains. `linked` are the global ranks to
    /// which the member has a link.
    Come {
        key: RoundKey,
        members: Vec<u32>,
        me: u32,
        left: Duration,
        allowed: Duration,
        linked: Vec<u32>,
        payload: Vec<u8>,
        parcels: Vec<Parcel>,
    },
    /// Leader to member: a member's part, with the descriptors among its handles, but for its own.
    Part { index: u32, payload: Vec<u8>, parcels: Vec<Parcel> },
    /// Leader to member: one end of a new link to a member, and that member's process.
    Link { index: u32 },
    /// Leader to member: all parts are sent.
    Done,
    /// Leader to member: the round failed, on every member.
    Failed(ExchangeError),
    /// Member to leader: its caller cancelled.
    Cancel,
}

impl Frame {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ExchangeError> {
        let bytes = postcard::to_stdvec(self).map_err(|e| ExchangeError::system("encode", e))?;
        if bytes.len() > MAX_FRAME {
            return Err(ExchangeError::TooLarge { bytes: bytes.len(), limit: MAX_FRAME });
        }
        Ok(bytes)
    }
}

/// Sends one datagram. `Errno::AGAIN` from a non-blocking socket is the caller's to handle.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    // A peer that is gone is an error here, not a signal that kills the process.
    let sent =
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(rustix::io::Errno::MSGSIZE) }
}

/// Receives one datagram with its descriptors; `None` at the end of the connection.
pub(crate) fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> rustix::io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            fds.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        // Either more descriptors were sent than any frame has, or this process has no more to give.
        let all = fds.len() == MAX_FDS;
        return Err(if all { rustix::io::Errno::MSGSIZE } else { rustix::io::Errno::MFILE });
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    // No frame is empty, so nothing received is the end.
    Ok((message.bytes > 0).then_some((message.bytes, fds)))
}

/// As [`receive`], from who has not proven itself: its descriptors are not taken, so that it cannot use
/// up this process's. `Errno::PROTO` where some came.
pub(crate) fn receive_from_stranger(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> rustix::io::Result<Option<usize>> {
    let mut none = RecvAncillaryBuffer::default();
    let message = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut none,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(rustix::io::Errno::PROTO);
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    Ok((message.bytes > 0).then_some(message.bytes))
}

/// Who is at the other end of a connected socket: the user, and the process if it has a number in
/// this process's namespace.
///
/// # References
/// - `SO_PEERCRED`: `unix(7)`. A process of another PID namespace has the number 0.
#[allow(unsafe_code, reason = "rustix's credentials cannot hold a process without a number")]
pub(crate) fn peer(socket: BorrowedFd<'_>) -> std::io::Result<(u32, Option<Pid>)> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes, a ucred, into `found`, which lives past the
    // call; the descriptor is borrowed.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    if done == 0 {
        Ok((found.uid, Pid::from_raw(found.pid)))
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Decodes what `receive` put into a buffer. Garbage is an error, never a panic.
pub(crate) fn decode(bytes: &[u8]) -> Result<Frame, ExchangeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((frame, [])) => Ok(frame),
        Ok((_, rest)) => {
            let (all, rest) = (bytes.len(), rest.len());
            Err(ExchangeError::Refused(format!("not a frame: {rest} of {all} bytes are over")))
        }
        Err(e) => Err(ExchangeError::Refused(format!("not a frame: {e}"))),
    }
}
