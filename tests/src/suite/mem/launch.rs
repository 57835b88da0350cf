//! Starting ranks.

use std::sync::atomic::{AtomicUsize, Ordering};

use std::sync::Arc;

use symmem_hal::types::Bytes;
use symmem_hal::{Device, Fault as _, Kind, Wait};
use symmem_mem::bootstrap::RunId;
use symmem_mem::launch::{Place, Processes, SpawnError, StartError, Threads, threads};
use symmem_mem::store::LocalStore;
use symmem_mem::{Group, Options, RendezvousError};

use crate::runner::{Context, Test, Verdict};
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(no_ranks_are_refused).local(),
    test!(too_many_ranks_are_refused).local(),
    test!(a_run_of_too_many_ranks_is_not_joined).local(),
];

/// Neither as threads nor as processes, and nothing is left of it.
fn no_ranks_are_refused(context: &Context) -> Verdict {
    let before = Holdings::of_all_ranks(context)?;
    let bodies = AtomicUsize::new(0);
    let run = threads(0, |_| bodies.fetch_add(1, Ordering::Relaxed));
    check_eq!(check_err!(run, RendezvousError::NoRanks).kind(), Kind::InvalidArgument);
    check_eq!(bodies.into_inner(), 0);
    let spawned = Processes::new("/bin/true", 0).spawn();
    check_eq!(check_err!(spawned, SpawnError::NoRanks).kind(), Kind::InvalidArgument);
    before.check_no_more(context)
}

/// As threads more than there can be, and more than the pad has slots for; nothing is left of it.
fn too_many_ranks_are_refused(context: &Context) -> Verdict {
    let before = Holdings::of_all_ranks(context)?;
    let most = u32::MAX;
    let ranks = most as usize + 1;
    let error = check_err!(threads(ranks, |_| ()), RendezvousError::TooManyRanks { .. });
    check_eq!(error.to_string(), format!("{ranks} ranks: a run has at most {most}"));
    check_eq!(error.kind(), Kind::InvalidArgument);
    check_err!(threads(most as usize, |_| ()), RendezvousError::Options(_));
    for ranks in [usize::MAX, usize::MAX / 8, most as usize] {
        let spawned = Processes::new("/nonexistent", ranks).spawn();
        let error = check_err!(spawned, SpawnError::TooManyRanks { .. });
        check!(error.to_string().starts_with(&format!("{ranks} ranks: ")), "{error}");
        check_eq!(error.kind(), Kind::Exhausted);
    }
    // With enough slots, memory is what is short.
    let options = Options { pad: Bytes(4 << 22), ..Options::default() };
    let run = Threads::new(1 << 22).options(options).devices(vec![Device::host()]).run(|_| ());
    check_eq!(check_err!(run, RendezvousError::NoRoom(_)).kind(), Kind::Exhausted);
    before.check_no_more(context)
}

/// By a launcher that says so; nobody is spoken to.
fn a_run_of_too_many_ranks_is_not_joined(context: &Context) -> Verdict {
    let before = Holdings::of_all_ranks(context)?;
    let join = |rank, world_size| {
        let place = Place::new(rank, world_size, RunId { launcher: None, restart: 0 });
        let (options, store) = (Options::default(), Arc::new(LocalStore::default()));
        Group::join_store(store, &place, &Device::host(), &options, &Wait::millis(0))
    };
    for world_size in [usize::MAX, u32::MAX as usize + 1] {
        let joined = join(0, world_size);
        let error =
            check_err!(joined, StartError::Rendezvous(RendezvousError::TooManyRanks { .. }));
        check_eq!(error.kind(), Kind::InvalidArgument);
    }
    check_err!(join(0, u32::MAX as usize), StartError::Rendezvous(RendezvousError::Options(_)));
    check_err!(join(2, 2), StartError::Rank { rank: 2, world_size: 2 });
    before.check_no_more(context)
}
