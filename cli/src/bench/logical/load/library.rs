//! The library's own client: a thread for each rank that speaks to the store.

use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use symmem::mem::store::tcp::TcpStore;
use symmem::mem::store::{Contribution, Missing, Part, Store, StoreError};
use symmem::prelude::*;

use super::station::Station;
use super::{GRACE, LoadError, sleep_until};
use crate::bench::logical::content::Round;
use crate::bench::logical::layout::Host;
use crate::bench::logical::messages::{Counts, Met, Plan, Told, Wave, cpu_seconds, now_ns};
use crate::descriptors;

/// Of a rank's thread.
const STACK: usize = 256 << 10;

/// Threads that wait, connected, for the start.
pub struct Load {
    start: Arc<Start>,
    ranks: Vec<(u32, JoinHandle<Result<Outcome, LoadError>>)>,
}

/// When to begin; never, where the ranks are not to meet.
#[derive(Default)]
struct Start {
    at: Mutex<Option<Option<u64>>>,
    told: Condvar,
}

impl Start {
    fn tell(&self, at: Option<u64>) {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(at);
        self.told.notify_all();
    }

    fn wait(&self) -> Option<u64> {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *at {
                Some(at) => return at,
                None => at = self.told.wait(at).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// What a rank came to.
#[derive(Default)]
struct Outcome {
    finished_ns: u64,
    /// Ranks that have everything by it.
    complete: u32,
    told: Option<Told>,
    counts: Counts,
}

/// One rank of a host.
struct Rank {
    station: Station,
    host: Host,
    rank: u32,
    store: TcpStore,
    /// Where the ranks of its host meet.
    local: Arc<Barrier>,
    deadline: Duration,
}

impl Load {
    /// Connects this process's ranks.
    pub fn connect(wave: Wave) -> Result<Self, LoadError> {
        let station = Station::new(&wave);
        let hosts = || wave.layout.share(wave.groups.clone(), wave.process, wave.processes);
        let connections: usize = hosts().map(|host| station.present(&host).count()).sum();
        let needed = wave.client.descriptors() * connections as u64 + descriptors::OWN;
        let limit = descriptors::raise(needed);
        if limit < needed {
            return Err(LoadError::Descriptors { connections, needed, limit });
        }
        let (server, deadline) = (wave.server, wave.deadline);
        let mut load = Load { start: Arc::default(), ranks: Vec::with_capacity(connections) };
        for host in hosts() {
            let local = Arc::new(Barrier::new(station.present(&host).count()));
            for rank in station.present(&host) {
                let store = TcpStore::connect(
                    &server.ip().to_string(),
                    server.port(),
                    &Wait::timeout(GRACE),
                )
                .map_err(|e| LoadError::LibraryConnect { rank, cause: e.into() })?;
                let (host, local, start) = (host.clone(), local.clone(), load.start.clone());
                let rank = Rank { station, host, rank, store, local, deadline };
                let number = rank.rank;
                let thread = thread::Builder::new()
                    .stack_size(STACK)
                    .spawn(move || start.wait().map_or(Ok(Outcome::default()), |at| rank.run(at)))
                    .map_err(|cause| LoadError::Thread { rank: number, cause })?;
                load.ranks.push((number, thread));
            }
        }
        Ok(load)
    }

    /// How many ranks are connected.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Lets all meet, from that moment on.
    pub fn meet(&mut self, at_ns: u64) -> Result<Met, LoadError> {
        let before = cpu_seconds();
        self.start.tell(Some(at_ns));
        let mut met = Met::default();
        for (rank, thread) in self.ranks.drain(..) {
            let outcome = thread.join().map_err(|_| LoadError::Panicked { rank })??;
            met.finished_ns = met.finished_ns.max(outcome.finished_ns);
            met.complete += outcome.complete;
            met.told.extend(outcome.told);
            met.counts = met.counts + outcome.counts;
            met.most_requests = met.most_requests.max(outcome.counts.requests);
        }
        met.cpu_seconds = cpu_seconds() - before;
        Ok(met)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Those that were never to begin end.
        self.start.tell(None);
        for (_, thread) in self.ranks.drain(..) {
            // What it has to say nobody asked for.
            let _ = thread.join();
        }
    }
}

impl Rank {
    fn run(self, at_ns: u64) -> Result<Outcome, LoadError> {
        sleep_until(at_ns);
        let wait = Wait::timeout(self.deadline).begun();
        let is_leader = self.station.present(&self.host).next() == Some(self.rank);
        let (stands_for, met) = match self.station.plan {
            Plan::Flat => (1, self.flat(&wait)),
            Plan::MultiGet => (1, self.multi_get(&wait)),
            Plan::Gather | Plan::Keys => {
                let token = self.token(&wait);
                // Whatever came of it: the others would wait for this rank.
                self.local.wait();
                let led = |()| self.lead(&wait);
                let size = self.station.present(&self.host).count() as u32;
                if is_leader { (size, token.and_then(led)) } else { (0, token) }
            }
        };
        let finished_ns = now_ns();
        let traffic = self.store.traffic();
        let counts =
            Counts { requests: traffic.requests, sent: traffic.sent, received: traffic.received };
        let mut outcome = Outcome { finished_ns, counts, ..Outcome::default() };
        match met {
            Ok(()) => outcome.complete = stands_for,
            Err(error) => {
                let missing = self.missing(error)?;
                outcome.told = Some(Told { ranks: stands_for, missing, at_ns: finished_ns });
            }
        }
        Ok(outcome)
    }

    fn library(&self, cause: StoreError) -> LoadError {
        LoadError::Library { rank: self.rank, cause: cause.into() }
    }

    /// The ranks that a call that ran out of time names.
    fn missing(&self, error: LoadError) -> Result<Vec<u32>, LoadError> {
        let LoadError::Library { rank, cause } = error else { return Err(error) };
        let group = self.host.group;
        let key = |slot: &u32| self.station.content.slot_key(Round::Records, group, *slot);
        let slots: Vec<u32> = match &*cause {
            StoreError::TimedOut { missing: Missing::Slots { slots, .. }, .. } => slots.to_vec(),
            StoreError::TimedOut { missing: Missing::Keys(keys), .. } => {
                let all = 0..self.station.total(group);
                all.filter(|slot| keys.contains(&key(slot))).collect()
            }
            _ => return Err(LoadError::Library { rank, cause }),
        };
        Ok(slots.iter().map(|slot| self.station.rank_of(group, *slot)).collect())
    }

    fn wrong(&self, state: &str, what: &str) -> LoadError {
        LoadError::Wrong { rank: self.rank, state: state.to_owned(), what: what.to_owned() }
    }

    fn token(&self, wait: &Wait) -> Result<(), LoadError> {
        let content = self.station.content;
        let (key, own) = (content.token_key(), content.token(self.rank));
        let found = self.store.compare_set(&key, b"", own.as_bytes(), wait);
        let found = found.map_err(|cause| self.library(cause))?;
        let well = content.is_token(&found);
        if well { Ok(()) } else { Err(self.wrong("awaits the run's token", "the run's token")) }
    }

    /// The leader's part: records, then votes.
    fn lead(&self, wait: &Wait) -> Result<(), LoadError> {
        let (station, group) = (&self.station, self.host.group);
        let slots = station.slots(&self.host);
        for round in [Round::Records, Round::Votes] {
            let (key, value) =
                (station.content.group_key(round, group), station.value(round, &self.host));
            let mine = Contribution::new(&slots, station.total(group), &value);
            let parts: Vec<Part> =
                self.store.gather(&key, &mine, wait).map_err(|cause| self.library(cause))?;
            let parts =
                parts.iter().map(|part| (part.slots.iter().copied(), part.value.as_slice()));
            if !station.are_parts(round, group, parts) {
                return Err(self.wrong("gathers", "what its group has gathered"));
            }
        }
        Ok(())
    }

    /// Sets the own record; returns the keys of the group's.
    fn set(&self, wait: &Wait) -> Result<Vec<String>, LoadError> {
        let (content, group) = (self.station.content, self.host.group);
        let key = |slot| content.slot_key(Round::Records, group, slot);
        let mut value = Vec::new();
        content.put(Round::Records, self.rank, &mut value);
        let own = key(self.station.slot(self.rank));
        self.store.set(&own, &value, wait).map_err(|cause| self.library(cause))?;
        Ok((0..self.station.total(group)).map(key).collect())
    }

    fn flat(&self, wait: &Wait) -> Result<(), LoadError> {
        let keys = self.set(wait)?;
        for (slot, key) in keys.iter().enumerate() {
            let rank = self.station.rank_of(self.host.group, slot as u32);
            if rank == self.rank {
                continue;
            }
            let value = self.store.get(key, wait).map_err(|cause| self.library(cause))?;
            if !self.station.content.is(Round::Records, rank, &value) {
                return Err(self.wrong("fetches a peer's record", "a peer's record"));
            }
        }
        Ok(())
    }

    fn multi_get(&self, wait: &Wait) -> Result<(), LoadError> {
        let keys = self.set(wait)?;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let values = self.store.multi_get(&keys, wait).map_err(|cause| self.library(cause))?;
        if !self.station.are_records(self.host.group, values.iter().map(Vec::as_slice)) {
            return Err(self.wrong("fetches its group's records", "what its group has set"));
        }
        Ok(())
    }
}
