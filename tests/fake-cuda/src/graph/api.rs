//! The driver's functions on graphs.

use core::ffi::c_uint;
use std::sync::Arc;

use symmem_sys::cuda::bindings::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphEdgeData, CUgraphExec,
    CUgraphInstantiateResult as InstantiateResult, CUgraphNode, CUgraphNodeType, CUresult as Code,
    CUstream,
};

use super::{EXECS, GRAPHS, Graph};
use crate::entry::{Outcome, export, fetch, put};
use crate::stream::{self, Work};
use crate::table::{handle, pointer};

fn nodes(graph: &Graph, nodes: *const CUgraphNode, count: usize) -> Outcome<Vec<usize>> {
    let mut handles = Vec::new();
    for index in 0..count {
        // SAFETY: the caller vouches for `count` nodes.
        handles.push(fetch!(unsafe { nodes.add(index) }));
    }
    graph.indices(&handles)
}

fn instantiate(exec: *mut CUgraphExec, graph: CUgraph) -> Outcome {
    let graph = GRAPHS.get(handle(graph))?;
    if exec.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    put!(exec, pointer(EXECS.add(graph.instantiate().into())));
    Ok(())
}

fn connect(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Outcome {
    let graph = GRAPHS.get(handle(graph))?;
    let (from, to) = (nodes(&graph, from, count)?, nodes(&graph, to, count)?);
    graph.connect(&from.into_iter().zip(to).collect::<Vec<_>>())
}

/// With null arrays, how many there are; else as many as they have room for.
fn edges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> Outcome {
    let found = GRAPHS.get(handle(graph))?.edges();
    let room = fetch!(count);
    if from.is_null() || to.is_null() {
        put!(count, found.len());
        return Ok(());
    }
    put!(count, found.len().min(room));
    for (index, &(first, second)) in found.iter().take(room).enumerate() {
        // SAFETY: the caller vouches for room for as many as it said.
        put!(unsafe { from.add(index) }, first);
        // SAFETY: as above.
        put!(unsafe { to.add(index) }, second);
    }
    Ok(())
}

export! {
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) {
        if flags != 0 || graph.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(graph, pointer(GRAPHS.add(Arc::default())));
    }

    fn cuGraphClone(clone: *mut CUgraph, original: CUgraph) {
        let original = GRAPHS.get(handle(original))?;
        if clone.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(clone, pointer(GRAPHS.add(original.copy().into())));
    }

    fn cuGraphDestroy(graph: CUgraph) {
        GRAPHS.remove(handle(graph))?;
    }

    fn cuGraphAddEmptyNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
    ) {
        let graph = GRAPHS.get(handle(graph))?;
        let after = nodes(&graph, dependencies, count)?;
        let added = graph.add(Work::Empty, &after);
        put!(node, graph.handles(&[added])[0]);
    }

    fn cuGraphAddDependencies(
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        count: usize,
    ) {
        connect(graph, from, to, count)?;
    }

    fn cuGraphAddDependencies_v2(
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        _edges: *const CUgraphEdgeData,
        count: usize,
    ) {
        connect(graph, from, to, count)?;
    }

    /// With a null array, how many there are; else as many as it has room for.
    fn cuGraphGetNodes(graph: CUgraph, array: *mut CUgraphNode, count: *mut usize) {
        let found = GRAPHS.get(handle(graph))?.all();
        let room = fetch!(count);
        if array.is_null() {
            put!(count, found.len());
            return Ok(());
        }
        put!(count, found.len().min(room));
        for (index, &node) in found.iter().take(room).enumerate() {
            // SAFETY: the caller vouches for room for as many as it said.
            put!(unsafe { array.add(index) }, node);
        }
    }

    fn cuGraphGetEdges(
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        count: *mut usize,
    ) {
        edges(graph, from, to, count)?;
    }

    /// All edges are plain ones.
    fn cuGraphGetEdges_v2(
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        edges(graph, from, to, count)?;
        if !data.is_null() {
            for index in 0..fetch!(count) {
                // SAFETY: the caller vouches for room for as many as it said.
                put!(unsafe { data.add(index) }, CUgraphEdgeData::default());
            }
        }
    }

    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType) {
        let found = GRAPHS.all().iter().find_map(|graph| graph.node_type(handle(node)));
        put!(kind, found.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?);
    }

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, _flags: u64) {
        instantiate(exec, graph)?;
    }

    fn cuGraphInstantiateWithParams(
        exec: *mut CUgraphExec,
        graph: CUgraph,
        parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) {
        let mut told = fetch!(parameters);
        instantiate(exec, graph)?;
        told.result_out = InstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS;
        told.hErrNode_out = pointer(0);
        put!(parameters, told);
    }

    /// What is launched already runs to its end.
    fn cuGraphExecDestroy(exec: CUgraphExec) {
        EXECS.remove(handle(exec))?;
    }

    /// Brings nothing anywhere, but takes its turn in the stream.
    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) {
        EXECS.get(handle(exec))?;
        stream::of(stream)?.issue(Work::Empty)?;
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) {
        let (exec, stream) = (EXECS.get(handle(exec))?, stream::of(stream)?);
        exec.check(stream.device)?;
        stream.issue(Work::Graph(exec))?;
    }
}
