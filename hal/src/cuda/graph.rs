//! Graphs: what a capture recorded, made ready to run again and again.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::{Arc, Weak};

use symmem_sys::cuda::bindings::{
    CUgraph, CUgraph_st, CUgraphExec_st, CUgraphNode, CUgraphNode_st, CUresult, CUstream,
};

use super::Device;
use super::capture::Recorded;
use super::context::{Context, Raw};
use super::driver::{Caller as _, cu};
use super::host_memory;
use super::queue::Queue;
use super::stream::of_capture;
use crate::backend::GraphOps;
use crate::capture::CaptureError;
use crate::driver::DriverError;
use crate::health::Health;
use crate::stream::KeepAlive;
use crate::{StreamOrder, Wait};

/// Far longer than a graph takes to its device.
const UPLOAD: Wait = Wait::seconds(1);

/// A graph of the driver's with its executable form. Clones are the same graph.
#[derive(Clone, Debug)]
pub struct Graph(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    template: Template,
    exec: Raw<CUgraphExec_st>,
    nodes: Vec<Raw<CUgraphNode_st>>,
    order: StreamOrder,
    /// What its work keeps alive and who watches it, if anything does.
    recorded: Option<Arc<Recorded>>,
    /// Whether it may still be on its way to the device.
    is_on_its_way: bool,
}

/// The graph as it was captured: destroyed when dropped.
#[derive(Debug)]
struct Template {
    context: &'static Context,
    raw: Raw<CUgraph_st>,
}

impl Drop for Template {
    fn drop(&mut self) {
        let context = self.context;
        if context.can_tidy()
            && let Ok(_entered) = context.enter_aside()
        {
            // SAFETY: this was its last holder.
            let destroyed = unsafe { cu!(context, cuGraphDestroy(self.raw.0)) };
            context.complain("destroying a graph", destroyed);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let context = self.template.context;
        if !context.can_tidy() {
            return;
        }
        if self.is_on_its_way
            && let Err(error) = context.await_copies(&UPLOAD)
        {
            // Better never freed than freed under the copy engine.
            if !context.is_lost() {
                tracing::error!(%error, "a graph is never destroyed: it may be on its way to its device");
            }
            return;
        }
        if let Ok(_entered) = context.enter_aside() {
            // SAFETY: this was its last holder; streams hold it until its launches are done, and it is
            // where it was uploaded to.
            let destroyed = unsafe { cu!(context, cuGraphExecDestroy(self.exec.0)) };
            context.complain("destroying an executable graph", destroyed);
        }
    }
}

impl Graph {
    /// Ends the capture that a stream began. The context is current.
    pub(super) fn end(
        stream: &Queue,
        recorded: Option<Arc<Recorded>>,
    ) -> Result<Self, CaptureError> {
        let context = stream.context;
        let others = joined(stream);
        let mut raw = core::ptr::null_mut();
        // SAFETY: writes one handle; the stream is alive.
        let ended = unsafe { cu!(context, cuStreamEndCapture(stream.raw(), &raw mut raw)) };
        ended.map_err(|error| match CUresult(error.code()) {
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
                // Of one that came by itself nothing is known here.
                CaptureError::Unjoined { streams: others.max(1) }
            }
            _ => of_capture(error),
        })?;
        let template = Template { context, raw: Raw(raw) };
        let nodes = template.nodes()?;
        let _aside = context.enter_aside()?;
        let mut exec = core::ptr::null_mut();
        // SAFETY: writes one handle; the graph is alive.
        unsafe { cu!(context, cuGraphInstantiateWithFlags(&raw mut exec, raw, 0)) }?;
        let order = StreamOrder::new(&crate::Device::Cuda(Device::of(context)));
        let exec = Raw(exec);
        let mut inner = Inner { template, exec, nodes, order, recorded, is_on_its_way: false };
        if context.table().cuGraphUpload().is_ok() {
            // What its first launch would else have to get: that can wait for kernels, which may by then
            // wait for this launch.
            let copier = context.copier()?;
            // From here on it is not destroyed before its way has ended, whatever fails.
            inner.is_on_its_way = true;
            // SAFETY: both are alive.
            unsafe { cu!(context, cuGraphUpload(inner.exec.0, copier)) }?;
            // One that takes longer is looked for again when the graph ends.
            inner.is_on_its_way = context.await_copies(&UPLOAD).is_err();
        }
        Ok(Graph(Arc::new(inner)))
    }

    /// Enqueues it; what has to be kept until it has run. The context is current.
    pub(super) fn launch(
        &self,
        stream: CUstream,
        wait: &Wait,
    ) -> Result<Vec<KeepAlive>, DriverError> {
        let context = self.0.template.context;
        let bounds = self.0.recorded.as_ref().and_then(|recorded| recorded.bounds());
        let word =
            bounds.map(|bounds| bounds.enqueue(context, stream, wait)).transpose()?.flatten();
        let _launching = host_memory::launching();
        // SAFETY: both are alive; what the graph's work uses is kept by the graph, and the graph by
        // who keeps what this returns.
        unsafe { cu!(context, cuGraphLaunch(self.0.exec.0, stream)) }?;
        let mut kept: Vec<KeepAlive> = vec![self.0.clone()];
        kept.extend(word.map(|word| word as KeepAlive));
        Ok(kept)
    }
}

/// How many other streams of the device have come into a stream's capture. The driver is not asked: their threads may be
/// in the middle of beginning or ending captures of their own.
fn joined(origin: &Queue) -> usize {
    let Ok(Some((capture, _))) = origin.recording() else { return 0 };
    let streams: Vec<_> =
        origin.context.streams.lock().values().filter_map(Weak::upgrade).collect();
    let other = |s: &&Arc<Queue>| {
        s.raw() != origin.raw() && s.entered.lock().as_ref().is_some_and(|j| j.id == capture)
    };
    streams.iter().filter(other).count()
}

impl Template {
    fn nodes(&self) -> Result<Vec<Raw<CUgraphNode_st>>, DriverError> {
        let (context, raw) = (self.context, self.raw.0);
        let mut count = 0;
        // SAFETY: without a place for nodes, writes their number.
        unsafe { cu!(context, cuGraphGetNodes(raw, core::ptr::null_mut(), &raw mut count)) }?;
        let mut nodes = vec![core::ptr::null_mut(); count];
        if count > 0 {
            // SAFETY: writes up to `count` handles, for which there is room.
            unsafe { cu!(context, cuGraphGetNodes(raw, nodes.as_mut_ptr(), &raw mut count)) }?;
        }
        nodes.truncate(count);
        Ok(nodes.into_iter().map(Raw).collect())
    }

    fn edges(&self) -> Result<Vec<(CUgraphNode, CUgraphNode)>, DriverError> {
        let mut count = 0;
        let none = core::ptr::null_mut();
        self.get_edges(none, none, &mut count)?;
        let (mut from, mut to) = (vec![none.cast(); count], vec![none.cast(); count]);
        if count > 0 {
            self.get_edges(from.as_mut_ptr(), to.as_mut_ptr(), &mut count)?;
        }
        from.truncate(count);
        Ok(from.into_iter().zip(to).collect())
    }

    /// Writes up to `count` edges where there is room for so many, else their number.
    fn get_edges(
        &self,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        count: &mut usize,
    ) -> Result<(), DriverError> {
        let (context, raw): (_, CUgraph) = (self.context, self.raw.0);
        if context.table().cuGraphGetEdges_v2().is_err() {
            // SAFETY: `from` and `to` have room for `count`, or are null.
            return unsafe { cu!(context, cuGraphGetEdges(raw, from, to, count)) };
        }
        // The data is of no interest, but edges of programmatic launches are not told without.
        let room = if from.is_null() { 0 } else { *count };
        let mut data = vec![symmem_sys::cuda::bindings::CUgraphEdgeData::default(); room];
        let data = if room == 0 { core::ptr::null_mut() } else { data.as_mut_ptr() };
        // SAFETY: as above, and for `data`.
        unsafe { cu!(context, cuGraphGetEdges_v2(raw, from, to, data, count)) }
    }
}

impl GraphOps for Graph {
    fn nodes(&self) -> usize {
        self.0.nodes.len()
    }

    fn edges(&self) -> Vec<(usize, usize)> {
        let context = self.0.template.context;
        let edges = context.enter_aside().and_then(|_entered| self.0.template.edges());
        let index = |node| self.0.nodes.iter().position(|n| n.0 == node);
        match edges {
            Ok(edges) => {
                edges.into_iter().filter_map(|(a, b)| Some((index(a)?, index(b)?))).collect()
            }
            Err(error) => {
                context.complain("asking for a graph's edges", Err(error));
                Vec::new()
            }
        }
    }

    fn order(&self) -> &StreamOrder {
        &self.0.order
    }

    fn health(&self) -> Vec<Arc<dyn Health>> {
        self.0.recorded.as_ref().map(|r| r.health()).unwrap_or_default()
    }
}
