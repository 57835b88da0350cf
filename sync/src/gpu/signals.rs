//! Launches of the kernels of signals and barriers.
#![allow(unsafe_code, reason = "launches kernels")]

use symmem_hal::{Function, Grid, Launch, Launched, Stream, SyncError, Wait};
use symmem_mem::View;

use super::args::SymmemPut;
use super::state::{Ends, Gpu};
use crate::signals::{SignalCall, Turn};

/// A call's kernel is one warp.
const WARP: u32 = 32;

/// Threads of a block that copies, and bytes for which it is worth one more.
const COPIERS: u32 = 512;
const SHARE: u64 = 64 << 10;

impl Gpu {
    /// Launches a signal or barrier: all but a put with data.
    ///
    /// # Safety
    ///
    /// Channel and peer are in range, and `turn` keeps the group's regions and this mapped until the
    /// kernel has run.
    pub(crate) unsafe fn signal(
        &self,
        call: SignalCall,
        place: (u32, u32),
        stream: &Stream,
        wait: &Wait,
        turn: &Turn<'_>,
    ) -> Result<Launched, SyncError> {
        let function = match call {
            SignalCall::Barrier => self.functions.barrier,
            SignalCall::Put | SignalCall::PutWithSignal => self.functions.put,
            SignalCall::Wait => self.functions.wait,
            SignalCall::Reset => self.functions.reset,
        };
        let ends = self.ends(stream, wait, turn.is_captured)?;
        let args = self.signal_args(place, &ends);
        // SAFETY: the function takes SymmemSignal; the rest is the caller's promise.
        unsafe { launch(stream, (function, block(WARP)), &args, wait, turn, &ends) }
    }

    /// Launches a put of data with its signal. The data of a large one is stored by many blocks, none of
    /// which may wait for another: a kernel before them waits for the slot.
    ///
    /// # Safety
    ///
    /// As for [`signal`](Self::signal); `turn` keeps the views, too.
    pub(crate) unsafe fn put_with_signal(
        &self,
        (source, target): (&View, &View),
        place: (u32, u32),
        stream: &Stream,
        wait: &Wait,
        turn: &Turn<'_>,
    ) -> Result<Launched, SyncError> {
        let ends = self.ends(stream, wait, turn.is_captured)?;
        let args = SymmemPut {
            signal: self.signal_args(place, &ends),
            source: source.ptr(),
            target: target.ptr(),
            bytes: source.bytes().get(),
            reserved: 0,
        };
        let blocks = args.bytes.div_ceil(SHARE).clamp(1, u64::from(self.grid_cap())) as u32;
        let functions = &self.functions;
        if blocks > 1 {
            let first = (functions.await_empty, block(WARP));
            // SAFETY: the function takes SymmemSignal; as in `signal`.
            let _ = unsafe { launch(stream, first, &args.signal, wait, turn, &ends) }?;
        }
        let second = (functions.put_with_signal, Grid { blocks, ..block(COPIERS) });
        // SAFETY: the function takes SymmemPut, whose source and target are of the views.
        unsafe { launch(stream, second, &args, wait, turn, &ends) }
    }
}

/// One block. Every kernel here waits for the end of the one before it by itself, so that it can be set up
/// meanwhile.
fn block(threads: u32) -> Grid {
    Grid { threads, dependent: true, ..Grid::default() }
}

/// Launches a kernel that keeps what its turn keeps, and its token's word.
///
/// # Safety
///
/// The function takes an `A`, all of whose addresses stay valid while that is kept.
unsafe fn launch<A: bytemuck::NoUninit>(
    stream: &Stream,
    (function, grid): (Function, Grid),
    args: &A,
    wait: &Wait,
    turn: &Turn<'_>,
    ends: &Ends,
) -> Result<Launched, SyncError> {
    let keep = || {
        let mut kept = (turn.keep)();
        kept.extend(ends.keep());
        kept
    };
    // SAFETY: the caller's promise.
    unsafe { stream.launch(Launch::keeping(function, args, wait, &keep).grid(grid)) }
}
