//! What is in a rank's memory before a batch of operations, and what must be there after it.

use symmem_mem::call::Operation;

use super::draw::{ARENAS, Collective, Kind, Region, Step};

/// Every byte of every arena, as far as a batch uses it.
pub(super) struct Image {
    pub arenas: [Vec<u8>; ARENAS],
    rank: usize,
    ranks: usize,
}

impl Image {
    /// Nothing but what shows that nobody wrote there.
    pub(super) fn poisoned(used: [u64; ARENAS], poison: u8, rank: usize, ranks: usize) -> Self {
        Image { arenas: used.map(|bytes| vec![poison; bytes as usize]), rank, ranks }
    }

    fn part_mut(&mut self, region: &Region) -> &mut [u8] {
        &mut self.arenas[region.arena][region.at as usize..][..region.bytes as usize]
    }

    /// Puts in what this rank has for a step.
    pub(super) fn offer(&mut self, step: &Step) {
        let rank = self.rank;
        match &step.kind {
            Kind::Collective(collective) => {
                let input = input_of(step, collective, rank, self.ranks as u64);
                step.elements.write(self.part_mut(&input), rank, 0);
            }
            Kind::Puts { .. } => step.elements.write(self.part_mut(&step.input), rank, 0),
            Kind::Barrier { .. } | Kind::Signals { .. } => {}
        }
    }

    /// What the step does to it.
    pub(super) fn take(&mut self, step: &Step) {
        let (rank, ranks) = (self.rank, self.ranks);
        match &step.kind {
            Kind::Collective(collective) => self.take_collective(step, collective),
            Kind::Puts { .. } => {
                let previous = (rank + ranks - 1) % ranks;
                step.elements.write(self.part_mut(&step.output), previous, 0);
            }
            Kind::Barrier { .. } | Kind::Signals { .. } => {}
        }
    }

    fn take_collective(&mut self, step: &Step, collective: &Collective) {
        let (me, ranks) = (self.rank as u64, self.ranks as u64);
        let elements = &step.elements;
        let Collective { operation, count, rows, scatter, root, .. } = *collective;
        let size = elements.dtype.size();
        let into = self.part_mut(&output_of(step, collective, me as usize, ranks));
        if into.is_empty() {
            return;
        }
        // Each row of an output with two dimensions.
        let row = |columns: u64| columns as usize * size;
        let part = row(count);
        match operation {
            Operation::AllReduce => elements.write_reduced(into, 0),
            Operation::Reduce if me == root as u64 => elements.write_reduced(into, 0),
            Operation::Broadcast => elements.write(into, root, 0),
            Operation::AllGather => {
                for (writer, into) in into.chunks_exact_mut(part).enumerate() {
                    elements.write(into, writer, 0);
                }
            }
            Operation::ReduceScatter => match rows {
                None => elements.write_reduced(into, me * count),
                Some(rows) => {
                    let columns = count / rows;
                    for (y, into) in (0..).zip(into.chunks_exact_mut(row(columns))) {
                        elements.write_reduced(into, (y * ranks + me) * columns);
                    }
                }
            },
            Operation::AllToAll => {
                for (writer, into) in into.chunks_exact_mut(part).enumerate() {
                    elements.write(into, writer, me * count);
                }
            }
            Operation::AllToAllNd => {
                let rows = rows.unwrap_or(1);
                let columns = count / rows;
                for (n, into) in (0..).zip(into.chunks_exact_mut(row(columns))) {
                    // Rows of all ranks beside each other, or below.
                    let (writer, from) = match scatter {
                        0 => (n % ranks, (me * rows + n / ranks) * columns),
                        _ => (n / rows, ((n % rows) * ranks + me) * columns),
                    };
                    elements.write(into, writer as usize, from);
                }
            }
            Operation::ReduceScatterOffset => {
                let (mut from, mut at) = (0, 0);
                for (rows, owner) in &collective.blocks {
                    let bytes = row(rows * count);
                    if *owner as u64 == me {
                        elements.write_reduced(&mut into[at..at + bytes], from * count);
                        at += bytes;
                    }
                    from += rows;
                }
            }
            _ => {}
        }
    }
}

/// The part of a whole of `ranks` blocks that is this rank's.
fn block(whole: &Region, bytes: u64, rank: usize) -> Region {
    Region {
        at: whole.at + if bytes == whole.bytes { 0 } else { bytes * rank as u64 },
        bytes,
        ..*whole
    }
}

/// Where an input is: in place, of some, in the memory of the output.
pub(super) fn input_of(step: &Step, collective: &Collective, rank: usize, ranks: u64) -> Region {
    match (collective.is_in_place, collective.operation) {
        (true, Operation::AllGather) => block(&step.input, step.input.bytes / ranks, rank),
        _ => step.input,
    }
}

pub(super) fn output_of(step: &Step, collective: &Collective, rank: usize, ranks: u64) -> Region {
    match (collective.is_in_place, collective.operation) {
        (true, Operation::ReduceScatter) => block(&step.output, step.output.bytes / ranks, rank),
        _ => step.output,
    }
}
