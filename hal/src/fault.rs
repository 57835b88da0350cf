//! What every error of every layer can tell.

use core::fmt;
use std::error::Error;

use crate::types::RankSet;

/// What went wrong, coarse enough to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The call's arguments are wrong; nothing happened. Fix the call.
    InvalidArgument,
    /// Ranks disagree about what they do. Fix the program.
    Disagreement,
    /// A deadline passed while waiting for other ranks.
    TimedOut,
    /// A rank is gone.
    PeerLost,
    /// The caller cancelled the wait.
    Cancelled,
    /// This machine, build or backend cannot do it.
    Unsupported,
    /// Memory, descriptors or address space ran out.
    Exhausted,
    /// The object was left, replaced or failed earlier.
    Stale,
    /// The device or its driver reported an error.
    Device,
    /// The operating system or the network reported an error.
    System,
}

impl Kind {
    /// The name used in tables and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::InvalidArgument => "invalid argument",
            Kind::Disagreement => "disagreement",
            Kind::TimedOut => "timed out",
            Kind::PeerLost => "peer lost",
            Kind::Cancelled => "cancelled",
            Kind::Unsupported => "unsupported",
            Kind::Exhausted => "exhausted",
            Kind::Stale => "stale",
            Kind::Device => "device",
            Kind::System => "system",
        }
    }

    /// The sort of an error of the operating system: [`Exhausted`](Kind::Exhausted) for want of
    /// descriptors, memory or address space, else [`System`](Kind::System).
    #[must_use]
    pub fn of_io(error: &std::io::Error) -> Self {
        use rustix::io::Errno;
        let errno = Errno::from_io_error(error);
        let exhausted = errno.is_some_and(|e| {
            [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::NOSPC].contains(&e)
        });
        if exhausted || error.kind() == std::io::ErrorKind::OutOfMemory {
            Kind::Exhausted
        } else {
            Kind::System
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error of symmem: its [`Kind`] and the ranks it is about.
///
/// Each operation has an error enum of its own; all of them implement this, so that code above can
/// sort errors without knowing each enum.
///
/// The text of an error is whole: it includes that of the error behind it, which therefore is a
/// public field and no [`source`](Error::source), or a report of the whole chain would say it twice.
pub trait Fault: Error + Send + Sync + 'static {
    /// The sort of error.
    fn kind(&self) -> Kind;

    /// The ranks named by the error, as indices of the group that was used; empty where it is
    /// about this rank alone.
    fn ranks(&self) -> RankSet {
        RankSet::new()
    }
}
