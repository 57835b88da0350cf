//! Ranks that are threads of this process.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{Device, Wait};

use super::room::check_room;
use crate::group::world::World;
use crate::group::{Group, Options};
use crate::liveness::afterwards;
use crate::liveness::peers::Peers;
use crate::rendezvous::RendezvousError;
use crate::settings;

/// Runs `body` once for each of `ranks` ranks, each on a thread of its own with its own group of
/// all of them, on the default backend ([`settings`]) with default options. Returns the results in rank
/// order.
///
/// A rank that panics is lost to the others, whose waits for it end with
/// [`Failure::PeerLost`](crate::Failure::PeerLost); its panic is resumed here once all ranks have
/// returned.
///
/// # Errors
///
/// [`RendezvousError::NoRanks`] for 0 ranks, [`RendezvousError::TooManyRanks`] for more than there can
/// be, [`RendezvousError::Options`] for more than the pad has slots for, [`RendezvousError::NoRoom`]
/// for more than there is memory for, all before any thread is started; else why the group could not be
/// made, as a rank that knows it says. No body has run then.
pub fn threads<R: Send>(
    ranks: usize,
    body: impl Fn(Group) -> R + Sync,
) -> Result<Vec<R>, RendezvousError> {
    Threads::new(ranks).run(body)
}

/// As [`threads`], with a device and options of choice.
#[derive(Clone, Debug)]
pub struct Threads {
    ranks: usize,
    options: Options,
    devices: Vec<Device>,
}

impl Threads {
    /// `ranks` ranks, on the default backend.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Threads { ranks, options: Options::default(), devices: settings::take_devices() }
    }

    /// The group's options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The devices, dealt to ranks in turn. None means the default backend's.
    #[must_use]
    pub fn devices(mut self, devices: Vec<Device>) -> Self {
        if !devices.is_empty() {
            self.devices = devices;
        }
        self
    }

    /// Starts the ranks and waits for all of them; see [`threads`].
    ///
    /// # Errors
    ///
    /// As [`threads`].
    pub fn run<R: Send>(self, body: impl Fn(Group) -> R + Sync) -> Result<Vec<R>, RendezvousError> {
        if self.ranks == 0 {
            return Err(RendezvousError::NoRanks);
        }
        let most = u32::MAX;
        let ranks = u32::try_from(self.ranks)
            .map_err(|_| RendezvousError::TooManyRanks { ranks: self.ranks, most })?;
        // Nothing is as large as its ranks before the options allow so many.
        self.options.check(self.ranks)?;
        check_room(
            self.on_host(),
            self.options.on(BackendKind::Host).region().unwrap_or(Bytes(u64::MAX)),
        )?;
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let run =
            format!("threads-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let (worlds, peers) = World::threads(&run, ranks);
        let (options, devices, body) = (&self.options, &self.devices, &body);
        let ends: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = worlds
                .into_iter()
                .zip(devices.iter().cycle())
                .map(|(world, device)| {
                    let (mine, number) = (peers.clone(), world.rank);
                    let started = std::thread::Builder::new()
                        .name(format!("symmem-rank-{number}"))
                        .spawn_scoped(scope, move || rank(&world, device, options, mine, body));
                    if started.is_err() {
                        // The others need not wait for it.
                        peers.announce_lost(number);
                    }
                    started.map_err(|e| (number, e))
                })
                .collect();
            let ends =
                started.into_iter().map(|rank| rank.map(std::thread::ScopedJoinHandle::join));
            ends.collect()
        });
        // A panic first: what it made of the other ranks is its consequence.
        let mut returned = Vec::with_capacity(ends.len());
        let mut unstarted = None;
        for end in ends {
            match end {
                Ok(end) => returned.push(end.unwrap_or_else(|panic| resume_unwind(panic))),
                Err((rank, source)) => {
                    unstarted.get_or_insert_with(|| RendezvousError::Thread {
                        rank,
                        reason: source.to_string(),
                    });
                }
            }
        }
        match unstarted {
            Some(error) => Err(error),
            None => results_or_cause(returned),
        }
    }

    /// How many ranks have their memory from this machine's.
    fn on_host(&self) -> usize {
        let devices = self.devices.len();
        let dealt = |(at, _)| (self.ranks + devices - 1 - at) / devices;
        let is_on_host = |(_, device): &(usize, &Device)| device.kind() != BackendKind::Cuda;
        self.devices.iter().enumerate().filter(is_on_host).map(dealt).sum()
    }
}

/// All results, or the error that tells most: of the lowest rank, of those that found the cause
/// themselves if there are any.
fn results_or_cause<R>(ends: Vec<Result<R, RendezvousError>>) -> Result<Vec<R>, RendezvousError> {
    let (mut results, mut errors) = (Vec::with_capacity(ends.len()), Vec::new());
    for end in ends {
        match end {
            Ok(result) => results.push(result),
            Err(error) => errors.push(error),
        }
    }
    match errors.into_iter().min_by_key(RendezvousError::is_of_others) {
        Some(error) => Err(error),
        None => Ok(results),
    }
}

fn rank<R>(
    world: &Arc<World>,
    device: &Device,
    options: &Options,
    peers: Arc<Peers>,
    body: impl Fn(Group) -> R,
) -> Result<R, RendezvousError> {
    let scope = RankScope { rank: world.rank, peers };
    let group = Group::of_all(world, device, options, &Wait::timeout(options.deadline))?;
    // The thread is the rank's alone: its calls need not look for their device again.
    if let Err(e) = device.make_current() {
        tracing::debug!(rank = world.rank, error = %e, "each call makes its device current");
    }
    let ended = catch_unwind(AssertUnwindSafe(|| body(group.clone())));
    match ended {
        Ok(result) => {
            let end = Wait::timeout(options.deadline).deadline();
            for event in group.status().in_flight() {
                let left = Wait::timeout(end.saturating_duration_since(Instant::now()));
                if let Err(e) = event.synchronize(&left) {
                    tracing::warn!(rank = world.rank, error = %e, "a rank ends with work in flight");
                }
            }
            // Clones that the body let escape are of no use from here on.
            group.leave();
            Ok(result)
        }
        Err(panic) => {
            // Lost, not left.
            drop(scope);
            resume_unwind(panic)
        }
    }
}

/// A rank's stay in the run. Not Clone: dropped once, however the rank ends.
#[derive(Debug)]
struct RankScope {
    rank: u32,
    peers: Arc<Peers>,
}

impl Drop for RankScope {
    fn drop(&mut self) {
        // After an orderly end every group has heard a leave, which goes before this.
        self.peers.announce_lost(self.rank);
        let (peers, rank) = (self.peers.clone(), self.rank);
        afterwards(peers.in_flight(rank), move || peers.announce_gone(rank));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use symmem_hal::Kind;
    use symmem_hal::types::RankSet;

    use super::*;

    #[test]
    fn the_error_of_the_rank_that_knows_the_cause_is_told() {
        let ranks = RankSet::one(2);
        let heard = |_| {
            Err(RendezvousError::Map { ranks: ranks.clone(), reason: None, kind: Kind::System })
        };
        let cause = "1 GiB needed, 1 MiB available".to_owned();
        let knows: Result<(), _> = Err(RendezvousError::Map {
            ranks: ranks.clone(),
            reason: Some(cause.clone()),
            kind: Kind::Exhausted,
        });
        let told = results_or_cause(vec![heard(0), heard(1), knows, heard(3)]).unwrap_err();
        assert!(told.to_string().contains(&cause), "{told}");
        // Where nobody knows, the lowest.
        let told = results_or_cause(vec![Ok(()), heard(1)]).unwrap_err();
        assert!(matches!(told, RendezvousError::Map { reason: None, .. }), "{told}");
        assert_eq!(results_or_cause(vec![Ok(1), Ok(2)]).unwrap(), [1, 2]);
    }

    #[test]
    fn ranks_of_this_machine_are_those_whose_devices_are() {
        for (ranks, devices) in [(1, 1), (5, 1), (5, 2), (2, 3), (7, 3)] {
            let devices = (0..devices).map(Device::stub).collect();
            assert_eq!(Threads::new(ranks).devices(devices).on_host(), ranks);
        }
    }
}
