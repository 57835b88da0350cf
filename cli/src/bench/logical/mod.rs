//! `symmem bench rendezvous --logical-ranks`: what a rendezvous of very many ranks costs at its store.
//!
//! Does: has a few processes drive all ranks, each with a connection of its own to a real server, by the
//! requests of a plan; counts requests and bytes on both sides, and checks that every rank ends up with
//! what each of its group brought. Does not: anything that ranks do without the store: those of a host
//! meet at their leader over Unix sockets, all hosts at once, and here not at all.
//!
//! Choices:
//! - The load is the same for all plans and servers ([`load`]), so that ratios are of plans and servers.
//! - Processes begin at one moment, all connected; connecting is shown apart.
//! - Where descriptors do not suffice for all connections, groups meet in waves, and that is said.

mod children;
mod content;
mod head;
mod layout;
mod load;
mod messages;
mod report;
mod room;
mod running;

pub use layout::Layout;
pub use load::bench_load;
pub use messages::{Client, Plan};

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use children::{ChildError, cpu_seconds};
use messages::{Counts, Met, Order, Reply, Wave, now_ns};
use report::{Missing, Results, Row, Run, table};
use room::{NoRoom, Room};
use running::Running;

use super::{BenchError, ResultFile};
use crate::descriptors;

/// What connecting a wave may take: a server that looks up names takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

/// From the order to the start, so that every process is there.
const NOTICE: Duration = Duration::from_millis(20);

/// Descriptors that processes need beside those for ranks, generously.
const OWN: u64 = 64;

/// What is asked for.
#[derive(Debug)]
pub struct Logical {
    pub layouts: Vec<Layout>,
    pub plans: Vec<Plan>,
    /// Whether plans that the server does not know may be left out.
    pub is_any: bool,
    pub server: Option<SocketAddr>,
    pub server_pid: Option<u32>,
    pub processes: u32,
    /// Bytes of a record.
    pub record: usize,
    pub missing: Option<u32>,
    pub deadline: Duration,
    pub client: Client,
    pub runs: usize,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum LogicalError {
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(transparent)]
    Room(#[from] NoRoom),
    #[error(
        "no plan is left: {server} has no GATHER, and the library's client has no keys where there is: \
         take --plan flat, multi_get, {other}"
    )]
    NoPlan { server: String, other: &'static str },
    #[error(
        "clients counted {clients:?}, the server {server:?}: something else uses it, or a counter is wrong"
    )]
    Counts { clients: Counts, server: Counts },
    #[error("{open} connections are still there at the store, whose ranks have left")]
    Stay { open: u64 },
    #[error(
        "after the deadline of {:.3} s {late} ranks of {ranks} do not have everything; missing they say are ranks {missing:?}: allow more by --deadline",
        deadline.as_secs_f64()
    )]
    Late { late: u32, ranks: u32, missing: Vec<u32>, deadline: Duration },
    #[error(
        "rank {missing} is missing: {named} of the {others} others of its group named it alone, {complete} of the {rest} ranks of other groups met"
    )]
    NotNamed { missing: u32, named: u32, others: u32, complete: u32, rest: u32, deadline: Duration },
}

impl Logical {
    /// Measures, and shows what was found.
    pub fn bench(&self, json: Option<ResultFile>) -> Result<(), BenchError> {
        let plans = self.plans()?;
        let room = Room {
            descriptors: descriptors::most(),
            own: OWN,
            ports: self.server.and_then(room::ports),
            // When another's server has noticed that a wave has left is not known.
            waves: if self.server.is_some() { 2 } else { 1 },
            processes: self.processes,
            client: self.client,
        };
        let mut waves = Vec::new();
        for layout in &self.layouts {
            waves.push(layout.waves(room.groups(*layout).map_err(LogicalError::from)?));
        }
        self.header(&mut io::stdout().lock(), &plans, waves.iter().map(Vec::len).max())?;
        let mut rows = Vec::new();
        for (layout, waves) in self.layouts.iter().zip(&waves) {
            let mut runs = vec![Vec::new(); plans.len()];
            for turn in 0..self.runs {
                // Nobody is always the first, or always after the same.
                for index in 0..plans.len() {
                    let index = (index + turn) % plans.len();
                    runs[index].push(self.run(*layout, waves, plans[index])?);
                }
            }
            let row =
                |(plan, runs): (&Plan, &Vec<Run>)| self.row(*layout, waves.len(), *plan, runs);
            rows.extend(plans.iter().zip(&runs).filter_map(row));
        }
        table(&mut io::stdout().lock(), &rows)?;
        if let Some(file) = json {
            let results = Results { op: "rendezvous", rows };
            let text = serde_json::to_string_pretty(&results).map_err(io::Error::from);
            file.write(text.map(|text| text + "\n"))?;
        }
        Ok(())
    }

    /// The plans that server and client have.
    fn plans(&self) -> Result<Vec<Plan>, LogicalError> {
        let ours = match self.server {
            None => true,
            Some(server) => load::is_ours(server).map_err(|e| ChildError::Failed {
                name: "the store".into(),
                because: e.to_string(),
            })?,
        };
        let is_there = |plan: &Plan| match plan {
            Plan::Gather => ours,
            Plan::Keys => !(ours && self.client == Client::Library),
            Plan::Flat | Plan::MultiGet => true,
        };
        let plans: Vec<Plan> = self.plans.iter().copied().filter(is_there).collect();
        if plans.is_empty() || !self.is_any && plans.len() < self.plans.len() {
            let other = if ours { "gather" } else { "keys" };
            return Err(LogicalError::NoPlan { server: self.server_name(), other });
        }
        Ok(plans)
    }

    fn server_name(&self) -> String {
        self.server.map_or("own".to_owned(), |address| address.to_string())
    }

    fn row(&self, layout: Layout, waves: usize, plan: Plan, runs: &[Run]) -> Option<Row> {
        let median = Run::median(runs)?;
        let ranks = f64::from(layout.ranks - u32::from(self.missing.is_some()));
        Some(Row {
            logical_ranks: layout.ranks,
            group: layout.group,
            requests_per_rank: median.requests as f64 / ranks,
            most_requests: median.most_requests,
            bytes_per_rank: median.bytes as f64 / ranks,
            seconds: median.seconds,
            plan: plan.name(),
            per_host: layout.per_host,
            client: self.client.name(),
            server: self.server_name(),
            waves: waves as u32,
            connect_seconds: median.connect_seconds,
            server_cpu_seconds: median.server_cpu_seconds,
            load_cpu_seconds: median.load_cpu_seconds,
            runs: runs.iter().map(|run| run.seconds).collect(),
            // A run that is not ends it all.
            checked: true,
            missing: median.missing.clone(),
        })
    }

    /// One run of all ranks.
    fn run(
        &self,
        layout: Layout,
        waves: &[std::ops::Range<u32>],
        plan: Plan,
    ) -> Result<Run, LogicalError> {
        let most = waves.iter().map(|groups| layout.ranks_of(groups)).max().unwrap_or(0);
        let mut running = Running::start(self, most)?;
        let mut run = Run {
            requests: 0,
            most_requests: 0,
            bytes: 0,
            seconds: 0.0,
            connect_seconds: 0.0,
            server_cpu_seconds: Some(0.0),
            load_cpu_seconds: 0.0,
            missing: None,
        };
        // No other run, of this process or of others, has that number.
        let number = now_ns() << 16 | u64::from(std::process::id() & 0xFFFF);
        for groups in waves {
            let wave = Wave {
                server: running.address,
                plan,
                client: self.client,
                layout,
                groups: groups.clone(),
                run: number,
                record: self.record,
                missing: self.missing.filter(|rank| groups.contains(&layout.group_of(*rank))),
                deadline: self.deadline,
                process: 0,
                processes: self.processes,
            };
            self.meet(&mut running, &wave, &mut run)?;
            if waves.len() > 1 {
                running.leave()?;
            }
        }
        Ok(run)
    }

    /// Has the ranks of some groups meet, and adds what it took to a run.
    fn meet(&self, running: &mut Running, wave: &Wave, run: &mut Run) -> Result<(), LogicalError> {
        let connecting = Instant::now();
        let connected = |reply: &Reply| match reply {
            Reply::Connected { connections } => Some(*connections),
            _ => None,
        };
        let order = |process| Order::Connect(Wave { process, ..wave.clone() });
        let connections: u64 = running.each(order, PATIENCE, connected)?.iter().sum();
        run.connect_seconds += connecting.elapsed().as_secs_f64();
        let cpu = running.server_pid.and_then(cpu_seconds);
        let at_ns = now_ns() + NOTICE.as_nanos() as u64;
        let met = |reply: &Reply| match reply {
            Reply::Met(met) => Some(met.clone()),
            _ => None,
        };
        let all = running.each(|_| Order::Go { at_ns }, self.deadline + PATIENCE, met)?;
        let used =
            running.server_pid.and_then(cpu_seconds).zip(cpu).map(|(after, before)| after - before);
        let clients = all.iter().map(|met| met.counts).fold(Counts::default(), |a, b| a + b);
        running.clients = running.clients + Counts::handshakes(connections) + clients;
        running.agree()?;
        let last = all.iter().map(|met| met.finished_ns).max().unwrap_or(at_ns);
        run.seconds += seconds(at_ns, last);
        run.requests += clients.requests;
        run.bytes += clients.sent + clients.received;
        run.most_requests =
            all.iter().map(|met| met.most_requests).max().unwrap_or(0).max(run.most_requests);
        run.server_cpu_seconds = run.server_cpu_seconds.zip(used).map(|(sum, used)| sum + used);
        run.load_cpu_seconds += all.iter().map(|met| met.cpu_seconds).sum::<f64>();
        if let Some(missing) = self.verdict(wave, &all, at_ns)? {
            run.missing = Some(missing);
        }
        Ok(())
    }

    /// Whether everybody has everything; where a rank was left out, everybody but its group, who name it.
    fn verdict(
        &self,
        wave: &Wave,
        all: &[Met],
        at_ns: u64,
    ) -> Result<Option<Missing>, LogicalError> {
        let layout = wave.layout;
        let ranks = layout.ranks_of(&wave.groups);
        let complete: u32 = all.iter().map(|met| met.complete).sum();
        let told = || all.iter().flat_map(|met| &met.told);
        let Some(rank) = wave.missing else {
            if complete == ranks {
                return Ok(None);
            }
            let mut missing: Vec<u32> = told().flat_map(|told| &told.missing).copied().collect();
            missing.sort_unstable();
            missing.dedup();
            missing.truncate(16);
            let (late, deadline) = (ranks - complete, self.deadline);
            return Err(LogicalError::Late { late, ranks, missing, deadline });
        };
        let others = layout.members(layout.group_of(rank)).len() as u32 - 1;
        let rest = ranks - others - 1;
        let named = told().filter(|told| told.missing == [rank]).map(|told| told.ranks).sum();
        if named != others || complete != rest {
            let (missing, deadline) = (rank, self.deadline);
            return Err(LogicalError::NotNamed {
                missing,
                named,
                others,
                complete,
                rest,
                deadline,
            });
        }
        let times = || told().map(|told| told.at_ns);
        Ok(Some(Missing {
            rank,
            named_by: named,
            first_seconds: seconds(at_ns, times().min().unwrap_or(at_ns)),
            last_seconds: seconds(at_ns, times().max().unwrap_or(at_ns)),
            deadline_seconds: self.deadline.as_secs_f64(),
        }))
    }
}

fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}
