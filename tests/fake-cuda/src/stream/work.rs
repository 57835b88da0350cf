//! What streams and graphs consist of, and how each piece is done.

use core::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use symmem_sys::cuda::bindings::{
    CUgraphNodeType as NodeType, CUresult as Code, CUstreamWaitValue_flags as WaitFlags,
};

use crate::config::CONFIG;
use crate::entry::{Outcome, callback};
use crate::graph::Exec;
use crate::memory::plain;
use crate::memory::space::{self, Access};

/// A place in a stream, reached once.
#[derive(Debug, Default)]
pub(crate) struct Point {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Point {
    pub fn reach(&self) {
        *self.reached.lock() = Some(Instant::now());
        self.changed.notify_all();
    }

    /// When it was reached, if it was.
    pub fn time(&self) -> Option<Instant> {
        *self.reached.lock()
    }

    pub fn wait(&self) {
        let mut reached = self.reached.lock();
        while reached.is_none() {
            self.changed.wait(&mut reached);
        }
    }
}

/// A function of the user's and what it is called with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callback {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: u64,
}

impl Callback {
    /// Calls it, with the driver out of bounds.
    pub fn call(self) {
        // SAFETY: whoever handed it to the driver vouches that it may be called with this argument,
        // from any thread, at the time that the driver's documentation tells.
        callback(|| unsafe {
            (self.function)(ptr::with_exposed_provenance_mut(self.data as usize));
        });
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    /// Rows of `count` values of `width` bytes.
    Fill {
        to: u64,
        pitch: u64,
        value: u32,
        width: u64,
        count: u64,
        rows: u64,
    },
    Store {
        to: u64,
        value: u64,
        width: u64,
    },
    WaitFor {
        from: u64,
        value: u64,
        width: u64,
        flags: u32,
    },
    Host(Callback),
    Kernel,
    Empty,
    Graph(Arc<Exec>),
    /// The end of pooled memory, by its address.
    Free(u64),
    /// Streams only, as the next.
    Signal(Arc<Point>),
    Await(Arc<Point>),
}

impl Work {
    pub fn node_type(&self) -> NodeType {
        match self {
            Work::Copy { .. } => NodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            Work::Fill { .. } => NodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            Work::Store { .. } | Work::WaitFor { .. } => NodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Work::Host(_) => NodeType::CU_GRAPH_NODE_TYPE_HOST,
            Work::Kernel => NodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            Work::Graph(_) => NodeType::CU_GRAPH_NODE_TYPE_GRAPH,
            Work::Free(_) => NodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Work::Empty | Work::Signal(_) | Work::Await(_) => NodeType::CU_GRAPH_NODE_TYPE_EMPTY,
        }
    }

    /// Whether the device may touch what this touches, as far as that is known now.
    pub fn check(&self, device: usize) -> Outcome {
        let space = space::read();
        match *self {
            Work::Copy { to, from, bytes } => {
                space.check(device, to, bytes, Access::Write)?;
                space.check(device, from, bytes, Access::Read)
            }
            Work::Fill { to, pitch, width, count, rows, .. } => (0..rows).try_for_each(|row| {
                space.check(device, to + row * pitch, width * count, Access::Write)
            }),
            Work::Store { to, width, .. } => space.check(device, to, width, Access::Write),
            Work::WaitFor { from, width, .. } => space.check(device, from, width, Access::Read),
            _ => Ok(()),
        }
    }

    /// Does it, on behalf of `device`.
    pub fn run(&self, device: usize) -> Outcome {
        match *self {
            Work::Copy { to, from, bytes } => space::copy(device, to, from, bytes),
            Work::Fill { to, pitch, value, width, count, rows } => (0..rows)
                .try_for_each(|row| space::fill(device, to + row * pitch, value, width, count)),
            Work::Store { to, value, width } => space::store(device, to, value, width),
            Work::WaitFor { from, value, width, flags } => wait(device, from, value, width, flags),
            Work::Host(callback) => {
                callback.call();
                Ok(())
            }
            Work::Graph(ref exec) => exec.run(device),
            Work::Free(base) => plain::free_pooled(base),
            Work::Kernel | Work::Empty | Work::Signal(_) | Work::Await(_) => Ok(()),
        }
    }
}

/// Waits until a word is as asked; a bound that hardware does not have ends it as a launch that took
/// too long.
fn wait(device: usize, from: u64, value: u64, width: u64, flags: u32) -> Outcome {
    let started = Instant::now();
    loop {
        let found = space::load(device, from, width)?;
        let difference = found.wrapping_sub(value);
        let met = match WaitFlags(flags & 3) {
            WaitFlags::CU_STREAM_WAIT_VALUE_EQ => found == value,
            WaitFlags::CU_STREAM_WAIT_VALUE_AND => found & value != 0,
            WaitFlags::CU_STREAM_WAIT_VALUE_NOR => {
                !(found | value) & (u64::MAX >> (64 - 8 * width)) != 0
            }
            // Cyclic, as the header says.
            _ if width == 4 => (difference as u32).cast_signed() >= 0,
            _ => difference.cast_signed() >= 0,
        };
        if met {
            return Ok(());
        }
        if started.elapsed() > CONFIG.wait {
            return Err(Code::CUDA_ERROR_LAUNCH_TIMEOUT);
        }
        thread::sleep(Duration::from_micros(50));
    }
}
