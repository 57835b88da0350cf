//! Texts of errors: each says what is behind it, and says it once.

use std::error::Error;
use std::io;
use std::sync::Arc;

use symmem_hal::shm::SegmentError;
use symmem_hal::types::Bytes;
use symmem_hal::{AllocError, DeviceError, ExportError, ImportError, OrderError, SyncError};
use symmem_mem::bootstrap::{JoinError, StoreHost};
use symmem_mem::launch::{JobError, SpawnError, StartError};
use symmem_mem::store::tcp::{ConnectError, ServeError};
use symmem_mem::store::{LostCause, StoreError};
use symmem_mem::{ExchangeError, Failure, RendezvousError, SubgroupError, TensorError};

use crate::runner::{Context, Test, Verdict};
use crate::{check, test};

pub(super) const TESTS: &[Test] = &[test!(a_cause_is_told_once).local()];

/// What the innermost errors say, which nothing else does.
const CAUSE: &str = "the cause of it all";

/// A report of the whole chain, as those of `anyhow` and `eyre` are, has the cause in it once.
fn told_once(error: &dyn Error) -> Verdict {
    let mut told = 0;
    let mut next = Some(error);
    while let Some(error) = next {
        told += error.to_string().matches(CAUSE).count();
        next = error.source();
        if let Some(source) = next.map(ToString::to_string) {
            check!(!error.to_string().contains(&source), "{error}, and then its source: {source}");
        }
    }
    check!(told == 1, "told {told} times: {error}; {error:?}");
    // Most programs print no more than this.
    check!(error.to_string().contains(CAUSE), "not told without its sources: {error}");
    Ok(())
}

fn io() -> io::Error {
    io::Error::other(CAUSE)
}

fn segment() -> SegmentError {
    SegmentError::System { call: "mmap", bytes: Bytes::new(1), cause: io() }
}

fn serve() -> Result<ServeError, std::net::AddrParseError> {
    Ok(ServeError { address: "127.0.0.1:1".parse()?, step: "binding", cause: io() })
}

fn lost() -> StoreError {
    let cause = LostCause::from(io());
    StoreError::Lost { store: "a store".into(), operation: "get", keys: vec!["key".into()], cause }
}

fn connect() -> ConnectError {
    ConnectError::System { address: "host:1".into(), cause: Arc::new(io()) }
}

fn join() -> JoinError {
    JoinError::Connect { rank: 0, world_size: 2, host: StoreHost::RankZero, cause: connect() }
}

fn exchange() -> ExchangeError {
    ExchangeError::System { call: "poll".into(), reason: CAUSE.into() }
}

fn sync() -> SyncError {
    SyncError::Unhealthy(Arc::new(Failure::Device(CAUSE.into())))
}

fn in_subgroup(cause: RendezvousError) -> SubgroupError {
    SubgroupError::Rendezvous { members: vec![0, 1], cause }
}

fn a_cause_is_told_once(_: &Context) -> Verdict {
    let not_a_store =
        ConnectError::NotAStore { address: "host:1".into(), cause: LostCause::from(io()) };
    let alloc = || AllocError::from(segment());
    let spawn = || SpawnError::Spawn { rank: 1, program: "program".into(), cause: io() };
    let errors: Vec<Box<dyn Error>> = vec![
        segment().into(),
        alloc().into(),
        ImportError::from(segment()).into(),
        ExportError::Descriptor(io()).into(),
        DeviceError::NoThread(io()).into(),
        sync().into(),
        OrderError::from(sync()).into(),
        TensorError::from(alloc()).into(),
        RendezvousError::from(alloc()).into(),
        RendezvousError::from(exchange()).into(),
        in_subgroup(alloc().into()).into(),
        in_subgroup(exchange().into()).into(),
        serve()?.into(),
        lost().into(),
        connect().into(),
        not_a_store.into(),
        join().into(),
        JoinError::Serve(serve()?).into(),
        StartError::from(join()).into(),
        StartError::from(lost()).into(),
        StartError::from(exchange()).into(),
        spawn().into(),
        SpawnError::from(serve()?).into(),
        JobError::System { rank: 1, cause: io() }.into(),
    ];
    errors.iter().try_for_each(|error| told_once(&**error))
}
