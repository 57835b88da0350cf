//! Which algorithm a call takes.
//!
//! A function of agreed values alone (bytes, world size, backend, the lane's layout), never of
//! addresses, so that every rank takes the same one.

use core::fmt;

use linkme::distributed_slice;
use symmem_hal::types::{BackendKind, Bytes};
use symmem_mem::call::Operation;
use symmem_mem::stamps::{STAMPS, Stamp};
use symmem_sync::Capacities;

use crate::call::{Geometry, Request};
use crate::table::ChoiceTable;

/// How an operation moves its data.
///
/// Every algorithm but [`Multimem`](Self::Multimem) gives the same bits; they differ in time alone. The
/// codes travel between ranks and never change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Algorithm {
    /// The fastest known for the size.
    #[default]
    Auto = 0,
    /// The data is its own flag: each 4 bytes travel beside their epoch. For tiny messages.
    Packet = 1,
    /// Every rank takes what it needs from all others. For small messages; for all messages of
    /// operations in which no two ranks need the same result.
    OneShot = 2,
    /// Every rank reduces a slice and all, or the root, gather the slices. For large messages.
    TwoShot = 3,
    /// One-shot by plain copies of whole parts, one peer at a time and every rank beginning with
    /// another: what leaves the processors of a device, and its links, to other work. Symmetric
    /// memory is reached into at every size. On a GPU the copy engines do it; on a CPU, which has
    /// none, the rank's thread, and then it differs from one-shot in the small sizes alone.
    LowContention = 4,
    /// The switch between GPUs adds, and hands a store to all of them. In what order it adds is its own
    /// business: needs [`Determinism::Relaxed`](symmem_mem::Determinism). Of all-reduce and reduce (sums of
    /// f32, f16 and bf16) and all-gather, of whole vectors of 16 bytes, in symmetric memory that has a
    /// [multicast address](symmem_mem::SymmetricMemory::multicast_ptr): the input of a reduction, the
    /// output of all but a reduce. All else is a [`NoMultimem`](crate::NoMultimem). Never chosen, only
    /// asked for.
    Multimem = 5,
}

impl Algorithm {
    /// Those that can be asked for by name.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Auto,
        Algorithm::Packet,
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::LowContention,
        Algorithm::Multimem,
    ];

    /// The name that the command line, messages and files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::Packet => "packet",
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoShot => "two-shot",
            Algorithm::LowContention => "low-contention",
            Algorithm::Multimem => "multimem",
        }
    }

    /// The algorithm of a [`name`](Self::name); `None` for an unknown one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// Those that an operation has everywhere, beside [`Auto`](Self::Auto).
    #[must_use]
    pub const fn of(operation: Operation) -> &'static [Algorithm] {
        match operation {
            Operation::AllReduce | Operation::Reduce => {
                &[Algorithm::Packet, Algorithm::OneShot, Algorithm::TwoShot]
            }
            Operation::AllGather | Operation::ReduceScatter => {
                &[Algorithm::Packet, Algorithm::OneShot, Algorithm::LowContention]
            }
            Operation::Broadcast | Operation::AllToAll | Operation::AllToAllNd => {
                &[Algorithm::Packet, Algorithm::OneShot]
            }
            Operation::ReduceScatterOffset
            | Operation::TileReduce
            | Operation::MultiRootTileReduce => &[Algorithm::OneShot],
            _ => &[],
        }
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

/// How much a call moves, as every rank computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes that a rank has for others.
    pub sent: Bytes,
    /// Bytes of the larger of a rank's buffers.
    pub bytes: Bytes,
}

impl Size {
    pub(crate) fn of(geometry: &Geometry, world: usize) -> Self {
        let sent = geometry.part() * geometry.slots(world) as u64;
        let received = if geometry.output.step == 0 {
            geometry.part()
        } else {
            geometry.part() * world as u64
        };
        Size { sent: Bytes(sent), bytes: Bytes(sent.max(received)) }
    }
}

/// What is the fastest on a backend, up to a number of ranks.
struct Row {
    backend: BackendKind,
    ranks: usize,
    /// Bytes up to which packets are; what is past `one_shot` is for two-shot, or to be reached into.
    packet: u64,
    one_shot: u64,
    /// Bytes of a rank that are staged at a time.
    staged: u64,
    /// Bytes from which on outputs are written past the cache.
    streamed: u64,
}

/// Packets pay for themselves as long as they travel in the header's two lines: six of them. Beyond
/// two ranks, one-shot reads as many inputs as there are ranks and loses earlier. What is staged at a
/// time stays in a core's cache, input and output beside it, of every rank that shares the core. At 4
/// MiB an output is still faster through the cache, at 16 MiB twice as fast past it. Seen on two
/// cores of an AMD EPYC (Zen 4; 1 MiB of second-level cache each, 32 MiB of third), 2 to 8
/// processes, 2026-11.
const TABLE: &[Row] = &[
    Row {
        backend: BackendKind::Host,
        ranks: 2,
        packet: 48,
        one_shot: 64 << 10,
        staged: 512 << 10,
        streamed: 8 << 20,
    },
    Row {
        backend: BackendKind::Host,
        ranks: usize::MAX,
        packet: 48,
        one_shot: 16 << 10,
        staged: 256 << 10,
        streamed: 8 << 20,
    },
    // Of a GPU, the size at which two-shot overtakes pushes, where peers may write outputs. Seen on
    // two H200 (NVLink, 18 links a GPU), bf16, 2026-11; of more ranks, by what each of them receives.
    Row {
        backend: BackendKind::Cuda,
        ranks: 2,
        packet: 512 << 10,
        one_shot: 4 << 20,
        staged: 0,
        streamed: u64::MAX,
    },
    Row {
        backend: BackendKind::Cuda,
        ranks: 4,
        packet: 256 << 10,
        one_shot: 1 << 20,
        staged: 0,
        streamed: u64::MAX,
    },
    Row {
        backend: BackendKind::Cuda,
        ranks: usize::MAX,
        packet: 128 << 10,
        one_shot: 512 << 10,
        staged: 0,
        streamed: u64::MAX,
    },
    Row {
        backend: BackendKind::Stub,
        ranks: usize::MAX,
        packet: 48,
        one_shot: 16 << 10,
        staged: 256 << 10,
        streamed: 8 << 20,
    },
];

/// Of all figures above.
const BUILT_IN: u64 = {
    let (mut hash, mut i) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while i < TABLE.len() {
        let Row { backend, ranks, packet, one_shot, staged, streamed } = &TABLE[i];
        let words = [*backend as u64, *ranks as u64, *packet, *one_shot, *staged, *streamed];
        let mut j = 0;
        while j < words.len() {
            // FNV-1a of words: a bit that differs reaches all above it, and a rotation the others.
            hash = (hash ^ words[j]).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
            j += 1;
        }
        i += 1;
    }
    hash
};

/// Ranks of builds with other figures, which would cut their data differently, are told when they make
/// a group.
#[distributed_slice(STAMPS)]
static STAMP: Stamp =
    Stamp { name: "the built-in choice table", value: |_| Some(format!("{BUILT_IN:016x}")) };

fn row(backend: BackendKind, ranks: usize) -> &'static Row {
    let mut fitting = TABLE.iter().filter(|row| row.backend == backend && ranks <= row.ranks);
    fitting.next().unwrap_or(&TABLE[0])
}

/// The fastest known algorithm of an operation: by a table that was given, where it has a row.
pub(crate) fn choose(
    given: Option<&ChoiceTable>,
    operation: Operation,
    backend: BackendKind,
    layout: &Capacities,
    size: Size,
) -> Algorithm {
    let fits = |algorithm| {
        Algorithm::of(operation).contains(&algorithm)
            && (algorithm != Algorithm::Packet || size.sent <= layout.packet_capacity())
    };
    let given = given.and_then(|table| table.row(operation, backend, layout.world()));
    if let Some(algorithm) = given.and_then(|row| row.choose(size.bytes, fits)) {
        return algorithm;
    }
    let row = row(backend, layout.world());
    let has = |algorithm| Algorithm::of(operation).contains(&algorithm);
    if has(Algorithm::Packet) && size.sent.get() <= row.packet.min(layout.packet_capacity().get()) {
        Algorithm::Packet
    } else if size.bytes.get() <= row.one_shot || !has(Algorithm::TwoShot) {
        Algorithm::OneShot
    } else {
        Algorithm::TwoShot
    }
}

/// Whether ranks reach into each other's symmetric memory: once it saves more than the wait at the
/// end costs, for those that may not touch their memory before.
pub(crate) fn is_direct(
    algorithm: Algorithm,
    backend: BackendKind,
    request: &Request<'_>,
    world: usize,
) -> bool {
    let bytes = Size::of(&request.geometry, world).bytes.get();
    match algorithm {
        Algorithm::TwoShot | Algorithm::LowContention => true,
        Algorithm::OneShot => {
            request.operation != Operation::AllReduce && bytes > row(backend, world).one_shot
        }
        _ => false,
    }
}

/// Whether outputs are written past the cache: once they do not stay in it, unless they replace
/// what has just been read.
pub(crate) fn streams(backend: BackendKind, request: &Request<'_>, world: usize) -> bool {
    let Request { input, output, .. } = request;
    let in_place = input.ptr() == output.ptr() && input.count() == output.count();
    Size::of(&request.geometry, world).bytes.get() >= row(backend, world).streamed && !in_place
}

/// Whether runs of `row` bytes with gaps between them are too short to be reduced one by one where
/// they lie in peers' memory: staged, they are closed up.
pub(crate) fn is_piecemeal(row: u64, stride: u64) -> bool {
    row < 256 && row != stride
}

/// How much of each of `slots` parts is staged at a time: a multiple of [`UNIT`].
pub(crate) fn piece(
    algorithm: Algorithm,
    backend: BackendKind,
    layout: &Capacities,
    slots: usize,
) -> u64 {
    let chunk = layout.chunk_capacity().get();
    // A two-shot stages results beside inputs.
    let room = if algorithm == Algorithm::TwoShot { chunk } else { 2 * chunk };
    let staged = room.min(row(backend, layout.world()).staged);
    // A chunk has room for a unit of every rank.
    (staged / slots as u64 / UNIT).max(1) * UNIT
}

/// What slices and pieces are multiples of.
pub(crate) const UNIT: u64 = 128;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_backend_has_a_row_for_any_number_of_ranks() {
        for backend in [BackendKind::Host, BackendKind::Stub, BackendKind::Cuda] {
            let rows: Vec<_> = TABLE.iter().filter(|row| row.backend == backend).collect();
            assert!(rows.is_sorted_by(|a, b| a.ranks < b.ranks), "{backend}");
            assert_eq!(rows.last().map(|row| row.ranks), Some(usize::MAX), "{backend}");
            for row in &rows {
                // More ranks send more: each algorithm for small messages ends earlier.
                let first = rows[0];
                assert!(row.packet <= first.packet && row.one_shot <= first.one_shot);
                assert!(row.packet < row.one_shot);
            }
        }
    }

    #[test]
    fn gpus_have_the_row_of_their_number() {
        for (ranks, packet) in [(1, 512), (2, 512), (3, 256), (4, 256), (5, 128), (72, 128)] {
            let row = row(BackendKind::Cuda, ranks);
            assert_eq!((row.backend, row.packet), (BackendKind::Cuda, packet << 10), "{ranks}");
        }
    }

    #[test]
    fn groups_of_every_backend_compare_the_figures() {
        let mut all = STAMPS.iter();
        let stamp = all.find(|stamp| stamp.name == "the built-in choice table").unwrap();
        for row in TABLE {
            let value = (stamp.value)(row.backend).unwrap();
            assert_eq!(value, format!("{BUILT_IN:016x}"));
        }
    }
}
