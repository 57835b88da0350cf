//! What one rank keeps with a group on memory that a CPU reaches.
#![allow(unsafe_code, reason = "launches a kernel")]

use std::sync::Arc;

use symmem_hal::types::Bytes;
use symmem_hal::{Function, KeepAlive, Launch, LoadError, Memory, Module, Stream, SyncError, Wait};
use symmem_mem::Group;

use super::{KERNELS, SignalArgs, wait};
use crate::layout::{Bases, Layout};
use crate::shared::PrepareError;
use crate::signals::SignalCall;

/// A group's lanes and channels, but for what all backends keep.
#[derive(Debug)]
pub(crate) struct Host {
    pub layout: Layout,
    /// What kernels find everything by: memory of this process alone, since they follow its addresses.
    pub table: Memory,
    functions: Functions,
}

/// The kernels of this crate.
#[derive(Clone, Copy, Debug)]
struct Functions {
    barrier: Function,
    put: Function,
    put_with_signal: Function,
    wait: Function,
    reset: Function,
    look_back: Function,
}

impl Functions {
    fn find(module: &Module) -> Result<Self, LoadError> {
        Ok(Functions {
            barrier: module.function("barrier")?,
            put: module.function("put_signal")?,
            put_with_signal: module.function("put_with_signal")?,
            wait: module.function("wait_signal")?,
            reset: module.function("reset_channel")?,
            look_back: module.function("look_back")?,
        })
    }
}

impl Host {
    /// Lays out the workspace and opens this rank's lanes. Local.
    pub(crate) fn new(group: &Group, stream: &Stream) -> Result<Self, PrepareError> {
        let (me, world, options) = (group.rank().index(), group.size(), group.options());
        let workspace = group.workspace_bytes();
        let layout =
            Layout::new(me, world, options.pad, workspace, options.max_lanes, options.checked)?
                .with_first_epoch(options.first_epoch);
        let module = group.device().load(&KERNELS)?;
        let functions = Functions::find(&module)?;
        wait::register();
        let table = make_table(group, &layout)?;
        let wait = group.wait();
        let keep = keep(group, &table);
        launch_on_lanes(stream, module.function("open_lanes")?, &table, &wait, &keep)?;
        stream.synchronize(&wait)?;
        Ok(Host { layout, table, functions })
    }

    /// What compares the lanes' last calls, on a stream that runs the kernel in the call: nobody waits
    /// for another thread then. Whether it did.
    pub(crate) fn last_look(&self, group: &Group, stream: &Stream) -> impl Fn() -> bool + use<> {
        let (stream, table, look_back) =
            (stream.clone(), self.table.clone(), self.functions.look_back);
        let keep = keep(group, &table);
        move || {
            let brief = Wait::millis(0);
            stream.is_inline() && launch_on_lanes(&stream, look_back, &table, &brief, &keep).is_ok()
        }
    }

    /// The kernel of a call, which takes what [`signal_args`](Self::signal_args) makes, or begins with
    /// it.
    pub(crate) fn function(&self, call: SignalCall) -> Function {
        match call {
            SignalCall::Barrier => self.functions.barrier,
            SignalCall::Put => self.functions.put,
            SignalCall::Wait => self.functions.wait,
            SignalCall::Reset => self.functions.reset,
            SignalCall::PutWithSignal => self.functions.put_with_signal,
        }
    }

    /// The arguments of a call on a channel with a peer.
    pub(crate) fn signal_args(&self, channel: u32, peer: u32) -> SignalArgs {
        SignalArgs { table: self.table.base(), channel, peer }
    }
}

/// What the addresses in a table lead to.
fn keep(group: &Group, table: &Memory) -> [KeepAlive; 2] {
    [Arc::new(group.regions().to_vec()), Arc::new(table.clone())]
}

/// Launches a kernel that is about all lanes of a group: one that makes them of zeroed words, for
/// which peers wait in their first operation, or one that looks back at their last calls.
fn launch_on_lanes(
    stream: &Stream,
    function: Function,
    table: &Memory,
    wait: &Wait,
    keep: &[KeepAlive],
) -> Result<(), SyncError> {
    let args = SignalArgs { table: table.base(), channel: 0, peer: 0 };
    // SAFETY: the kernel takes SignalArgs; the table was written when it was made, and the regions it
    // leads to are kept until the launch has run.
    let _ = unsafe { stream.launch(Launch::new(function, &args, wait, keep)) }?;
    Ok(())
}

fn make_table(group: &Group, layout: &Layout) -> Result<Memory, PrepareError> {
    let mut table = bytemuck::bytes_of(layout).to_vec();
    for rank in 0..group.size() {
        let bases = Bases { pad: group.pad_ptr(rank), workspace: group.workspace_ptr(rank) };
        table.extend_from_slice(bytemuck::bytes_of(&bases));
    }
    let memory = group.device().allocate_private(Bytes::from(table.len()))?;
    memory.write(Bytes::ZERO, &table)?;
    Ok(memory)
}
