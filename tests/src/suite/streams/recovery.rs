//! Groups that go on without a rank.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};
use symmem_hal::types::{Bytes, RankSet};
use symmem_hal::{CancelToken, Device, Fault as _, Kind, StreamMode, Wait};
use symmem_mem::launch::{Place, Threads};
use symmem_mem::liveness::Gone;
use symmem_mem::{
    Failure, Group, RecoverError, RendezvousError, SymmetricMemory, Tensor, collect, quarantined,
};
use symmem_sync::{Channel, LaneError, Lanes as _, Signals as _};

use super::failure;
use super::graphs::capture;
use super::kernels::Gather;
use crate::runner::{Context, Mode, PATIENT, Test, TestError, Verdict, options};
use crate::support::eventually;
use crate::support::random::Random;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_group_goes_on_as_a_new_one),
    test!(without_a_process_that_was_killed).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(without_the_first_process).ranks(2, 8).only_as(&[Mode::Processes]).isolated(),
    test!(without_two_that_die_at_any_moment).ranks(3, 8).only_as(&[Mode::Processes]).isolated(),
    test!(without_a_thread_that_panicked).local(),
    test!(without_a_rank_that_left).at_least(2),
    test!(who_comes_late_is_excluded).at_least(2).isolated(),
    test!(a_stopped_process_changes_nothing_when_it_wakes)
        .ranks(2, 8)
        .only_as(&[Mode::Processes])
        .isolated(),
    test!(a_recovery_can_be_cancelled_and_tried_again).at_least(2).isolated(),
    test!(a_store_that_is_gone_is_told).local(),
];

/// Members that have not come are left behind after half of this.
const BRIEF: Wait = Wait::seconds(2);

/// Every member gets every member's word, in a few operations and a barrier.
#[track_caller]
pub(super) fn works(group: &Group) -> Verdict {
    let gather = Gather::new(group)?;
    let stream = group.device().stream(StreamMode::Worker)?;
    for round in 0..5 {
        gather.offer(round)?;
        gather.issue(group.lane()?, &stream, &PATIENT, round)?;
        stream.synchronize(&PATIENT)?;
        gather.check(round)?;
    }
    group.barrier(Channel(0)).wait(&PATIENT).run()?;
    group.check()?;
    Ok(())
}

/// Fails because of ranks that do not come.
#[track_caller]
fn fails(group: &Group, wait: &Wait) -> Result<Failure, TestError> {
    let gather = Gather::new(group)?;
    let stream = group.device().stream(StreamMode::Worker)?;
    match gather.issue(group.lane()?, &stream, wait, 0) {
        Ok(()) => failure(stream.synchronize(&PATIENT)),
        Err(LaneError::Failed(failure)) => Ok(failure),
        Err(other) => Err(TestError::failed(other.to_string())),
    }
}

/// Recovers a group whose missing members are known to be gone: nobody's patience decides.
#[track_caller]
fn recover_at_once(group: &Group) -> Result<Group, TestError> {
    let since = Instant::now();
    let recovered = group.recover(&PATIENT)?;
    check!(since.elapsed() < PATIENT.duration() / 2, "waited for ranks that are gone");
    Ok(recovered)
}

/// Memory that every member can write.
#[track_caller]
fn shared(group: &Group, value: u32) -> Result<(Tensor<u32>, SymmetricMemory), TestError> {
    let tensor = Tensor::<u32>::zeros(group.device(), &[1000])?;
    tensor.write(&[value; 1000])?;
    let handle = group.rendezvous(&tensor, &PATIENT)?;
    Ok((tensor, handle))
}

/// That the memory comes free, and can be made symmetric in a group; collective.
#[track_caller]
fn check_free(group: &Group, tensor: &Tensor<u32>) -> Verdict {
    let free = eventually(|| quarantined() == Bytes::ZERO);
    check!(free, "{} stay quarantined", quarantined());
    group.rendezvous(tensor, &PATIENT)?;
    Ok(())
}

#[track_caller]
fn die(context: &Context) -> Verdict {
    context.dying();
    kill_process(getpid(), Signal::KILL)?;
    Err(TestError::failed("survived SIGKILL"))
}

/// Nobody is lost: again and again, the same ranks make the next generation.
fn a_group_goes_on_as_a_new_one(context: &Context) -> Verdict {
    let mut group = context.group()?;
    let (tensor, mut handle) = shared(&group, 7)?;
    let first = group.global_ranks().to_vec();
    let stream = context.device().stream(StreamMode::Worker)?;
    for generation in 1..4 {
        works(&group)?;
        let gather = Gather::new(&group)?;
        let graph = capture(group.lane()?, &gather, &stream, &[1])?;
        let recovered = group.recover(&PATIENT)?;
        check_eq!(recovered.generation(), generation);
        check_eq!(recovered.global_ranks(), first);
        check_eq!(recovered.rank().index(), group.rank().index());
        // Nothing of the old group takes work.
        check_eq!(check_err!(group.check(), _), Failure::Recovered { generation });
        let stale = check_err!(group.recover(&PATIENT), RecoverError::Failed(_));
        check_eq!(stale.kind(), Kind::Stale);
        let found = gather.issue(group.lane()?, &stream, &PATIENT, 0);
        check_err!(found, LaneError::Failed(Failure::Recovered { .. }));
        check_err!(group.barrier(Channel(0)).run(), symmem_sync::SignalError::Failed(_));
        let found = group.rendezvous(&Tensor::<u32>::zeros(context.device(), &[1])?, &PATIENT);
        check_err!(found, RendezvousError::Failed(Failure::Recovered { .. }));
        check_eq!(failure(graph.launch(&stream, &PATIENT))?, Failure::StaleGraph);
        check!(recovered.rank_at(0)? != group.rank_at(0)?, "ranks of two groups are equal");
        // What the user has allocated is the user's.
        check_eq!(quarantined(), Bytes::ZERO);
        check_eq!(tensor.to_vec()?, [7; 1000]);
        drop(handle);
        handle = recovered.rendezvous(&tensor, &PATIENT)?;
        works(&recovered)?;
        // Groups of the new one's ranks are of its generation.
        let part = recovered.subgroup(recovered.ranks()).create(&PATIENT)?;
        check_eq!(part.generation(), generation);
        works(&part)?;
        group = recovered;
    }
    context.meet()
}

fn killed(context: &Context, victim: usize) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = shared(&group, 5)?;
    works(&group)?;
    context.meet()?;
    if context.rank() == victim {
        return die(context);
    }
    let found = fails(&group, &PATIENT)?;
    check!(matches!(found, Failure::PeerLost { left: false, .. }), "{found}");
    check_eq!(found.ranks(), RankSet::one(victim));
    let recovered = recover_at_once(&group)?;
    check_eq!(recovered.generation(), 1);
    check_eq!(recovered.size(), context.size() - 1);
    check!(!recovered.global_ranks().contains(&(victim as u32)), "the victim goes on");
    context.same("members", format_args!("{:?}", recovered.global_ranks()));
    works(&recovered)?;
    // Known to be dead, so that its memory and what it could write are free.
    drop(handle);
    check_free(&recovered, &tensor)?;
    check_eq!(tensor.to_vec()?, [5; 1000]);
    works(&recovered)
}

fn without_a_process_that_was_killed(context: &Context) -> Verdict {
    killed(context, context.size() - 1)
}

fn without_the_first_process(context: &Context) -> Verdict {
    killed(context, 0)
}

/// One dies before the recovery, one somewhere in it or after.
fn without_two_that_die_at_any_moment(context: &Context) -> Verdict {
    let mut group = context.group()?;
    works(&group)?;
    context.meet()?;
    let (first, second) = (context.size() - 1, usize::from(context.size() > 3));
    if context.rank() == first {
        return die(context);
    }
    let found = fails(&group, &PATIENT)?;
    check!(matches!(found, Failure::PeerLost { .. }), "{found}");
    let pause = Duration::from_micros(Random::new(context.seed(), &[]).below(20_000));
    std::thread::scope(|scope| -> Verdict {
        if context.rank() == second {
            context.dying();
            scope.spawn(move || {
                std::thread::sleep(pause);
                // Should it fail, the process lives, which the test finds.
                let _ = kill_process(getpid(), Signal::KILL);
            });
        }
        // Until the second has died, and all who are left know it.
        for _ in 0..4 {
            group = group.recover(&PATIENT)?;
            context.step(format_args!("generation {}", group.generation()));
            if !group.global_ranks().contains(&(second as u32)) {
                check_eq!(group.size(), context.size() - 2);
                context.same("members", format_args!("{:?}", group.global_ranks()));
                return works(&group);
            }
            while works(&group).is_ok() {}
            // Of whatever it failed, that is why.
            let second = group.global_ranks().iter().position(|rank| *rank == second as u32);
            let second = second.unwrap_or_default();
            let told = eventually(|| group.status().gone(second) == Some(Gone::Lost));
            check!(told, "failed, and the second has not died: {:?}", group.check());
        }
        Err(TestError::failed("the second has not died"))
    })?;
    check!(eventually(|| quarantined() == Bytes::ZERO), "{} stay quarantined", quarantined());
    Ok(())
}

/// What a test throws to end a rank: not printed as a panic is.
struct Thrown;

fn without_a_thread_that_panicked(context: &Context) -> Verdict {
    const RANKS: usize = 4;
    let ends = std::sync::Mutex::new(Vec::new());
    // One that is ahead would fail while another still looks at what came before.
    let worked = std::sync::Barrier::new(RANKS);
    let devices = (0..RANKS).map(|_| context.device().clone()).collect();
    let ranks = Threads::new(RANKS).options(options(RANKS)).devices(devices);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ranks.run(|group| {
            let victim = group.rank().index() == 2;
            let end = || -> Verdict {
                let made = shared(&group, 3).and_then(|made| works(&group).map(|()| made));
                worked.wait();
                let (tensor, handle) = made?;
                if victim {
                    return Ok(());
                }
                let found = fails(&group, &PATIENT)?;
                check!(matches!(found, Failure::PeerLost { left: false, .. }), "{found}");
                let recovered = recover_at_once(&group)?;
                check_eq!(recovered.global_ranks(), [0, 1, 3]);
                works(&recovered)?;
                drop(handle);
                check_free(&recovered, &tensor)?;
                works(&recovered)
            };
            let ended = end();
            if let Ok(mut ends) = ends.lock() {
                ends.push(ended);
            }
            if victim {
                std::panic::resume_unwind(Box::new(Thrown));
            }
        })
    }));
    check!(panic.is_err_and(|thrown| thrown.is::<Thrown>()), "the panic was not resumed");
    let ends = ends.into_inner().map_err(|_| TestError::failed("a rank panicked elsewhere"))?;
    check_eq!(ends.len(), RANKS);
    ends.into_iter().collect()
}

fn without_a_rank_that_left(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = shared(&group, 9)?;
    works(&group)?;
    context.meet()?;
    if context.rank() + 1 == context.size() {
        group.leave();
        drop(handle);
        check_err!(group.recover(&PATIENT), RecoverError::Failed(Failure::Left));
    } else {
        let found = fails(&group, &PATIENT)?;
        check!(matches!(found, Failure::PeerLost { left: true, .. }), "{found}");
        let recovered = recover_at_once(&group)?;
        check_eq!(recovered.size(), context.size() - 1);
        works(&recovered)?;
        check_free(&recovered, &tensor)?;
    }
    context.meet()
}

/// The last rank calls once the others are done.
fn who_comes_late_is_excluded(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, _handle) = shared(&group, 4)?;
    works(&group)?;
    context.meet()?;
    if context.rank() + 1 == context.size() {
        context.meet()?;
        let error = check_err!(group.recover(&PATIENT), RecoverError::Failed(_));
        check!(
            matches!(error, RecoverError::Failed(Failure::Excluded { generation: 1 })),
            "{error}"
        );
        check_eq!(error.kind(), Kind::Stale);
        let again = check_err!(group.recover(&PATIENT), RecoverError::Failed(_));
        check_eq!(again.to_string(), error.to_string());
        check_eq!(tensor.to_vec()?, [4; 1000]);
        return context.meet();
    }
    let recovered = group.recover(&BRIEF)?;
    check_eq!(recovered.size(), context.size() - 1);
    works(&recovered)?;
    check_quarantined(&recovered, &tensor)?;
    context.meet()?;
    context.meet()?;
    works(&recovered)
}

/// The memory is readable by its owner, of no use to the group, and counted, also once it is dropped.
#[track_caller]
fn check_quarantined(recovered: &Group, tensor: &Tensor<u32>) -> Verdict {
    let found = recovered.rendezvous(tensor, &PATIENT);
    let error = check_err!(found, RendezvousError::Quarantined { .. });
    check_eq!(error.kind(), Kind::Stale);
    let held = quarantined();
    check!(held > tensor.bytes(), "{held}: the pad and workspace are missing");
    tensor.to_vec()?;
    collect();
    check_eq!(quarantined(), held);
    Ok(())
}

/// A process is stopped, the others go on without it; it wakes, and writes to all that it can reach.
fn a_stopped_process_changes_nothing_when_it_wakes(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = shared(&group, 1)?;
    works(&group)?;
    let last = context.size() - 1;
    context.meet()?;
    if context.rank() == last {
        // Is stopped in here.
        context.meet()?;
        for rank in group.ranks() {
            let theirs = Tensor::<u32>::try_from(handle.remote(rank)?)?;
            theirs.write(&[0xdead; 1000])?;
        }
        let found = fails(&group, &PATIENT)?;
        context.step(format_args!("told {found}"));
        let error = check_err!(group.recover(&PATIENT), RecoverError::Failed(_));
        context.found(&error);
        check!(
            matches!(error, RecoverError::Failed(Failure::Excluded { generation: 1 })),
            "{error}"
        );
        context.meet()?;
        return die(context);
    }
    let victim = i32::try_from(group.member_processes()[last].1)?;
    let victim = Pid::from_raw(victim).ok_or_else(|| TestError::failed("pid 0"))?;
    if context.rank() == 0 {
        kill_process(victim, Signal::STOP)?;
    }
    let found = fails(&group, &Wait::timeout(context.brief()))?;
    check!(matches!(found, Failure::TimedOut { .. }), "{found}: slow is not dead");
    context.found(&found);
    check!(found.ranks().contains(last), "{found}");
    let recovered = group.recover(&BRIEF)?;
    check_eq!(recovered.size(), last);
    works(&recovered)?;
    check_quarantined(&recovered, &tensor)?;
    let (fresh, _kept) = shared(&recovered, 2)?;
    let regions = || -> Result<Vec<u8>, TestError> {
        let mine = &recovered.regions()[recovered.rank().index()];
        let mut bytes = vec![0; mine.bytes().to_usize().unwrap_or(0)];
        mine.read(Bytes::ZERO, &mut bytes)?;
        Ok(bytes)
    };
    recovered.barrier(Channel(0)).run()?;
    // One more meeting, so that nobody is in the barrier any more.
    recovered.split(None, 0, &PATIENT)?;
    let before = regions()?;
    if context.rank() == 0 {
        kill_process(victim, Signal::CONT)?;
    }
    // It wakes and does its worst.
    context.meet()?;
    context.meet()?;
    check!(regions()? == before, "bytes of the new generation's region have changed");
    check_eq!(fresh.to_vec()?, [2; 1000]);
    check_eq!(tensor.to_vec()?, [0xdead; 1000], "what the former member could write");
    works(&recovered)?;
    // Its end sets the memory free.
    drop(handle);
    check_free(&recovered, &tensor)?;
    works(&recovered)
}

/// The last rank comes later; meanwhile the others lose patience, and try again.
fn a_recovery_can_be_cancelled_and_tried_again(context: &Context) -> Verdict {
    let group = context.group()?;
    works(&group)?;
    context.meet()?;
    if context.rank() + 1 != context.size() {
        let token = CancelToken::new();
        let wait = PATIENT.with_cancel(token.clone());
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                token.cancel();
            });
            Ok::<_, TestError>(check_err!(group.recover(&wait), _))
        })?;
        check_eq!(error.kind(), Kind::Cancelled, "{error}");
        check_err!(group.check(), Failure::Recovered { generation: 1 });
    }
    context.meet()?;
    let recovered = group.recover(&PATIENT)?;
    check_eq!(recovered.size(), context.size());
    works(&recovered)?;
    context.meet()
}

/// A rank alone, whose store ends.
fn a_store_that_is_gone_is_told(_: &Context) -> Verdict {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use symmem_mem::bootstrap::RunId;
    use symmem_mem::store::tcp::{StoreServer, TcpStore};

    let server = StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port(), &PATIENT)?;
    let launcher = Some(format!("store-lost-{}", std::process::id()));
    let place = Place::new(0, 1, RunId { launcher, restart: 0 });
    let device = Device::host();
    let group = Group::join_store(Arc::new(store), &place, &device, &options(1), &PATIENT)?;
    let recovered = group.recover(&PATIENT)?;
    works(&recovered)?;
    drop(server);
    let error =
        check_err!(recovered.recover(&PATIENT), RecoverError::Failed(Failure::StoreLost(_)));
    check_eq!(error.kind(), Kind::System);
    Ok(())
}
