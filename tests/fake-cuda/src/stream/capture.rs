//! Captures: which streams take part in which, and what ends one early.

use core::ffi::c_uint;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult as Code, CUstream, CUstreamCaptureMode as Mode,
    CUstreamCaptureStatus as Status,
};

use super::{Kind, Stream, Work, of};
use crate::entry::{Outcome, export, fetch, offer, put};
use crate::graph::{GRAPHS, Graph};
use crate::table::{fresh, pointer};

#[derive(Debug)]
struct Session {
    mode: Mode,
    thread: ThreadId,
    /// The stream that it began on.
    origin: u64,
    graph: Arc<Graph>,
    handle: u64,
    invalid: bool,
}

/// A stream's part in a capture.
#[derive(Debug)]
struct Member {
    session: u64,
    device: usize,
    blocking: bool,
    /// The nodes that the stream's next one comes behind.
    after: Vec<usize>,
}

#[derive(Debug, Default)]
struct Captures {
    sessions: BTreeMap<u64, Session>,
    /// By stream.
    members: HashMap<u64, Member>,
}

static CAPTURES: Mutex<Option<Captures>> = Mutex::new(None);

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
    /// What the last query on this thread handed out a pointer to.
    static ANSWER: RefCell<Vec<CUgraphNode>> = const { RefCell::new(Vec::new()) };
}

fn with<R>(change: impl FnOnce(&mut Captures) -> R) -> R {
    change(CAPTURES.lock().get_or_insert_default())
}

impl Captures {
    fn invalidate(&mut self, session: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.invalid = true;
        }
    }

    /// Invalidates the sessions of all members that match, and says whether there were any.
    fn invalidate_where(&mut self, matches: impl Fn(u64, &Member) -> bool) -> bool {
        let members = self.members.iter().filter(|(stream, member)| matches(**stream, member));
        let sessions: Vec<u64> = members.map(|(_, member)| member.session).collect();
        sessions.iter().for_each(|&session| self.invalidate(session));
        !sessions.is_empty()
    }

    /// A stream's part in a capture that is still whole.
    fn member(&mut self, stream: u64) -> Outcome<Option<(&mut Member, &Session)>> {
        let Some(member) = self.members.get_mut(&stream) else { return Ok(None) };
        match self.sessions.get(&member.session) {
            Some(session) if !session.invalid => Ok(Some((member, session))),
            _ => Err(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }

    fn forget(&mut self, id: u64) -> Option<Session> {
        self.members.retain(|_, member| member.session != id);
        self.sessions.remove(&id)
    }
}

/// Takes work into the capture of a stream; false where it is not capturing.
pub(crate) fn record(stream: &Stream, work: &Work) -> Outcome<bool> {
    with(|captures| {
        let Some((member, session)) = captures.member(stream.id)? else { return Ok(false) };
        member.after = vec![session.graph.add(work.clone(), &member.after)];
        Ok(true)
    })
}

/// The place that a stream has come to in its capture.
pub(crate) fn place(stream: &Stream) -> Outcome<Option<(u64, Vec<usize>)>> {
    with(|captures| {
        let member = captures.member(stream.id)?;
        Ok(member.map(|(member, _)| (member.session, member.after.clone())))
    })
}

/// Puts a stream behind a place of a capture, of which it becomes part.
pub(crate) fn join(stream: &Stream, session: u64, after: Vec<usize>) -> Outcome {
    with(|captures| {
        let (id, isolation) = (session, Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        let session = captures.sessions.get(&session).ok_or(isolation)?;
        if session.invalid {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        match captures.members.get_mut(&stream.id) {
            Some(member) if member.session == id => {
                member.after.extend(after);
                member.after.sort_unstable();
                member.after.dedup();
            }
            Some(member) => {
                let other = member.session;
                captures.invalidate(other);
                captures.invalidate(id);
                return Err(Code::CUDA_ERROR_STREAM_CAPTURE_MERGE);
            }
            None if stream.kind == Kind::Legacy => {
                captures.invalidate(id);
                return Err(Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            }
            None => {
                let blocking = stream.kind == Kind::Blocking;
                let member = Member { session: id, device: stream.device, blocking, after };
                captures.members.insert(stream.id, member);
            }
        }
        Ok(())
    })
}

/// Refuses, for a stream that captures, to depend on what is no part of the capture.
pub(crate) fn outside(stream: &Stream) -> Outcome {
    let hit = with(|captures| captures.invalidate_where(|id, _| id == stream.id));
    if hit { Err(Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION) } else { Ok(()) }
}

/// Refuses what cannot be done to a stream that captures.
pub(crate) fn forbid(stream: &Stream) -> Outcome {
    let hit = with(|captures| captures.invalidate_where(|id, _| id == stream.id));
    if hit { Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// As [`forbid`], for all streams of a context.
pub(crate) fn forbid_context(device: usize) -> Outcome {
    let hit = with(|captures| captures.invalidate_where(|_, member| member.device == device));
    if hit { Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// Refuses use of the legacy stream while a stream that it waits for captures.
pub(crate) fn implicit(device: usize) -> Outcome {
    let waits = |member: &Member| member.device == device && member.blocking;
    let hit = with(|captures| captures.invalidate_where(|_, member| waits(member)));
    if hit { Err(Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
}

/// Refuses a call that may wait or allocate, while a capture is under way that it would disturb by
/// the mode of that capture and of this thread.
pub(crate) fn unsafe_call() -> Outcome {
    let (mode, here) = (MODE.get(), thread::current().id());
    if mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED {
        return Ok(());
    }
    let disturbed = |session: &Session| {
        let mine = session.thread == here && session.mode != Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let global = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        mine || (mode == global && session.mode == global)
    };
    let hit = with(|captures| {
        let sessions = captures.sessions.values_mut().filter(|session| disturbed(session));
        sessions.map(|session| session.invalid = true).count() > 0
    });
    if hit { Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

pub(crate) fn invalidate(session: u64) {
    with(|captures| captures.invalidate(session));
}

/// A stream is destroyed: a capture that it is part of cannot end well any more, and one that began
/// on it cannot end at all.
pub(crate) fn abandon(stream: &Stream) {
    with(|captures| {
        let Some(member) = captures.members.remove(&stream.id) else { return };
        captures.invalidate(member.session);
        let began = captures.sessions.get(&member.session).is_some_and(|s| s.origin == stream.id);
        if began && let Some(session) = captures.forget(member.session) {
            let _ = GRAPHS.remove(session.handle);
        }
    });
}

fn begin(stream: &Stream, mode: Mode) -> Outcome {
    if mode.0 > Mode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    if stream.kind == Kind::Legacy {
        return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    with(|captures| {
        if captures.members.contains_key(&stream.id) {
            return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
        }
        let graph = Arc::new(Graph::default());
        let handle = GRAPHS.add(Arc::clone(&graph));
        let (id, thread, origin) = (fresh(), thread::current().id(), stream.id);
        captures
            .sessions
            .insert(id, Session { mode, thread, origin, graph, handle, invalid: false });
        let blocking = stream.kind == Kind::Blocking;
        let member = Member { session: id, device: stream.device, blocking, after: Vec::new() };
        captures.members.insert(stream.id, member);
        Ok(())
    })
}

/// Ends the capture that began on `stream`: the graph's handle.
fn end(stream: &Stream) -> Outcome<u64> {
    with(|captures| {
        let member = captures.members.get(&stream.id).ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?;
        let (id, last) = (member.session, member.after.clone());
        let session = captures.sessions.get(&id).ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?;
        if session.origin != stream.id {
            captures.invalidate(id);
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let relaxed = session.mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if !relaxed && session.thread != thread::current().id() {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let before = session.graph.before(&last);
        let joined = captures
            .members
            .values()
            .filter(|member| member.session == id)
            .all(|member| member.after.iter().all(|node| before.contains(node)));
        let session = captures.forget(id).ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?;
        if !session.invalid && joined {
            return Ok(session.handle);
        }
        let _ = GRAPHS.remove(session.handle);
        Err(if session.invalid {
            Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        } else {
            Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        })
    })
}

/// Of a stream's capture: its state, id, graph's handle, and the nodes that come next.
struct Information {
    status: Status,
    id: u64,
    graph: u64,
    after: Vec<CUgraphNode>,
}

fn information(stream: &Stream) -> Outcome<Information> {
    with(|captures| {
        let blocked = |member: &Member| member.blocking && member.device == stream.device;
        if stream.kind == Kind::Legacy && captures.members.values().any(blocked) {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let member = captures.members.get(&stream.id);
        let session = member.and_then(|member| {
            captures.sessions.get(&member.session).map(|session| (member, session))
        });
        Ok(match session {
            None => Information {
                status: Status::CU_STREAM_CAPTURE_STATUS_NONE,
                id: 0,
                graph: 0,
                after: Vec::new(),
            },
            Some((member, session)) if session.invalid => Information {
                status: Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
                id: member.session,
                graph: 0,
                after: Vec::new(),
            },
            Some((member, session)) => Information {
                status: Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
                id: member.session,
                graph: session.handle,
                after: session.graph.handles(&member.after),
            },
        })
    })
}

fn inform(
    stream: CUstream,
    status: *mut Status,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    count: *mut usize,
) -> Outcome {
    let found = information(&*of(stream)?)?;
    put!(status, found.status);
    if found.status == Status::CU_STREAM_CAPTURE_STATUS_NONE {
        return Ok(());
    }
    offer!(id, found.id);
    offer!(graph, pointer(found.graph));
    offer!(count, found.after.len());
    ANSWER.set(found.after);
    offer!(dependencies, ANSWER.with_borrow(|answer| answer.as_ptr()));
    Ok(())
}

/// Adds to what a stream's next node comes behind, or replaces it.
fn update(stream: CUstream, nodes: *mut CUgraphNode, count: usize, flags: c_uint) -> Outcome {
    let stream = of(stream)?;
    let mut handles = Vec::new();
    for index in 0..count {
        // SAFETY: the caller vouches for `count` nodes.
        handles.push(fetch!(unsafe { nodes.add(index) }));
    }
    with(|captures| {
        let member = captures.member(stream.id)?;
        let (member, session) = member.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?;
        let found = session.graph.indices(&handles)?;
        match flags {
            0 => member.after.extend(found),
            1 => member.after = found,
            _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    })
}

export! {
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: Mode) {
        begin(&*of(stream)?, mode)?;
    }

    /// The graph is null where the capture failed.
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) {
        put!(graph, pointer(0));
        put!(graph, pointer(end(&*of(stream)?)?));
    }

    fn cuStreamIsCapturing(stream: CUstream, status: *mut Status) {
        put!(status, information(&*of(stream)?)?.status);
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: *mut Status,
        id: *mut u64,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        count: *mut usize,
    ) {
        inform(stream, status, id, graph, dependencies, count)?;
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream,
        status: *mut Status,
        id: *mut u64,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) {
        offer!(edges, core::ptr::null());
        inform(stream, status, id, graph, dependencies, count)?;
    }

    fn cuStreamUpdateCaptureDependencies(
        stream: CUstream,
        nodes: *mut CUgraphNode,
        count: usize,
        flags: c_uint,
    ) {
        update(stream, nodes, count, flags)?;
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: CUstream,
        nodes: *mut CUgraphNode,
        _edges: *const CUgraphEdgeData,
        count: usize,
        flags: c_uint,
    ) {
        update(stream, nodes, count, flags)?;
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut Mode) {
        let wanted = fetch!(mode);
        if wanted.0 > Mode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        put!(mode, MODE.replace(wanted));
    }
}
