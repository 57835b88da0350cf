//! Joining a run that a launcher has started.

use std::sync::Arc;
use std::time::Duration;

use symmem_hal::types::RankSet;
use symmem_hal::{Device, Fault, Kind, Wait};

use super::on_host::{OnHost, on_host};
use crate::bootstrap::{Bootstrap, EnvError, JoinError, RunId};
use crate::exchange::door::Door;
use crate::exchange::hosts::HostsExchange;
use crate::exchange::token::{Token, run_name};
use crate::exchange::unix::{OnLead, UnixExchange};
use crate::exchange::{Exchange, ExchangeError};
use crate::group::world::World;
use crate::group::{Group, Options};
use crate::liveness::Register;
use crate::liveness::links::Links;
use crate::rendezvous::RendezvousError;
use crate::rendezvous::record::host_name;
use crate::settings;
use crate::store::{PrefixStore, Store, StoreError};

/// Why a process could not join its run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The environment does not describe a rank.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The store cannot be reached.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The store did not answer as it should.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What stands in the store for this run's token is none.
    #[error(
        "the store holds no token of a run under {key:?}: another program uses it; take another store, or another id for the run"
    )]
    NoToken {
        /// The key.
        key: String,
    },
    /// The run has ranks on several hosts, and others cannot come to this one at the address that it has
    /// towards the store.
    #[error(
        "{world_size} ranks, {local_world_size} of them on this host, which reaches the store at {store} from {found}: set SYMMEM_ADDRESS to an address of this host that the others can reach"
    )]
    NoAddress {
        /// Ranks of the run.
        world_size: usize,
        /// Ranks on this host.
        local_world_size: usize,
        /// Where the store is.
        store: String,
        /// The address found, or why there is none.
        found: String,
    },
    /// What the launcher says of this process's host cannot be.
    #[error(
        "local rank {} of {local_world_size} on this host, of {world_size} ranks in all: a process has to know which one of its host's it is, and those are no more than all",
        local_rank.map_or("unknown".to_owned(), |rank| rank.to_string())
    )]
    Unit {
        /// The process's index on its host, if the launcher says it.
        local_rank: Option<usize>,
        /// Ranks on its host.
        local_world_size: usize,
        /// Ranks of the run.
        world_size: usize,
    },
    /// The rank is none of the run's.
    #[error("rank {rank} is out of range: the run has {world_size} ranks")]
    Rank {
        /// The rank.
        rank: usize,
        /// Ranks of the run.
        world_size: usize,
    },
    /// The ranks did not meet.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The ranks disagree, or could not map the group's memory.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

impl Fault for StartError {
    fn kind(&self) -> Kind {
        match self {
            StartError::Env(e) => e.kind(),
            StartError::Join(e) => e.kind(),
            StartError::Store(e) => e.kind(),
            StartError::NoToken { .. } => Kind::Disagreement,
            StartError::NoAddress { .. } | StartError::Unit { .. } | StartError::Rank { .. } => {
                Kind::InvalidArgument
            }
            StartError::Exchange(e) => e.kind(),
            StartError::Rendezvous(e) => e.kind(),
        }
    }

    fn ranks(&self) -> RankSet {
        match self {
            StartError::Exchange(e) => e.ranks(),
            StartError::Rendezvous(e) => e.ranks(),
            _ => RankSet::new(),
        }
    }
}

impl Group {
    /// The group of all ranks of the run that this process was started in, by torchrun or
    /// `symmem run`: on the default backend ([`settings`]), with default options. Collective among all
    /// ranks.
    ///
    /// A program that is to run without a launcher, too, tells that case from all others:
    ///
    /// ```
    /// use symmem_mem::bootstrap::EnvError;
    /// use symmem_mem::launch::{self, StartError};
    /// use symmem_mem::Group;
    ///
    /// fn work(group: Group) -> usize {
    ///     group.size()
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let results = match Group::from_env() {
    ///     Ok(group) => vec![work(group)],
    ///     // One rank; a larger number makes as many threads.
    ///     Err(StartError::Env(EnvError::NotLaunched)) => launch::threads(1, work)?,
    ///     Err(error) => return Err(error.into()),
    /// };
    /// # assert_eq!(results, [1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StartError`]; [`EnvError::NotLaunched`] in it where no launcher started the process.
    pub fn from_env() -> Result<Self, StartError> {
        let options = Options::default();
        let wait = Wait::timeout(options.deadline);
        let bootstrap = Bootstrap::from_env()?;
        let device = settings::take_device(bootstrap.local_rank.unwrap_or(bootstrap.rank));
        Self::join(&bootstrap, &device, &options, &wait)
    }

    /// The group of all ranks of a run that a launcher has described, on a device and with options
    /// of choice. Collective among all ranks.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn join(
        bootstrap: &Bootstrap,
        device: &Device,
        options: &Options,
        wait: &Wait,
    ) -> Result<Self, StartError> {
        let place = Place {
            rank: bootstrap.rank,
            world_size: bootstrap.world_size,
            run: bootstrap.run.clone(),
            on_host: on_host(bootstrap)?,
        };
        place.numbers(options)?;
        Self::join_store(bootstrap.connect(wait)?, &place, device, options, wait)
    }

    /// The group of all ranks that meet on a store, whoever made it: for programs that have a
    /// bootstrap of their own. Collective among all ranks: processes of one host, or of several where
    /// their [`Place`]s say so.
    ///
    /// Ranks on several hosts share memory where their devices reach each other's by fabric handles
    /// ([`Capabilities::fabric`](symmem_hal::Capabilities::fabric)); where they do not, that is the same
    /// error on every rank, and [`Bootstrap::on_this_host`] makes a group of those that do.
    ///
    /// In a run of very many ranks each domain of devices that reach each other meets by itself, beside the
    /// others: its ranks take a [`PrefixStore`] of the domain's name over the run's store, and a [`Place`] that
    /// counts ranks, and hosts, within the domain.
    ///
    /// Uses keys under `symmem/`, the run's name among them, and leaves them there. The store must
    /// outlive the meeting, and serves [`recover`](Group::recover) for as long as it lives.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn join_store(
        store: Arc<dyn Store>,
        place: &Place,
        device: &Device,
        options: &Options,
        wait: &Wait,
    ) -> Result<Self, StartError> {
        let numbers = place.numbers(options)?;
        let world = world(place, numbers, store, wait)?;
        Ok(Group::of_all(&world, device, options, wait)?)
    }
}

/// A process's place among those that meet on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// What tells this run from others that use the store.
    pub run: RunId,
    /// Of a run on several hosts, what is known of this one; `None` where all ranks are on one.
    pub on_host: Option<OnHost>,
}

impl Place {
    /// Of ranks that are all on one host.
    #[must_use]
    pub const fn new(rank: usize, world_size: usize, run: RunId) -> Self {
        Place { rank, world_size, run, on_host: None }
    }

    /// Rank and world size as they travel, where a group of that size can have these options. Nothing
    /// is as large as the world before this is known.
    fn numbers(&self, options: &Options) -> Result<(u32, u32), StartError> {
        let &Place { rank, world_size, .. } = self;
        let out_of_range = StartError::Rank { rank, world_size };
        let most = u32::MAX;
        let size = u32::try_from(world_size)
            .map_err(|_| RendezvousError::TooManyRanks { ranks: world_size, most })?;
        options.check(world_size).map_err(RendezvousError::from)?;
        match u32::try_from(rank) {
            Ok(rank) if rank < size => Ok((rank, size)),
            _ => Err(out_of_range),
        }
    }
}

/// This process's rank in its run. One request to the store: the token, which names the run where
/// its launcher did not. Of several hosts, one process of each makes another for each round of the
/// group's creation.
fn world(
    place: &Place,
    numbers: (u32, u32),
    store: Arc<dyn Store>,
    wait: &Wait,
) -> Result<Arc<World>, StartError> {
    let launched = place.run.launcher.as_deref().unwrap_or("unnamed");
    let prefix = format!("symmem/{launched}.{}", place.run.restart);
    let key = format!("{prefix}/token");
    let found = store.compare_set(&key, b"", Token::fresh()?.to_hex().as_bytes(), wait)?;
    let token = Token::from_hex(&found).ok_or(StartError::NoToken { key })?;
    let run = match &place.run.launcher {
        Some(id) => format!("{id}.{}", place.run.restart),
        None => run_name(&token),
    };
    let register = Arc::new(Register::default());
    let links = Arc::new(Links::new(register.clone())?);
    let store: Arc<dyn Store> = Arc::new(PrefixStore::new(store, prefix));
    let (announcing, asking) = (store.clone(), store.clone());
    let exchange: Arc<dyn Exchange> = match &place.on_host {
        None => {
            let on_lead = OnLead {
                announce: Arc::new(move || announce(&*announcing)),
                hosts: Arc::new(move || known_hosts(&*asking).unwrap_or_default()),
            };
            Arc::new(UnixExchange::new(run.clone(), 0, token, links.clone(), on_lead))
        }
        Some(on_host) => {
            let (rank, unit) = (numbers.0, on_host.unit(place.world_size)?);
            let door = Door::open(on_host.address, token.clone(), rank, links.clone())?;
            // Hosts know of each other by what their ranks say.
            let on_lead = OnLead { announce: Arc::new(|| {}), hosts: Arc::new(Vec::new) };
            let near = UnixExchange::new(run.clone(), 0, token, links.clone(), on_lead);
            // Those that the launcher counts together meet on one host, whatever that is called.
            let apart = || format!("{}, host {} of the launcher's", host_name(), on_host.node);
            let host = this_host().unwrap_or_else(apart);
            let (store, links) = (store.clone(), links.clone());
            Arc::new(HostsExchange::new(near, store, links, door, (rank, unit), host))
        }
    };
    Ok(Arc::new(World::new(run, numbers, false, exchange, register, links, store)))
}

/// A bound for what is only there to explain a failure.
const BRIEF: Wait = Wait::timeout(Duration::from_secs(2));

/// Lets other hosts know that ranks meet here, so that a meeting that fails can say so.
fn announce(store: &dyn Store) {
    let Some(host) = this_host() else { return };
    let told = store
        .add("hosts", 1, &BRIEF)
        .and_then(|n| store.set(&format!("hosts/{n}"), host.as_bytes(), &BRIEF));
    if let Err(e) = told {
        tracing::debug!(error = %e, "other hosts will not know of this one");
    }
}

fn known_hosts(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let count = store.add("hosts", 0, &BRIEF)?;
    let keys: Vec<String> = (1..=count.clamp(0, 64)).map(|n| format!("hosts/{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let found = store.multi_get(&keys, &BRIEF)?;
    let mut hosts: Vec<String> =
        found.iter().map(|h| String::from_utf8_lossy(h).into_owned()).collect();
    hosts.sort();
    hosts.dedup();
    Ok(hosts)
}

/// What decides whether processes can meet: host, boot, user, network namespace. `None` where that
/// cannot all be read: two halves of one host must not look like two hosts.
fn this_host() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!(
        "{} (boot {}, user {}, {})",
        host_name(),
        boot.trim(),
        rustix::process::geteuid().as_raw(),
        namespace.display(),
    ))
}
