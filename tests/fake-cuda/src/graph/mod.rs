//! Graphs: nodes in an order that respects their edges, and the objects that a graph keeps alive.

mod api;
pub(crate) mod objects;

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{CUgraphNode, CUgraphNodeType as NodeType, CUresult as Code};

use crate::entry::Outcome;
use crate::stream::Work;
use crate::table::{Table, fresh, handle, pointer};

use objects::Retained;

/// A piece of work, behind others.
#[derive(Clone, Debug)]
struct Node {
    handle: u64,
    work: Work,
    after: Vec<usize>,
}

/// Nodes are added behind those they depend on, so that their order is one to run them in.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    nodes: Mutex<Vec<Node>>,
    retained: Mutex<Retained>,
}

pub(crate) static GRAPHS: Table<Graph> = Table::new();
pub(crate) static EXECS: Table<Exec> = Table::new();

impl Graph {
    pub fn add(&self, work: Work, after: &[usize]) -> usize {
        let mut nodes = self.nodes.lock();
        nodes.push(Node { handle: fresh(), work, after: after.to_vec() });
        nodes.len() - 1
    }

    /// These nodes, and all that come before them.
    pub fn before(&self, last: &[usize]) -> BTreeSet<usize> {
        let nodes = self.nodes.lock();
        let mut found = BTreeSet::new();
        let mut next = last.to_vec();
        while let Some(node) = next.pop() {
            if found.insert(node) {
                next.extend(&nodes[node].after);
            }
        }
        found
    }

    pub fn handles(&self, indices: &[usize]) -> Vec<CUgraphNode> {
        let nodes = self.nodes.lock();
        indices.iter().map(|&index| pointer(nodes[index].handle)).collect()
    }

    pub fn indices(&self, handles: &[CUgraphNode]) -> Outcome<Vec<usize>> {
        let nodes = self.nodes.lock();
        let index = |&node: &CUgraphNode| nodes.iter().position(|n| n.handle == handle(node));
        let found: Option<Vec<usize>> = handles.iter().map(index).collect();
        found.ok_or(Code::CUDA_ERROR_INVALID_VALUE)
    }

    fn all(&self) -> Vec<CUgraphNode> {
        self.nodes.lock().iter().map(|node| pointer(node.handle)).collect()
    }

    /// From where to where.
    fn edges(&self) -> Vec<(CUgraphNode, CUgraphNode)> {
        let nodes = self.nodes.lock();
        let into = |node: &Node| {
            let to = node.handle;
            node.after.iter().map(move |&from| (from, to)).collect::<Vec<_>>()
        };
        let edges = nodes.iter().flat_map(into);
        edges.map(|(from, to)| (pointer(nodes[from].handle), pointer(to))).collect()
    }

    fn node_type(&self, node: u64) -> Option<NodeType> {
        let nodes = self.nodes.lock();
        nodes.iter().find(|known| known.handle == node).map(|node| node.work.node_type())
    }

    /// Adds edges, each from an earlier node to a later one.
    fn connect(&self, edges: &[(usize, usize)]) -> Outcome {
        if edges.iter().any(|(from, to)| from >= to) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let mut nodes = self.nodes.lock();
        edges.iter().for_each(|&(from, to)| nodes[to].after.push(from));
        Ok(())
    }

    fn copy(&self) -> Self {
        let copy = |node: &Node| Node { handle: fresh(), ..node.clone() };
        let nodes = self.nodes.lock().iter().map(copy).collect();
        let retained = self.retained.lock().clone();
        Graph { nodes: Mutex::new(nodes), retained: Mutex::new(retained) }
    }

    fn instantiate(&self) -> Exec {
        let work = self.nodes.lock().iter().map(|node| node.work.clone()).collect();
        Exec { work, _retained: self.retained.lock().clone() }
    }
}

/// A graph that can be launched. It keeps alive what its graph did, until it and its launches end.
#[derive(Debug)]
pub(crate) struct Exec {
    work: Vec<Work>,
    _retained: Retained,
}

impl Exec {
    pub fn run(self: &Arc<Self>, device: usize) -> Outcome {
        self.work.iter().try_for_each(|work| work.run(device))
    }

    fn check(&self, device: usize) -> Outcome {
        self.work.iter().try_for_each(|work| work.check(device))
    }
}
