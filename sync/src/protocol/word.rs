//! The words that ranks share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that several ranks load and store.
///
/// The machines are generic over it: in production it is an atomic in mapped memory, in the
/// models a word of loom or of a simulated store buffer. There is no standalone fence among the
/// operations: an acquire load and a release store of the same word are all a machine may build
/// on.
pub trait Word {
    /// What it holds: `u32` or `u64`.
    type Value: Copy;

    /// Loads; what its writer did before the release store of the value happened before.
    fn load_acquire(&self) -> Self::Value;

    /// Loads, without order.
    fn load_relaxed(&self) -> Self::Value;

    /// Stores; everything this thread did before happens before a load that acquires the value.
    fn store_release(&self, value: Self::Value);

    /// Stores, without order.
    fn store_relaxed(&self, value: Self::Value);

    /// Replaces `current` by `new`, acquire and release. `Err` is the value found instead.
    ///
    /// # Errors
    ///
    /// The word held another value than `current`, which it keeps.
    fn compare_exchange(
        &self,
        current: Self::Value,
        new: Self::Value,
    ) -> Result<Self::Value, Self::Value>;

    /// Sets the bits of `bits`, acquire and release, and returns the value before.
    fn fetch_or(&self, bits: Self::Value) -> Self::Value;
}

/// A [`Word`] of 32 bits.
pub trait Word32: Word<Value = u32> {}
impl<W: Word<Value = u32>> Word32 for W {}

/// A [`Word`] of 64 bits.
pub trait Word64: Word<Value = u64> {}
impl<W: Word<Value = u64>> Word64 for W {}

/// Implements [`Word`] for an atomic that has the methods of `core`'s.
macro_rules! atomic_word {
    ($($atomic:ty => $value:ty),*) => {$(
        impl $crate::protocol::word::Word for $atomic {
            type Value = $value;

            fn load_acquire(&self) -> $value {
                self.load(Ordering::Acquire)
            }

            fn load_relaxed(&self) -> $value {
                self.load(Ordering::Relaxed)
            }

            fn store_release(&self, value: $value) {
                self.store(value, Ordering::Release);
            }

            fn store_relaxed(&self, value: $value) {
                self.store(value, Ordering::Relaxed);
            }

            fn compare_exchange(&self, current: $value, new: $value) -> Result<$value, $value> {
                <$atomic>::compare_exchange(self, current, new, Ordering::AcqRel, Ordering::Acquire)
            }

            fn fetch_or(&self, bits: $value) -> $value {
                <$atomic>::fetch_or(self, bits, Ordering::AcqRel)
            }
        }
    )*};
}

atomic_word!(AtomicU32 => u32, AtomicU64 => u64);

#[cfg(all(test, symmem_loom))]
pub(crate) use atomic_word;
