//! Runs that are joined, left, and joined again.

use std::sync::Arc;
use std::time::Instant;

use symmem_mem::bootstrap::{Bootstrap, RunId};
use symmem_mem::launch::{Place, Threads};
use symmem_mem::store::tcp::TcpStore;
use symmem_mem::{Group, Tensor};

use super::leaks::retired_becomes;
use super::{exchange_marks, meet_in};
use crate::runner::{Context, Mode, PATIENT, Test, TestError, Verdict, options};
use crate::support::observe::Holdings;
use crate::{check, check_eq, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_run_is_joined_again_and_again).only_as(&[Mode::Processes]),
    test!(a_name_is_used_again_by_other_ranks).at_least(2).only_as(&[Mode::Processes]),
    test!(joining_asks_little_of_the_store).only_as(&[Mode::Processes]),
    test!(threads_start_again_and_again).local(),
];

/// A run of its own on the store of the test's ranks.
struct Run {
    store: Arc<TcpStore>,
    launcher: String,
}

impl Run {
    #[track_caller]
    fn new(name: &str) -> Result<Self, TestError> {
        let bootstrap = Bootstrap::from_env()?;
        let address = bootstrap.store;
        let store = Arc::new(TcpStore::connect(&address.host, address.port, &PATIENT)?);
        let launcher = bootstrap.run.launcher.unwrap_or_default();
        Ok(Run { store, launcher: format!("{launcher}-{name}") })
    }

    /// Joins as one of so many ranks; collective among those.
    #[track_caller]
    fn join(&self, context: &Context, rank: usize, ranks: usize) -> Result<Group, TestError> {
        let run = RunId { launcher: Some(self.launcher.clone()), restart: 0 };
        let place = Place::new(rank, ranks, run);
        let options = options(ranks);
        Ok(Group::join_store(self.store.clone(), &place, context.device(), &options, &PATIENT)?)
    }
}

/// Marks of every rank in every rank's memory.
fn works(context: &Context, group: &Group, round: u32) -> Verdict {
    let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    exchange_marks(context, group, &handle, &tensor, round)
}

/// Under one name and at once: a rank may be in the next run while another is still in the last.
fn a_run_is_joined_again_and_again(context: &Context) -> Verdict {
    let run = Run::new("again")?;
    let round = |round| -> Verdict {
        let group = run.join(context, context.rank(), context.size())?;
        check_eq!(group.rank().index(), context.rank());
        check_eq!(group.generation(), 0);
        works(context, &group, round)?;
        // In an orderly way, or by the last handle.
        if round % 2 == 0 {
            group.leave();
        }
        Ok(())
    };
    round(0)?;
    let before = Holdings::of_all_ranks(context)?;
    let since = Instant::now();
    for n in 1..=10 {
        context.step(format_args!("run {n}"));
        round(n)?;
    }
    let each = since.elapsed() / 10;
    context
        .found(format_args!("no error; {:.1} ms a run, joined and left", each.as_secs_f64() * 1e3));
    before.check_no_more(context)
}

/// Of all ranks, of all but the first, and of all in another order.
fn a_name_is_used_again_by_other_ranks(context: &Context) -> Verdict {
    let run = Run::new("others")?;
    let (me, size) = (context.rank(), context.size());
    let places: [&dyn Fn() -> Option<(usize, usize)>; 3] =
        [&|| Some((me, size)), &|| Some((me.checked_sub(1)?, size - 1)), &|| {
            Some((size - 1 - me, size))
        }];
    for (n, place) in places.into_iter().enumerate() {
        context.step(format_args!("run {n}"));
        if let Some((rank, ranks)) = place() {
            let group = run.join(context, rank, ranks)?;
            check_eq!((group.rank().index(), group.size()), (rank, ranks));
            let tensor = Tensor::<u64>::zeros(context.device(), &[1])?;
            tensor.write(&[(n * 1000 + me) as u64])?;
            let handle = group.rendezvous(&tensor, &PATIENT)?;
            meet_in(&group)?;
            let mut found = Vec::new();
            for view in handle.remotes()? {
                found.extend(Tensor::<u64>::try_from(view)?.to_vec()?);
            }
            let mut expected: Vec<_> =
                (size - ranks..size).map(|r| (n * 1000 + r) as u64).collect();
            if n == 2 {
                expected.reverse();
            }
            check_eq!(found, expected, "run {n}");
            meet_in(&group)?;
        }
        context.meet()?;
    }
    Ok(())
}

/// One request by each rank, two by the one that leads; none by groups and rendezvous made later.
fn joining_asks_little_of_the_store(context: &Context) -> Verdict {
    let run = Run::new("little")?;
    let before = run.store.traffic().requests;
    let group = run.join(context, context.rank(), context.size())?;
    let asked = run.store.traffic().requests - before;
    check!((1..=3).contains(&asked), "{asked} requests to join");
    for round in 0..3 {
        let part = group.subgroup(group.ranks()).create(&group.wait())?;
        works(context, &part, round)?;
    }
    check_eq!(run.store.traffic().requests - before, asked, "requests of sub-groups");
    context.meet()
}

fn threads_start_again_and_again(context: &Context) -> Verdict {
    let round = |ranks| -> Verdict {
        let devices = (0..ranks).map(|_| context.device().clone()).collect();
        let found = Threads::new(ranks).options(options(ranks)).devices(devices).run(|group| {
            let tensor = Tensor::<u32>::zeros(group.device(), &[10])?;
            tensor.write(&[group.rank().index() as u32; 10])?;
            let handle = group.rendezvous(&tensor, &PATIENT)?;
            meet_in(&group)?;
            let last = Tensor::<u32>::try_from(handle.remote(group.rank_at(ranks - 1)?)?)?;
            Ok::<_, TestError>(last.to_vec()?[9])
        })?;
        for seen in found {
            check_eq!(seen?, ranks as u32 - 1);
        }
        Ok(())
    };
    round(4)?;
    check!(retired_becomes(0), "memory stays retired");
    let before = Holdings::of_all_ranks(context)?;
    for n in 0..20 {
        round(1 + n % 5)?;
    }
    check!(retired_becomes(0), "memory stays retired");
    before.check_no_more(context)
}
