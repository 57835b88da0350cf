//! What the soak does next: the same on every rank.

use symmem_collectives::Algorithm;
use symmem_hal::types::{DType, ReduceOp};
use symmem_mem::call::Operation;
use symmem_sync::Capacities;

use super::model::Elements;
use crate::model::collective::parts;
use crate::support::random::Random;

/// Where a batch's buffers are: private and symmetric, for input and output.
pub(super) const ARENAS: usize = 4;
pub(super) const SYMMETRIC_OUTPUT: usize = 3;

/// Bytes of each, and the most of one buffer.
pub(super) const ARENA: u64 = 512 << 10;
const MOST: u64 = 160 << 10;

/// Bytes between buffers at least, which nobody may touch.
const GAP: u64 = 16;

/// Streams and lanes that operations are spread over.
pub(super) const STREAMS: usize = 3;
pub(super) const LANES: usize = 3;

/// Channels of signals; the one below them has the barriers between batches.
const CHANNELS: u64 = 4;

/// Part of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub arena: usize,
    pub at: u64,
    pub bytes: u64,
}

/// What kind of step, and its own values.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Collective(Collective),
    Barrier {
        channel: u32,
    },
    /// Each rank signals the next and waits for the one before.
    Signals {
        channel: u32,
    },
    /// The same with data, from the input into the next rank's output.
    Puts {
        channel: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Collective {
    pub operation: Operation,
    /// Elements of a part; of a row, where it is by blocks.
    pub count: u64,
    /// Rows of a part, of those with two dimensions.
    pub rows: Option<u64>,
    /// Which dimension is cut, of an all-to-all of two.
    pub scatter: usize,
    pub root: usize,
    pub algorithm: Algorithm,
    pub is_in_place: bool,
    /// Rows and owner of each block, of a reduce-scatter of those.
    pub blocks: Vec<(u64, usize)>,
    pub lane: usize,
}

/// One operation, with its memory.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub kind: Kind,
    pub elements: Elements,
    pub input: Region,
    pub output: Region,
    pub stream: usize,
}

/// Draws operations, batch by batch.
pub(super) struct Draw {
    pub random: Random,
    pub ranks: usize,
    pub capacities: Capacities,
    /// Bytes at which something changes.
    pub thresholds: Vec<u64>,
    used: [u64; ARENAS],
    number: u64,
}

impl Draw {
    pub(super) fn new(random: Random, ranks: usize, capacities: Capacities) -> Self {
        let (packets, chunk) =
            (capacities.packet_capacity().get(), capacities.chunk_capacity().get());
        let mut thresholds = vec![48, packets, chunk, 2 * chunk, 3 * chunk, 16 << 10, 64 << 10];
        thresholds.extend([packets, chunk, 2 * chunk].map(|bytes| bytes / ranks as u64));
        thresholds.retain(|bytes| *bytes <= MOST);
        Draw { random, ranks, capacities, thresholds, used: [0; ARENAS], number: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Up to so many operations, in memory that is theirs alone.
    pub(super) fn batch(&mut self, most: usize) -> Vec<Step> {
        self.used = [0; ARENAS];
        let mut steps = Vec::with_capacity(most);
        while steps.len() < most {
            let step = self.step();
            let full = self.used.iter().any(|used| *used > ARENA);
            if full {
                break;
            }
            steps.push(step);
        }
        steps
    }

    /// Bytes of the larger buffer: mostly few.
    fn bytes(&mut self) -> u64 {
        match self.below(100) {
            0..60 => self.random.below(300),
            60..92 => self.random.below(6000),
            _ => {
                let thresholds = self.thresholds.clone();
                self.one_of(&thresholds) + self.random.below(40) - 20
            }
        }
    }

    /// How much of each arena is in use.
    pub(super) fn used(&self) -> [u64; ARENAS] {
        self.used.map(|used| (used + GAP).min(ARENA))
    }

    fn region(&mut self, arena: usize, bytes: u64, size: usize) -> Region {
        // At any element, often at a vector.
        let gap = if self.one_in(2) { GAP } else { GAP + self.random.below(40) };
        let multiple = if self.one_in(2) { 16 } else { size as u64 };
        let at = (self.used[arena] + gap).next_multiple_of(multiple);
        self.used[arena] = at + bytes + GAP;
        Region { arena, at, bytes }
    }

    fn step(&mut self) -> Step {
        self.number += 1;
        let stream = self.below(STREAMS);
        let channel = 1 + self.random.below(CHANNELS) as u32;
        let key = self.random.next();
        let ranks = self.ranks as u64;
        let bytes = Elements { dtype: DType::U8, op: None, ranks, key };
        let nothing = Region { arena: 0, at: 0, bytes: 0 };
        let step = |kind, input, output| Step { kind, elements: bytes, input, output, stream };
        match self.below(100) {
            0..4 => step(Kind::Barrier { channel }, nothing, nothing),
            4..9 => step(Kind::Signals { channel }, nothing, nothing),
            9..14 => {
                let length = self.bytes();
                let source = self.one_of(&[0, 2]);
                let input = self.region(source, length, 1);
                let output = self.region(SYMMETRIC_OUTPUT, length, 1);
                step(Kind::Puts { channel }, input, output)
            }
            _ => self.collective(key, stream),
        }
    }

    fn collective(&mut self, key: u64, stream: usize) -> Step {
        const OPERATIONS: [Operation; 10] = [
            Operation::AllReduce,
            Operation::AllReduce,
            Operation::AllReduce,
            Operation::AllGather,
            Operation::ReduceScatter,
            Operation::Broadcast,
            Operation::Reduce,
            Operation::AllToAll,
            Operation::AllToAllNd,
            Operation::ReduceScatterOffset,
        ];
        let operation = self.one_of(&OPERATIONS);
        let ranks = self.ranks as u64;
        let dtype = self.one_of(&DType::ALL);
        let size = dtype.size();
        let reduces = matches!(
            operation,
            Operation::AllReduce
                | Operation::Reduce
                | Operation::ReduceScatter
                | Operation::ReduceScatterOffset
        );
        let ops: Vec<_> = ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).collect();
        let op = reduces.then(|| self.one_of(&ops));
        let by_blocks = operation == Operation::ReduceScatterOffset;
        let (inputs, outputs) = if by_blocks { (1, 1) } else { parts(operation, ranks) };
        let mut count = self.bytes() / size as u64 / inputs.max(outputs);
        let has_rows = match operation {
            Operation::AllToAllNd => true,
            Operation::ReduceScatter => self.one_in(4),
            _ => false,
        };
        let mut rows = None;
        if has_rows {
            let most = 1 + self.random.below(6);
            count = (count / most).max(1) * most;
            rows = Some(most);
        }
        let mut blocks = Vec::new();
        if by_blocks {
            for _ in 0..1 + self.below(2 * self.ranks) {
                blocks.push((self.random.below(4), self.below(self.ranks)));
            }
            let all: u64 = blocks.iter().map(|(rows, _)| rows).sum();
            count = (count / all.max(1)).max(1);
        }
        let all_rows: u64 = blocks.iter().map(|(rows, _)| rows).sum();
        let length = |parts: u64| size as u64 * count * if by_blocks { all_rows } else { parts };
        let (sent, received) = (length(inputs), length(outputs));
        let is_in_place = rows.is_none() && !by_blocks && operation != Operation::AllToAllNd;
        let is_in_place = is_in_place && self.one_in(3);
        let arena = self.one_of(&[0, 2]);
        let (input, output) = if is_in_place {
            let whole = self.region(arena, sent.max(received), size);
            (whole, whole)
        } else {
            let input = self.region(arena, sent, size);
            let arena = self.one_of(&[1, SYMMETRIC_OUTPUT]);
            (input, self.region(arena, received, size))
        };
        let named = Algorithm::of(operation).iter().copied();
        let packets = self.capacities.packet_capacity().get();
        let fitting = named.filter(|a| *a != Algorithm::Packet || sent <= packets);
        let algorithms: Vec<_> = [Algorithm::Auto].into_iter().chain(fitting).collect();
        let collective = Collective {
            operation,
            count,
            rows,
            scatter: self.below(2),
            root: self.below(self.ranks),
            algorithm: self.one_of(&algorithms),
            is_in_place,
            blocks,
            lane: self.below(LANES),
        };
        let elements = Elements { dtype, op, ranks, key };
        Step { kind: Kind::Collective(collective), elements, input, output, stream }
    }
}
