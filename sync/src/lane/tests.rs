//! Lanes that close under a graph, and threads that share a stream.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed set-up fails the test")]

use symmem_hal::{Kernel, KernelSet, LaunchContext, StreamMode, SyncError};
use symmem_mem::launch;

use super::*;
use crate::host::{HostMemory, Session};
use crate::protocol::Peers;
use crate::shared::BEFORE_WATCH;

static KERNELS: KernelSet = KernelSet {
    name: "test",
    kernels: &[Kernel { name: "meet", args: size_of::<LaneArgs>(), host: meet }],
};

/// An operation that only meets.
unsafe fn meet(context: &LaunchContext<'_>, args: *const u8) {
    // SAFETY: launched with the lane's arguments alone (`issue`).
    let args = unsafe { *args.cast::<LaneArgs>() };
    // SAFETY: they name the table of the group, whose regions the lane keeps.
    let memory = unsafe { HostMemory::new(context, args.table, args.lane) }.unwrap();
    let session = Session::begin(context, &memory, args, Peers::All, Peers::All);
    if session.is_err() || session.is_ok_and(|session| session.finish().is_err()) {
        context.stop();
    }
}

const WAIT: Wait = Wait::seconds(20);

fn issue(group: &Group, lane: Lane<'_>, stream: &Stream) -> Result<(), LaneError> {
    let function = group.device().load(&KERNELS).unwrap().function("meet").unwrap();
    let operation = Operation::Custom;
    let signature = Signature::new(operation, None, None, &[]);
    let issue = Issue { stream, wait: &WAIT, function, operation, signature };
    // SAFETY: the kernel takes the lane's arguments, and follows no other address.
    unsafe { lane.issue(issue, |args| args, Vec::new) }
}

fn stale(found: Result<(), SyncError>) {
    match found {
        Err(SyncError::Unhealthy(fault)) => {
            let error: &(dyn std::error::Error + 'static) = &*fault;
            assert_eq!(error.downcast_ref(), Some(&Failure::StaleGraph));
        }
        other => panic!("expected a stale graph, found {other:?}"),
    }
}

/// The kernel's own look at the entry word, for graphs that are launched by others: a lane that was
/// retired between the host's look and the kernel's.
#[test]
fn a_kernel_in_a_graph_finds_its_lane_retired() {
    for mode in [StreamMode::Inline, StreamMode::Worker] {
        let ends = launch::threads(2, |group| {
            let lane = group.lane().unwrap();
            let stream = group.device().stream(mode).unwrap();
            issue(&group, lane, &stream).unwrap();
            stream.begin_capture().unwrap();
            issue(&group, lane, &stream).unwrap();
            let graph = stream.end_capture().unwrap();
            graph.launch(&stream, &WAIT).unwrap();
            stream.synchronize(&WAIT).unwrap();
            group.agree("here", 0, &WAIT).unwrap();
            lane.shared.control().retire_lanes();
            let launch = || graph.launch(&stream, &WAIT).and_then(|()| stream.synchronize(&WAIT));
            stale(launch());
            stale(launch());
            // Told once of each, and no failure of the group.
            stream.synchronize(&WAIT).unwrap();
            group.check().unwrap();
            group.agree("there", 0, &WAIT).unwrap();
        });
        assert_eq!(ends.unwrap().len(), 2);
    }
}

/// Whoever has enqueued an operation hears of its failure, even while another thread, which used the stream
/// before, has not come to watch it.
#[test]
fn each_of_two_threads_on_a_stream_watches_it() {
    let ends = launch::threads(1, |group| {
        let stream = group.device().stream(StreamMode::Worker).unwrap();
        let (other, shared_stream) = (group.clone(), stream.clone());
        let second = move || {
            issue(&other, other.lane().unwrap(), &shared_stream).unwrap();
            other.status().fail(Failure::Device("of the test".to_owned()));
            let found = shared_stream.synchronize(&WAIT);
            assert!(matches!(found, Err(SyncError::Unhealthy(_))), "{found:?}");
        };
        BEFORE_WATCH.set(Some(Box::new(|| std::thread::spawn(second).join().unwrap())));
        issue(&group, group.lane().unwrap(), &stream).unwrap();
        assert!(BEFORE_WATCH.take().is_none(), "the first did not watch its stream");
        assert!(stream.synchronize(&WAIT).is_err());
    });
    assert_eq!(ends.unwrap().len(), 1);
}
