//! The barrier of a channel.
//!
//! Each rank has one word per channel that it alone writes: 32 bits of *generation*, 32 bits of
//! epoch. A rank arrives by storing the epoch and waits until every peer's word is that epoch or
//! its successor, which a peer reaches only by having seen this rank arrive.
//!
//! A wait that ends early leaves this rank arrived at a barrier it did not complete: the channel
//! is broken here, and soon on its peers, which wait for a next arrival. [`Reset`] makes it usable
//! again. No word is zeroed for that: the ranks meet in the next generation, whose epochs no word
//! of the broken one equals, so the ranks need not agree on how far they came. It meets twice:
//! after the first meeting no rank uses the channel, so each empties its own user slots of the
//! channel; after the second all are empty. A reset that ends early is resumed by the next,
//! wherever it was; peers that completed it have meanwhile come one epoch or one generation
//! further at most, which says that this rank had been seen.

use core::convert::Infallible;

use symmem_hal::types::RankSet;

use super::progress::Cursor;
use super::{Peers, Placement, Progress, SignalMemory, Word, slot};

/// Where this rank stands on a channel. The default is a channel whose words are all zero.
///
/// The caller keeps one per channel and lends it to one machine at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    generation: u32,
    epoch: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// A wait ended early, or is under way.
    Broken,
    /// In a reset: at its first meeting in epoch 0, at its second in epoch 1.
    Resetting,
}

/// The channel is broken: a wait on it ended early, and no reset has completed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an earlier wait on the channel ended early; reset it")]
pub struct Broken;

impl Channel {
    /// Whether a wait on this channel ended early and no reset has completed since.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.state != State::Open
    }

    /// As three words, for kernels that keep channels in memory.
    #[must_use]
    pub fn encode(&self) -> [u32; 3] {
        [self.generation, self.epoch, self.state as u32]
    }

    /// From the words of [`encode`](Self::encode). A state that is none counts as broken.
    #[must_use]
    pub fn decode(words: [u32; 3]) -> Self {
        let state = match words[2] {
            0 => State::Open,
            2 => State::Resetting,
            _ => State::Broken,
        };
        Channel { generation: words[0], epoch: words[1], state }
    }

    /// Breaks the channel: a wait for one of its user slots ended early.
    pub fn fail(&mut self) {
        if self.state == State::Open {
            self.state = State::Broken;
        }
    }
}

/// A word, or what it is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stand {
    generation: u32,
    epoch: u32,
}

impl Stand {
    fn of(channel: &Channel) -> Self {
        Stand { generation: channel.generation, epoch: channel.epoch }
    }

    fn decode(word: u64) -> Self {
        Stand { generation: (word >> 32) as u32, epoch: word as u32 }
    }

    fn encode(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.epoch)
    }

    /// The next meeting of the same generation.
    fn next(self) -> Self {
        Stand { epoch: self.epoch.wrapping_add(1), ..self }
    }

    /// The first meeting of the next generation.
    fn renewed(self) -> Self {
        Stand { generation: self.generation.wrapping_add(1), epoch: 0 }
    }
}

/// Stores this rank's word for every peer.
fn publish<M: SignalMemory>(memory: &M, index: usize, stand: Stand) {
    let me = memory.rank();
    let put = |reader| memory.barrier(index, me, reader).store_release(stand.encode());
    match memory.placement() {
        Placement::Shared => put(me),
        Placement::PerReader => (0..memory.world()).filter(|&r| r != me).for_each(put),
    }
}

fn peek<M: SignalMemory>(memory: &M, index: usize, writer: usize) -> Stand {
    Stand::decode(memory.barrier(index, writer, memory.rank()).load_acquire())
}

/// This rank's arrival at a barrier. Until [`poll`](Self::poll) is ready the channel counts as
/// broken, so that giving up is just dropping this.
#[derive(Debug)]
pub struct Barrier<'m, M> {
    memory: &'m M,
    index: usize,
    channel: &'m mut Channel,
    cursor: Cursor,
}

impl<'m, M: SignalMemory> Barrier<'m, M> {
    /// Arrives at the next barrier of channel `index`. What this rank did before happens before
    /// the end of the barrier on every peer.
    ///
    /// # Errors
    ///
    /// [`Broken`]; nothing was stored.
    pub fn arrive(memory: &'m M, index: usize, channel: &'m mut Channel) -> Result<Self, Broken> {
        if channel.is_broken() {
            return Err(Broken);
        }
        channel.epoch = channel.epoch.wrapping_add(1);
        channel.state = State::Broken;
        publish(memory, index, Stand::of(channel));
        Ok(Barrier { memory, index, channel, cursor: Cursor::START })
    }

    /// Looks for the peers that are still missing.
    pub fn poll(&mut self) -> Progress<()> {
        let (memory, index, stand) = (self.memory, self.index, Stand::of(self.channel));
        // A peer of the next generation may have left this barrier without arriving at it.
        let progress = poll_all(&mut self.cursor, memory, |writer| {
            let theirs = peek(memory, index, writer);
            theirs == stand || theirs == stand.next()
        });
        if matches!(progress, Progress::Ready(())) {
            self.channel.state = State::Open;
        }
        progress
    }

    /// The peers that have not arrived.
    #[must_use]
    pub fn missing(&self) -> RankSet {
        let stand = Stand::of(self.channel);
        missing(self.memory, |writer| {
            let theirs = peek(self.memory, self.index, writer);
            theirs == stand || theirs == stand.next()
        })
    }
}

/// The collective repair of a channel. Until [`poll`](Self::poll) is ready the channel stays
/// broken; a reset that was given up is resumed by the next.
#[derive(Debug)]
pub struct Reset<'m, M> {
    memory: &'m M,
    index: usize,
    channel: &'m mut Channel,
    cursor: Cursor,
}

impl<'m, M: SignalMemory> Reset<'m, M> {
    /// Begins, or resumes, the reset of channel `index`. No put or wait of this rank on the
    /// channel is in flight.
    pub fn begin(memory: &'m M, index: usize, channel: &'m mut Channel) -> Self {
        let mut reset = Reset { memory, index, channel, cursor: Cursor::START };
        if reset.channel.state != State::Resetting {
            reset.meet(Stand::of(reset.channel).renewed());
        }
        reset
    }

    fn meet(&mut self, stand: Stand) {
        *self.channel =
            Channel { generation: stand.generation, epoch: stand.epoch, state: State::Resetting };
        self.cursor = Cursor::START;
        publish(self.memory, self.index, stand);
    }

    /// Whether a peer's word says that it came to this rank's meeting.
    fn met(stand: Stand, theirs: Stand) -> bool {
        let again = stand.epoch == 1 && theirs == stand.renewed();
        theirs == stand || theirs == stand.next() || again
    }

    /// Looks for the peers that are still missing.
    pub fn poll(&mut self) -> Progress<()> {
        loop {
            let (memory, index, stand) = (self.memory, self.index, Stand::of(self.channel));
            let progress = poll_all(&mut self.cursor, memory, |writer| {
                Self::met(stand, peek(memory, index, writer))
            });
            if let Progress::Pending { .. } = progress {
                return progress;
            }
            if stand.epoch == 0 {
                let me = memory.rank();
                for sender in 0..memory.world() {
                    memory.slot(index, sender, me).store_release(slot::EMPTY);
                }
                self.meet(stand.next());
            } else if self.is_behind(stand) {
                // A peer completed this reset, broke the channel again by waiting for this rank,
                // and is at the next: this call is this rank's part in that one.
                self.meet(stand.renewed());
            } else {
                self.channel.state = State::Open;
                return progress;
            }
        }
    }

    /// Whether a peer has begun the next reset.
    fn is_behind(&self, stand: Stand) -> bool {
        let (memory, me) = (self.memory, self.memory.rank());
        (0..memory.world()).any(|w| w != me && peek(memory, self.index, w) == stand.renewed())
    }

    /// The peers that have not come to the meeting this rank is at.
    #[must_use]
    pub fn missing(&self) -> RankSet {
        let stand = Stand::of(self.channel);
        missing(self.memory, |writer| Self::met(stand, peek(self.memory, self.index, writer)))
    }
}

fn poll_all<M: SignalMemory>(
    cursor: &mut Cursor,
    memory: &M,
    arrived: impl Fn(usize) -> bool,
) -> Progress<()> {
    let Ok(progress) = cursor.advance(memory.rank(), memory.world(), Peers::All, |writer| {
        Ok::<_, Infallible>(arrived(writer))
    });
    progress
}

fn missing<M: SignalMemory>(memory: &M, arrived: impl Fn(usize) -> bool) -> RankSet {
    (0..memory.world()).filter(|&rank| rank != memory.rank() && !arrived(rank)).collect()
}
