//! One-sided operations: put, get, and fills of words.
//!
//! The other rank takes no part. An operation on a stream runs in the stream's order and holds what
//! it reads and writes until it has run. It says nothing to the other rank: whoever is to see a put
//! waits for a signal that the putting rank sends after it, on the same stream (release), and reads
//! after its own wait for that signal (acquire); whoever gets has waited for a signal that the owner
//! sent after it stored. `put_with_signal` of the layer above is a put and its signal in one.
#![allow(unsafe_code, reason = "enqueues copies between addresses of views")]

mod fill;

pub use fill::{Fill, FillError};

use std::sync::Arc;

use symmem_hal::types::{BackendKind, Bytes, Layout, Rank, RankSet};
use symmem_hal::{DeviceError, Fault, KeepAlive, Kind, Stream, SyncError, Wait};

use crate::failure::Failure;
use crate::handle::{PeerError, SymmetricMemory};
use crate::memory::{View, ViewError};

/// Why a put or get did not happen. Nothing was stored.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The group has failed, or this rank has left it.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The rank is none of the group's, or the range is not in its memory.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The local view has gaps.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The local view and the range of the peer, which is this rank, share bytes without being the
    /// same.
    #[error(
        "source and target overlap and are not the same range: copy by way of memory elsewhere"
    )]
    Overlap,
    /// The local view or the stream is of another backend than the group.
    #[error("the group is on {group}, the {what} on {found}: take one of Group::device")]
    Backend {
        /// What is elsewhere.
        what: &'static str,
        /// The group's backend.
        group: BackendKind,
        /// The other.
        found: BackendKind,
    },
    /// The stream cannot take it, or was not done with it in time.
    #[error(transparent)]
    Stream(#[from] SyncError),
    /// The device has no stream for it.
    #[error(transparent)]
    Device(#[from] Arc<DeviceError>),
}

impl Fault for TransferError {
    fn kind(&self) -> Kind {
        match self {
            TransferError::Failed(e) => e.kind(),
            TransferError::Peer(_)
            | TransferError::View(_)
            | TransferError::Overlap
            | TransferError::Backend { .. } => Kind::InvalidArgument,
            TransferError::Stream(e) => e.kind(),
            TransferError::Device(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            TransferError::Failed(e) => e.ranks(),
            TransferError::Peer(e) => e.ranks(),
            TransferError::Stream(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

impl From<DeviceError> for TransferError {
    fn from(error: DeviceError) -> Self {
        TransferError::Device(Arc::new(error))
    }
}

/// A put or get about to be issued.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before run() or on()"]
pub struct Transfer<'a> {
    memory: &'a SymmetricMemory,
    local: &'a View,
    peer: Rank,
    way: Way,
    offset: u64,
    wait: Option<&'a Wait>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Put,
    Get,
}

impl SymmetricMemory {
    /// Copies a contiguous view of this rank into a member's memory: to where the handle's view
    /// begins there, unless an [`offset`](Transfer::offset) is given. The member may be this rank.
    pub fn put<'a>(&'a self, source: &'a (impl AsRef<View> + ?Sized), peer: Rank) -> Transfer<'a> {
        self.transfer(source.as_ref(), peer, Way::Put)
    }

    /// Copies a member's memory into a contiguous view of this rank: from where the handle's view
    /// begins there, unless an [`offset`](Transfer::offset) is given. The member may be this rank.
    pub fn get<'a>(&'a self, target: &'a (impl AsRef<View> + ?Sized), peer: Rank) -> Transfer<'a> {
        self.transfer(target.as_ref(), peer, Way::Get)
    }

    fn transfer<'a>(&'a self, local: &'a View, peer: Rank, way: Way) -> Transfer<'a> {
        Transfer { memory: self, local, peer, way, offset: 0, wait: None }
    }

    /// The bytes of a put or get, after every check of it: the local view's, and a member's counted
    /// in the local view's elements from where the handle's begins there, to the end of its
    /// allocation. For the layer above.
    ///
    /// # Errors
    ///
    /// [`TransferError`].
    #[doc(hidden)]
    pub fn peer_range(&self, local: &View, peer: Rank, offset: u64) -> Result<View, TransferError> {
        local.contiguous()?;
        let dtype = local.dtype();
        let Some(start) = Bytes::of(offset, dtype.size() as u64) else {
            let cause = ViewError::PastAll { elements: offset, dtype, size: self.buffer_size() };
            return Err(PeerError::View { rank: peer, cause }.into());
        };
        let remote = self.peer(peer, start, dtype, Layout::flat(local.count()))?;
        let (group, found) = (self.device().kind(), local.memory().backend());
        if found != group {
            return Err(TransferError::Backend { what: "view", group, found });
        }
        if local.ptr() != remote.ptr() && local.overlaps(&remote) {
            return Err(TransferError::Overlap);
        }
        self.group().check()?;
        Ok(remote)
    }
}

impl<'a> Transfer<'a> {
    /// Where in the member's memory: elements of the local view's type, from where the handle's view
    /// begins. The range must end in the member's allocation.
    pub fn offset(self, elements: u64) -> Self {
        Transfer { offset: elements, ..self }
    }

    /// The bound on the wait for its end, instead of the group's.
    pub fn wait(self, wait: &'a Wait) -> Self {
        Transfer { wait: Some(wait), ..self }
    }

    /// Issues it on the group's own stream and waits for it: it has happened at return.
    ///
    /// # Errors
    ///
    /// [`TransferError`].
    pub fn run(self) -> Result<(), TransferError> {
        let group = self.memory.group();
        let default = group.wait();
        let wait = self.wait.unwrap_or(&default);
        let stream = group.stream()?;
        self.issue(stream)?;
        Ok(stream.synchronize(wait)?)
    }

    /// Issues it on a stream. On an inline stream it has happened at return.
    ///
    /// # Errors
    ///
    /// [`TransferError`].
    pub fn on(self, stream: &Stream) -> Result<(), TransferError> {
        self.issue(stream)
    }

    fn issue(self, stream: &Stream) -> Result<(), TransferError> {
        let Transfer { memory, local, peer, way, offset, .. } = self;
        let remote = memory.peer_range(local, peer, offset)?;
        let (group, found) = (memory.device().kind(), stream.backend());
        if found != group {
            return Err(TransferError::Backend { what: "stream", group, found });
        }
        let (source, target) = match way {
            Way::Put => (local.ptr(), remote.ptr()),
            Way::Get => (remote.ptr(), local.ptr()),
        };
        // A member's memory may be this rank's own, and what is there is there.
        if source == target {
            return Ok(());
        }
        let keep = || -> Vec<KeepAlive> { vec![local.keep_alive(), remote.keep_alive()] };
        // SAFETY: both ranges are of views, which do not overlap (`peer_range`), are borrowed until this
        // returns and kept by what `keep` gives. Others may be at them at once: the copies of the host are
        // by atomics, those of a device by its engines.
        unsafe { stream.copy(target, source, local.bytes(), &keep) }?;
        Ok(())
    }
}
