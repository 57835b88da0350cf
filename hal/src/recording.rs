//! Captures and graphs of backends whose work the CPU runs.
//!
//! A [`Recording`] is a capture under way. It knows, for each stream in it, the nodes that the
//! stream's next work comes after: its *ends*. A launch makes a node after the ends of its stream
//! and becomes their place; an event is a copy of them; a wait adds an event's to a stream's, which
//! is also how a stream joins. Ending it makes a [`Graph`] of the nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::backend::GraphOps;
use crate::capture::{Capture, CaptureError};
use crate::health::{Health, SyncError};
use crate::queue::{Marker, Queue};
use crate::stream::{Launched, StreamId};
use crate::work::Work;
use crate::{Device, StreamOrder, Wait};

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Recording {
    id: u64,
    origin: StreamId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    nodes: Vec<Node>,
    /// The streams of the capture, in the order in which they joined; the origin first.
    streams: Vec<StreamId>,
    ends: HashMap<StreamId, Vec<usize>>,
    health: Vec<Watcher>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Invalid,
    Ended,
}

/// One recorded launch.
#[derive(Debug)]
struct Node {
    work: Work,
    /// Which of the capture's streams it was launched on.
    chain: usize,
    /// The nodes before it. All have lower indices, so that these are a topological order.
    after: Vec<usize>,
}

/// Something that reports what went wrong in the work of a graph.
struct Watcher(Weak<dyn Health>);

impl core::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Watcher")
    }
}

impl Recording {
    /// A capture that `origin` begins.
    pub(crate) fn begin(origin: StreamId) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let state = State {
            phase: Phase::Open,
            nodes: Vec::new(),
            streams: vec![origin],
            ends: HashMap::from([(origin, Vec::new())]),
            health: Vec::new(),
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Recording { id, origin, state: Mutex::new(state) })
    }

    /// What a stream in it says of itself.
    pub(crate) fn capture(&self) -> Capture {
        match self.state.lock().phase {
            Phase::Open => Capture::Active(self.id),
            Phase::Invalid => Capture::Invalidated,
            Phase::Ended => Capture::None,
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> Result<R, CaptureError> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Open => Ok(act(&mut state)),
            Phase::Invalid => Err(CaptureError::Invalidated),
            Phase::Ended => Err(CaptureError::Ended),
        }
    }

    /// Records a launch on a stream of the capture.
    pub(crate) fn launch(&self, stream: StreamId, work: Work) -> Result<Launched, CaptureError> {
        self.with(|state| {
            let chain = state.streams.iter().position(|s| *s == stream).unwrap_or(0);
            let node = state.nodes.len();
            let after = state.ends.insert(stream, vec![node]).unwrap_or_default();
            state.nodes.push(Node { work, chain, after });
            Launched::Recorded
        })
    }

    /// The ends of a stream of the capture.
    pub(crate) fn mark(&self, stream: StreamId) -> Result<Vec<usize>, CaptureError> {
        self.with(|state| state.ends.get(&stream).cloned().unwrap_or_default())
    }

    /// Lets a stream's next work come after `nodes`; the stream joins if it is not in the capture.
    pub(crate) fn follow(&self, stream: StreamId, nodes: &[usize]) -> Result<(), CaptureError> {
        self.with(|state| {
            if !state.streams.contains(&stream) {
                state.streams.push(stream);
            }
            let ends = state.ends.entry(stream).or_default();
            ends.extend(nodes);
            ends.sort_unstable();
            ends.dedup();
        })
    }

    pub(crate) fn watch(&self, health: Weak<dyn Health>) {
        // A capture that is over has nobody to watch.
        let _ = self.with(|state| {
            state.health.retain(|h| !Weak::ptr_eq(&h.0, &health));
            state.health.push(Watcher(health));
        });
    }

    /// Breaks the capture, if it is not over.
    pub(crate) fn invalidate(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Invalid;
        }
    }

    /// The stream `by` goes: the capture that it began can no longer be ended.
    pub(crate) fn abandon(&self, by: StreamId) {
        if by == self.origin {
            drop(self.finish());
        }
    }

    /// Ends the capture, from whatever state; its work goes to the caller.
    fn finish(&self) -> State {
        let ended = State {
            phase: Phase::Ended,
            nodes: Vec::new(),
            streams: Vec::new(),
            ends: HashMap::new(),
            health: Vec::new(),
        };
        core::mem::replace(&mut *self.state.lock(), ended)
    }

    /// Ends the capture that `by` began.
    pub(crate) fn end(&self, by: StreamId, device: &Device) -> Result<Graph, CaptureError> {
        if by != self.origin {
            return Err(CaptureError::NotOrigin);
        }
        let state = self.finish();
        match state.phase {
            Phase::Open => {}
            Phase::Invalid => return Err(CaptureError::Invalidated),
            Phase::Ended => return Err(CaptureError::NotActive),
        }
        let streams = state.unjoined(self.origin);
        if streams > 0 {
            return Err(CaptureError::Unjoined { streams });
        }
        let State { nodes, streams, health, .. } = state;
        Ok(Graph(Arc::new(Inner {
            nodes,
            chains: streams.len(),
            branches: Mutex::default(),
            order: StreamOrder::new(device),
            health,
        })))
    }
}

impl State {
    /// How many streams have work that nothing on the origin comes after.
    fn unjoined(&self, origin: StreamId) -> usize {
        let mut joined = vec![false; self.nodes.len()];
        let mut open = self.ends.get(&origin).cloned().unwrap_or_default();
        while let Some(node) = open.pop() {
            if !core::mem::replace(&mut joined[node], true) {
                open.extend(&self.nodes[node].after);
            }
        }
        let loose = |ends: &&Vec<usize>| ends.iter().any(|node| !joined[*node]);
        self.ends.values().filter(loose).count()
    }
}

/// Recorded launches with their edges. Clones are the same graph.
#[derive(Clone, Debug)]
pub struct Graph(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nodes: Vec<Node>,
    /// How many streams were in the capture.
    chains: usize,
    /// Queues for the work of all streams but the first, started by the first launch that needs
    /// them. Locked while a launch is distributed over them, so that all get launches in one order.
    branches: Mutex<Vec<Queue>>,
    order: StreamOrder,
    health: Vec<Watcher>,
}

impl GraphOps for Graph {
    fn nodes(&self) -> usize {
        self.0.nodes.len()
    }

    fn edges(&self) -> Vec<(usize, usize)> {
        let nodes = self.0.nodes.iter().enumerate();
        nodes.flat_map(|(i, node)| node.after.iter().map(move |before| (*before, i))).collect()
    }

    fn order(&self) -> &StreamOrder {
        &self.0.order
    }

    fn health(&self) -> Vec<Arc<dyn Health>> {
        self.0.health.iter().filter_map(|h| h.0.upgrade()).collect()
    }
}

impl Graph {
    /// Runs all nodes on the caller.
    pub(crate) fn run(&self, wait: &Wait) -> Launched {
        let ends = self.0.nodes.iter().map(|node| node.work.run(wait));
        if ends.fold(false, |stopped, this| stopped | this) {
            Launched::Stopped
        } else {
            Launched::Finished
        }
    }

    /// Enqueues all nodes: those of the capture's first stream on `queue`, those of each other
    /// stream on a queue of their own, with the edges between them as waits.
    pub(crate) fn enqueue(&self, queue: &Queue, wait: &Wait) -> Result<Launched, SyncError> {
        let mut branches = self.0.branches.lock();
        while branches.len() + 1 < self.0.chains {
            branches.push(Queue::start("symmem-graph").map_err(|_| SyncError::WorkerGone)?);
        }
        let start = queue.marker();
        let on = |chain: usize| if chain == 0 { queue } else { &branches[chain - 1] };
        for branch in branches.iter() {
            branch.wait_for(start.clone())?;
        }
        let mut ends: Vec<Marker> = Vec::with_capacity(self.0.nodes.len());
        for (index, node) in self.0.nodes.iter().enumerate() {
            let queue = on(node.chain);
            for before in node.after.iter().filter(|n| self.0.nodes[**n].chain != node.chain) {
                queue.wait_for(ends[*before].clone())?;
            }
            let (graph, wait) = (self.clone(), wait.clone());
            queue.push(move || {
                graph.0.nodes[index].work.run(&wait);
            })?;
            ends.push(queue.marker());
        }
        for branch in branches.iter() {
            queue.wait_for(branch.marker())?;
        }
        Ok(Launched::Queued)
    }
}
