//! How a waiter sleeps without its writers paying for it.
//!
//! One word per receiver. A waiter that has spun long enough [announces](Doorbell::announce) its
//! sleep, looks at its data once more and sleeps for as long as the word stays what the
//! announcement returned; a writer stores its data and [rings](Doorbell::ring). This is the one
//! place where a store must be ordered before a later load, on both sides, which no release or
//! acquire does. The waiter, who is about to sleep anyway, pays for both: [`Fence::heavy`] is a
//! barrier on every thread that may ring (membarrier), [`Fence::light`] keeps only the compiler
//! from reordering. The models use a sequentially consistent fence on both sides, which is what
//! the pair amounts to.
//!
//! Bit 0 of the word says that somebody sleeps or is about to; the bits above count the rings that
//! found it set. Without the count, a receiver with two waiters would lose one: between its last
//! look and its sleep a ring meant for it can clear the bit and the other waiter set it again.
//! A waiter that finds its data after the announcement leaves the bit set, since another may rely
//! on it; the next writer clears it, at the price of waking nobody.

use super::Word32;

const SLEEPING: u32 = 1;

/// Orders a store before a later load of another word, between waiters and their writers.
pub trait Fence {
    /// The waiter's side: on return every writer has passed a full barrier since the call.
    fn heavy(&self);

    /// The writer's side.
    fn light(&self);
}

/// The doorbell of a receiver.
#[derive(Debug)]
pub struct Doorbell<'a, W> {
    word: &'a W,
}

impl<'a, W: Word32> Doorbell<'a, W> {
    /// The doorbell of this word, which starts as 0.
    pub const fn new(word: &'a W) -> Self {
        Doorbell { word }
    }

    /// Says that the caller is about to sleep. It must look at its data after this, and then sleep
    /// only while the word is what this returns, by a wait that compares and sleeps in one step
    /// (futex).
    #[must_use]
    pub fn announce(&self, fence: &impl Fence) -> u32 {
        let awaited = self.word.fetch_or(SLEEPING) | SLEEPING;
        fence.heavy();
        awaited
    }

    /// After a store that somebody may sleep for; true when the caller must wake all sleepers.
    #[must_use]
    pub fn ring(&self, fence: &impl Fence) -> bool {
        fence.light();
        let found = self.word.load_relaxed();
        // Adding 1 clears the bit and counts. Where another ring was faster, that one wakes those
        // who slept then, and whoever announced since has seen this store.
        found & SLEEPING != 0 && self.word.compare_exchange(found, found.wrapping_add(1)).is_ok()
    }
}
