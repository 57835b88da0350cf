//! Which algorithm a call takes.
//!
//! A function of agreed values alone (bytes, world size, backend, the lane's layout), never of
//! addresses, so that every rank takes the same one.

use core::fmt;

use symmem_hal::types::{BackendKind, Bytes};
use symmem_sync::Layout;

/// How an operation moves its data.
///
/// Every algorithm gives the same bits; they differ in time alone. The codes travel between ranks
/// and never change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Algorithm {
    /// The fastest known for the size.
    #[default]
    Auto = 0,
    /// The data is its own flag: each 4 bytes travel beside their epoch. For tiny messages.
    Packet = 1,
    /// Every rank reduces all inputs. For small messages.
    OneShot = 2,
    /// Every rank reduces a slice and all gather the slices. For large messages.
    TwoShot = 3,
}

impl Algorithm {
    /// Those that can be asked for by name.
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Auto, Algorithm::Packet, Algorithm::OneShot, Algorithm::TwoShot];

    /// The name that the command line, messages and files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::Packet => "packet",
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoShot => "two-shot",
        }
    }

    /// The algorithm of a [`name`](Self::name); `None` for an unknown one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// The code that travels between ranks.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Up to how many bytes an algorithm is the fastest, on a backend and up to a number of ranks; the
/// last algorithm has no bound.
struct Row {
    backend: BackendKind,
    ranks: usize,
    packet: u64,
    one_shot: u64,
}

/// Packets pay for themselves as long as they travel in the header's two lines: six of them. Beyond
/// two ranks, one-shot reads as many inputs as there are ranks and loses earlier. Seen with `symmem
/// bench all-reduce --algorithm` on two cores of an AMD EPYC (Zen 4), 2 to 8 processes, 2026-11.
const TABLE: &[Row] = &[
    Row { backend: BackendKind::Host, ranks: 2, packet: 48, one_shot: 64 << 10 },
    Row { backend: BackendKind::Host, ranks: usize::MAX, packet: 48, one_shot: 16 << 10 },
    Row { backend: BackendKind::Stub, ranks: usize::MAX, packet: 48, one_shot: 16 << 10 },
];

/// The algorithm of an all-reduce of `bytes` a rank.
pub(crate) fn all_reduce(backend: BackendKind, layout: &Layout, bytes: Bytes) -> Algorithm {
    let mut fitting =
        TABLE.iter().filter(|row| row.backend == backend && layout.world() <= row.ranks);
    let row = fitting.next().unwrap_or(&TABLE[0]);
    if bytes.get() <= row.packet.min(layout.packet_capacity().get()) {
        Algorithm::Packet
    } else if bytes.get() <= row.one_shot {
        Algorithm::OneShot
    } else {
        Algorithm::TwoShot
    }
}
