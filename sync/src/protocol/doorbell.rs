//! How a waiter sleeps without its writers paying for it.
//!
//! One word per receiver. A waiter that has spun long enough [announces](Doorbell::announce) its
//! sleep, looks at its data once more and sleeps for as long as the word says so; a writer stores
//! its data and [rings](Doorbell::ring). This is the one place where a store must be ordered
//! before a later load, on both sides, which no release or acquire does. The waiter, who is about
//! to sleep anyway, pays for both: [`Fence::heavy`] is a barrier on every thread that may ring
//! (membarrier), [`Fence::light`] keeps only the compiler from reordering. The models use a
//! sequentially consistent fence on both sides, which is what the pair amounts to.
//!
//! The word stays set when a waiter finds its data after the announcement: it may not clear it,
//! since another waiter of this receiver may rely on it. The next writer clears it, at the price
//! of one wake-up of nobody.

use super::Word32;

/// The word of a doorbell on which somebody sleeps, or is about to.
pub const SLEEPING: u32 = 1;
/// The word of a doorbell on which nobody sleeps.
pub const AWAKE: u32 = 0;

/// Orders a store before a later load of another word, between one waiter and its writers.
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
    /// only while the word is [`SLEEPING`], by a wait that compares and sleeps in one step (futex).
    pub fn announce(&self, fence: &impl Fence) {
        self.word.store_release(SLEEPING);
        fence.heavy();
    }

    /// After a store that somebody may sleep for; true when the caller must wake all sleepers.
    #[must_use]
    pub fn ring(&self, fence: &impl Fence) -> bool {
        fence.light();
        let sleeping = self.word.load_relaxed() == SLEEPING;
        if sleeping {
            self.word.store_release(AWAKE);
        }
        sleeping
    }
}
