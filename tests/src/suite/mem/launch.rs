//! Starting ranks.

use std::sync::atomic::{AtomicUsize, Ordering};

use symmem_hal::{Fault as _, Kind};
use symmem_mem::RendezvousError;
use symmem_mem::launch::{Processes, SpawnError, threads};

use crate::runner::{Context, Test, Verdict};
use crate::support::observe::Holdings;
use crate::{check_eq, check_err, test};

pub(super) const TESTS: &[Test] =
    &[test!(no_ranks_are_refused).local(), test!(too_many_ranks_are_refused).local()];

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
    before.check_no_more(context)
}
