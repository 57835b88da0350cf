//! The command line of `symmem bench rendezvous`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use symmem::hal::types::Bytes;
use symmem::mem::store::tcp::wire::Limits;

use super::{ArgsError, Common};
use crate::bench::logical::{Client, Layout, Logical, Plan};
use crate::bench::operation::Rendezvous;
use crate::parse::{memory, seconds, size};

/// Arguments of `symmem bench rendezvous`.
#[derive(Debug, clap::Args)]
pub struct RendezvousArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Bytes of each rank's memory
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = size)]
    bytes: Bytes,
    #[command(flatten)]
    logical: LogicalArgs,
}

/// Ranks that only meet at a store, so that there can be many.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Logical ranks")]
struct LogicalArgs {
    /// So many ranks, driven by a few processes, meet at a store over real connections, and do nothing
    /// else: what the store costs them. Each number is a row
    #[arg(long, value_name = "N[,N..]", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=MOST_LOGICAL),
        conflicts_with_all = ["ranks", "threads", "backend", "one_device", "bytes", "budget", "batch"])]
    logical_ranks: Vec<u32>,
    /// Ranks of a group: those that are to know each other
    #[arg(long, value_name = "N", default_value_t = 72, requires = "logical_ranks",
        value_parser = clap::value_parser!(u32).range(1..=1 << 17))]
    group: u32,
    /// Ranks of a host, of which one speaks for all
    #[arg(long, value_name = "N", default_value_t = 8, requires = "logical_ranks",
        value_parser = clap::value_parser!(u32).range(1..))]
    per_host: u32,
    /// How they come to know each other; `all` is every plan that the server knows
    #[arg(long, value_name = "PLAN[,PLAN..]", value_delimiter = ',', default_value = "all",
        requires = "logical_ranks", value_parser = plan)]
    plan: Vec<Plans>,
    /// A store that is there already; else one in a process for itself
    #[arg(long, value_name = "HOST:PORT", requires = "logical_ranks", value_parser = address)]
    server: Option<SocketAddr>,
    /// That store's process, to say what it used of processors
    #[arg(long, value_name = "PID", requires = "server")]
    server_pid: Option<u32>,
    /// Processes that drive the ranks
    #[arg(long, value_name = "N", default_value_t = 2, requires = "logical_ranks",
        value_parser = clap::value_parser!(u32).range(1..=256))]
    processes: u32,
    /// Bytes of each rank's record
    #[arg(long, value_name = "SIZE", default_value = "200", requires = "logical_ranks", value_parser = memory)]
    record: usize,
    /// This rank does not come; the others of its group name it
    #[arg(long, value_name = "RANK", requires = "logical_ranks")]
    missing: Option<u32>,
    /// How long all may take
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "logical_ranks", value_parser = seconds)]
    deadline: Duration,
    /// What speaks to the store
    #[arg(long, value_enum, default_value_t = Client::Wire, requires = "logical_ranks")]
    client: Client,
}

/// More do not fit in the low half of a session's number, nor in any machine.
const MOST_LOGICAL: i64 = 1 << 24;

/// One plan, or all.
#[derive(Clone, Copy, Debug)]
enum Plans {
    All,
    One(Plan),
}

impl RendezvousArgs {
    /// The operation on memory, if it makes sense.
    pub fn operation(&self) -> Result<Rendezvous, ArgsError> {
        if !self.logical.logical_ranks.is_empty() {
            return Err(ArgsError::Logical);
        }
        if self.bytes.get() < 8 {
            return Err(ArgsError::LessThanWord(self.bytes));
        }
        Ok(Rendezvous { bytes: self.bytes, pace: self.common.pace() })
    }

    /// The benchmark of logical ranks, where it is asked for and makes sense.
    pub fn logical(&self) -> Result<Option<Logical>, ArgsError> {
        let args = &self.logical;
        let Some(&fewest) = args.logical_ranks.iter().min() else { return Ok(None) };
        if args.per_host > args.group {
            return Err(ArgsError::PerHost { per_host: args.per_host, group: args.group });
        }
        if let Some(rank) = args.missing.filter(|rank| *rank >= fewest) {
            return Err(ArgsError::Missing { rank, ranks: fewest });
        }
        if args.missing.is_some() && args.group.min(fewest) < 2 {
            return Err(ArgsError::NobodyLeft);
        }
        // What is largest: all of a group in an answer, all of a host in a value.
        let limits = Limits::DEFAULT;
        let (group, per_host) = (args.group as usize, args.per_host as usize);
        let most = ((limits.answer / group).min(limits.value / per_host)).saturating_sub(64);
        if args.record == 0 || args.record > most {
            return Err(ArgsError::Record { record: args.record, most });
        }
        let asks_all = args.plan.iter().any(|plan| matches!(plan, Plans::All));
        let asked = |plan: &Plan| {
            asks_all || args.plan.iter().any(|p| matches!(p, Plans::One(one) if one == plan))
        };
        Ok(Some(Logical {
            layouts: args
                .logical_ranks
                .iter()
                .map(|&ranks| Layout { ranks, group: args.group, per_host: args.per_host })
                .collect(),
            plans: Plan::ALL.into_iter().filter(asked).collect(),
            is_any: asks_all,
            server: args.server,
            server_pid: args.server_pid,
            processes: args.processes,
            record: args.record,
            missing: args.missing,
            deadline: args.deadline,
            client: args.client,
            runs: self.common.iterations.unwrap_or(if args.missing.is_some() { 1 } else { 3 }),
        }))
    }
}

fn plan(text: &str) -> Result<Plans, String> {
    if text == "all" {
        return Ok(Plans::All);
    }
    let named = Plan::ALL.into_iter().find(|plan| plan.name() == text);
    named.map(Plans::One).ok_or_else(|| {
        let names = Plan::ALL.map(Plan::name).join(", ");
        format!("there is no plan {text:?}: there are {names} and all")
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map_err(|error| format!("{text:?}: {error}"))?.next();
    found.ok_or_else(|| format!("{text:?} is no address"))
}
