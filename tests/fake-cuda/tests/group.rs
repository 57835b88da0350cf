//! Groups of ranks on the library's devices: who reaches whom, and that a step which fails on one rank
//! fails on all, with nothing left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use rig::{Control, isolated};
use symmem_hal::kernels::{BundleWriter, register_bundle};
use symmem_hal::types::Bytes;
use symmem_hal::{Device, Wait};
use symmem_mem::launch::Threads;
use symmem_mem::{Group, NoMulticast, Options, RendezvousError, SymmetricMemory, Tensor, collect};

const RANKS: usize = 2;
const WORDS: u64 = 1000;
const PATIENT: Wait = Wait::seconds(30);

/// Two ranks, each a thread with a device of its own.
fn ranks<R: Send>(body: impl Fn(Group) -> R + Sync) -> Result<Vec<R>, RendezvousError> {
    let devices = (0..2).map(|ordinal| Device::cuda(ordinal).unwrap()).collect();
    // Small: the library's memory is real. Multicast is where the library has it.
    let options = Options { workspace: Bytes::mib(2), multicast: true, ..Options::default() };
    Threads::new(RANKS).options(options).devices(devices).run(body)
}

/// Where ranks wait for each other without a call of the driver, and not for one that has panicked.
#[derive(Default)]
struct Meeting(Mutex<usize>, Condvar);

impl Meeting {
    fn wait(&self) {
        let mut come = self.0.lock().unwrap();
        *come += 1;
        let all = come.next_multiple_of(RANKS);
        self.1.notify_all();
        let waiting = |come: &mut usize| *come < all;
        let (_come, end) =
            self.1.wait_timeout_while(come, Duration::from_secs(60), waiting).unwrap();
        assert!(!end.timed_out(), "the other rank did not come");
    }
}

fn meet(group: &Group) {
    group.split(None, 0, &PATIENT).unwrap();
}

/// Memory goes when the ranks that mapped it have said that they let go of it.
fn wait_for_the_same(control: &Control, before: &[(&str, u64)]) {
    let start = Instant::now();
    while control.held() != before {
        assert!(start.elapsed().as_secs() < 30, "{:?} are left", control.held());
        collect();
        std::thread::yield_now();
    }
}

#[test]
fn ranks_reach_each_others_memory_through_their_own_device() {
    isolated(&[], |control| {
        let before = control.held();
        let body = |group: Group| {
            let me = group.rank().index();
            let tensor = Tensor::<u32>::zeros(group.device(), &[WORDS]).unwrap();
            let handle = group.rendezvous(&tensor, &PATIENT).unwrap();
            let source = Tensor::<u32>::zeros(group.device(), &[WORDS]).unwrap();
            source.write(&vec![me as u32 + 1; WORDS as usize]).unwrap();
            let stream = group.device().default_stream().unwrap();
            let peer = group.rank_at(1 - me).unwrap();
            handle.put(&source, peer).on(&stream).unwrap();
            stream.synchronize(&PATIENT).unwrap();
            meet(&group);
            let expected = vec![2 - me as u32; WORDS as usize];
            assert_eq!(tensor.to_vec().unwrap(), expected);
            let theirs = Tensor::<u32>::try_from(handle.remote(peer).unwrap()).unwrap();
            assert_eq!(theirs.to_vec().unwrap(), vec![me as u32 + 1; WORDS as usize]);
            meet(&group);
        };
        ranks(body).unwrap();
        wait_for_the_same(control, &before);
    });
}

#[test]
fn every_rank_knows_what_the_others_run() {
    isolated(&[], |_| {
        let run = |kernels: &str| {
            let all = ranks(|group| group.member_software()).unwrap();
            let software = [
                ("symmem", env!("CARGO_PKG_VERSION")),
                ("cuda driver", "13.0"),
                ("kernels", kernels),
            ];
            let software = software.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(all, vec![vec![software.to_vec(); RANKS]; RANKS]);
        };
        register_bundle(BundleWriter::default().finish()).unwrap();
        run("1 bundle");
        register_bundle(BundleWriter::default().finish()).unwrap();
        run("2 bundles");
    });
}

#[test]
fn a_pair_without_a_path_is_the_same_error_on_both() {
    isolated(&[("SYMMEM_FAKE_CUDA_P2P", "0-1:no")], |control| {
        let error = ranks(|_| ()).unwrap_err();
        assert!(matches!(error, RendezvousError::Unreachable { .. }), "{error}");
        assert!(
            error.to_string().contains(&Device::cuda(1).unwrap().uuid().to_string()),
            "{error}"
        );
        assert_eq!(control.all_live() - control.live("streams") - control.live("events"), 0);
    });
}

/// The first, the second, ... call of the driver fails on one rank alone, until all that a rendezvous
/// makes there have.
#[test]
fn any_call_of_a_rendezvous_may_fail_on_one_rank_and_fails_it_on_both() {
    any_call_may_fail(&[]);
}

/// Those towards a multicast object fail that alone.
#[test]
fn any_call_of_a_rendezvous_with_multicast_may_fail_on_one_rank() {
    any_call_may_fail(&[("SYMMEM_FAKE_CUDA_MULTICAST", "1")]);
}

fn any_call_may_fail(environment: &[(&str, &str)]) {
    isolated(environment, |control| {
        let together = Meeting::default();
        let body = |group: Group| {
            let me = group.rank().index();
            let rendezvous = || {
                let tensor = Tensor::<u32>::zeros(group.device(), &[WORDS]).unwrap();
                together.wait();
                (group.rendezvous(&tensor, &PATIENT), tensor)
            };
            let (mut failures, mut without) = (0, 0);
            // Its table has room for those of the others: a table is not what they lack.
            let kept = rendezvous();
            for k in 1.. {
                meet(&group);
                let tensor = Tensor::<u32>::zeros(group.device(), &[WORDS]).unwrap();
                together.wait();
                if me == 0 {
                    control.tell("reset-counts");
                    control.tell(&format!("fail 1:*@{k}=CUDA_ERROR_OUT_OF_MEMORY"));
                }
                together.wait();
                let outcome = group.rendezvous(&tensor, &PATIENT);
                together.wait();
                let hit = control.count("failed:*") > 0;
                together.wait();
                if me == 0 {
                    control.tell("clear");
                }
                together.wait();
                if let Err(error) = &outcome {
                    assert!(hit, "{error}");
                    match error {
                        RendezvousError::Map { ranks, reason, .. } => {
                            assert_eq!(ranks.iter().collect::<Vec<_>>(), [1], "{error}");
                            assert_eq!(reason.is_some(), me == 1, "{error}");
                        }
                        RendezvousError::Unreachable { rank: 1, peer: 0, .. } => {}
                        other => panic!("call {k}, rank {me}: {other}"),
                    }
                    failures += 1;
                }
                let multicast = outcome.as_ref().map(SymmetricMemory::multicast_ptr);
                if let Ok(Err(NoMulticast::Failed { rank, .. })) = multicast {
                    assert!(hit && rank == 1, "call {k}: rank {rank}");
                    without += 1;
                }
                drop((outcome, tensor));
                let (again, tensor) = rendezvous();
                again.unwrap_or_else(|e| panic!("after call {k}, rank {me}: {e}"));
                drop(tensor);
                if !hit {
                    drop(kept);
                    return (failures, without);
                }
            }
            unreachable!("a rendezvous ends");
        };
        let before = control.held();
        let outcomes = ranks(body).unwrap();
        assert_eq!(outcomes[0], outcomes[1], "they do not agree on what failed");
        let (failures, without) = outcomes[0];
        assert!(failures > 0, "{outcomes:?}");
        assert_eq!(without == 0, environment.is_empty(), "{outcomes:?}");
        wait_for_the_same(control, &before);
    });
}
