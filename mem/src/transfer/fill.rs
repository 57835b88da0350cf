//! Fills of 32-bit words in a stream's order: flags that a kernel or a peer polls.
#![allow(unsafe_code, reason = "enqueues stores to addresses of views")]

use symmem_hal::types::{BackendKind, DType, Layout};
use symmem_hal::{DevicePtr, Fault, KeepAlive, Kind, Stream, SyncError};

use crate::memory::View;

/// Why words were not filled. Nothing was stored.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// The view holds other elements than 32-bit words.
    #[error("the view holds {found}; words are u32")]
    DType {
        /// Its type.
        found: DType,
    },
    /// The view has more than one dimension, or gaps.
    #[error("the view must be flat and without gaps, it is {layout:?}")]
    NotFlat {
        /// Its layout.
        layout: Box<Layout>,
    },
    /// No words were to be filled.
    #[error("the count is 0: at least 1 word is to be filled")]
    NoWords,
    /// The words are not all in the view.
    #[error("{count} words at offset {offset} end past a view of {words}")]
    OutOfRange {
        /// The first word.
        offset: u64,
        /// How many.
        count: u64,
        /// Words of the view.
        words: u64,
    },
    /// The stream is of another backend than the view.
    #[error("the view is on {view}, the stream on {stream}: take a stream of the view's device")]
    Backend {
        /// The view's backend.
        view: BackendKind,
        /// The stream's.
        stream: BackendKind,
    },
    /// The stream cannot take it.
    #[error(transparent)]
    Stream(#[from] SyncError),
}

impl Fault for FillError {
    fn kind(&self) -> Kind {
        match self {
            FillError::Stream(e) => e.kind(),
            _ => Kind::InvalidArgument,
        }
    }
}

/// A fill of words about to be issued.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing happens before on()"]
pub struct Fill<'a> {
    view: &'a View,
    offset: u64,
    value: u32,
    count: u64,
}

impl View {
    /// Stores one 32-bit word, `offset` words into a flat view of `u32`. Whoever sees it sees what
    /// the stream did before (release, at system scope).
    pub fn write_value32(&self, offset: u64, value: u32) -> Fill<'_> {
        Fill { view: self, offset, value, count: 1 }
    }

    /// Stores one value into `count` 32-bit words, from `offset` words into a flat view of `u32`.
    /// Orders as [`write_value32`](Self::write_value32).
    pub fn memset32(&self, offset: u64, value: u32, count: u64) -> Fill<'_> {
        Fill { view: self, offset, value, count }
    }
}

impl Fill<'_> {
    /// Issues it on a stream. On an inline stream it has happened at return.
    ///
    /// # Errors
    ///
    /// [`FillError`].
    pub fn on(self, stream: &Stream) -> Result<(), FillError> {
        let target = self.check(stream)?;
        let keep = || -> Vec<KeepAlive> { vec![self.view.keep_alive()] };
        // SAFETY: the words are of the view, which is borrowed until this returns and kept by what
        // `keep` gives; views of u32 are aligned.
        unsafe {
            match self.count {
                1 => stream.write_value32(target, self.value, &keep),
                count => stream.fill32(target, self.value, count, &keep),
            }
        }?;
        Ok(())
    }

    /// The address of the first word.
    fn check(&self, stream: &Stream) -> Result<DevicePtr, FillError> {
        let Fill { view, offset, count, .. } = *self;
        if view.dtype() != DType::U32 {
            return Err(FillError::DType { found: view.dtype() });
        }
        if view.layout().shape().len() != 1 || !view.layout().is_contiguous() {
            return Err(FillError::NotFlat { layout: Box::new(view.layout().clone()) });
        }
        if count == 0 {
            return Err(FillError::NoWords);
        }
        let past = FillError::OutOfRange { offset, count, words: view.count() };
        let Ok(words) = view.slice(offset, count) else { return Err(past) };
        let (view, stream) = (view.memory().backend(), stream.backend());
        if view != stream {
            return Err(FillError::Backend { view, stream });
        }
        Ok(words.ptr())
    }
}
