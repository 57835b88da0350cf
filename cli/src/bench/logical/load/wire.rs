//! Many ranks on one thread: a connection for each, all watched by one epoll.
//!
//! A thread for each of ten thousand ranks would measure the scheduler. Requests are those of the
//! library's client, byte by byte, and for the plans of others those of PyTorch's: a get is a WAIT and a
//! GET. Each rank has one under way, and sends the next once it has checked the answer.

mod rank;

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use symmem::mem::store::tcp::wire::{Answer, Decoded, Gathered, Limits, Request, slots};

use super::connect::connect;
use super::station::Station;
use super::{GRACE, LoadError, sleep_until};
use crate::bench::logical::content::Round;
use crate::bench::logical::layout::Host;
use crate::bench::logical::messages::{Counts, Met, Plan, Told, Wave, cpu_seconds, now_ns};
use crate::descriptors;
use rank::{Naming, Rank, Step};

/// The most bytes read from a connection at a time.
const BLOCK: usize = 256 << 10;

/// Connected ranks of one process, and what they need to meet.
pub struct Load {
    station: Station,
    deadline: Duration,
    epoll: OwnedFd,
    ranks: Vec<Rank>,
    hosts: Vec<Meeting>,
    /// Requests that several ranks make, by group, from that of the first host on.
    requests: Vec<Requests>,
    first_group: u32,
    /// The token that the run has.
    token: Vec<u8>,
    /// Whether the deadline has passed.
    is_late: bool,
    /// Connections that have something to do yet.
    left: usize,
    out: Vec<u8>,
    met: Met,
}

/// A host whose ranks meet.
struct Meeting {
    host: Host,
    /// Where its leader is among the ranks.
    leader: usize,
    /// Its ranks that come.
    size: u32,
    /// Those of them that have no token yet.
    coming: u32,
}

/// What all ranks of a group ask, encoded once: what is measured is the store.
#[derive(Default)]
struct Requests {
    wait: [Vec<u8>; 2],
    fetch: [Vec<u8>; 2],
}

impl Load {
    /// Connects this process's ranks.
    pub fn connect(wave: Wave) -> Result<Self, LoadError> {
        let station = Station::new(&wave);
        let (mut numbers, mut hosts) = (Vec::new(), Vec::new());
        for host in wave.layout.share(wave.groups.clone(), wave.process, wave.processes) {
            let size = station.present(&host).count() as u32;
            let leader = numbers.len();
            numbers.extend(station.present(&host).map(|rank| (rank, hosts.len())));
            hosts.push(Meeting { host, leader, size, coming: size });
        }
        let connections = numbers.len();
        let needed = connections as u64 + descriptors::OWN;
        let limit = descriptors::raise(needed);
        if limit < needed {
            return Err(LoadError::Descriptors { connections, needed, limit });
        }
        let all: Vec<u32> = numbers.iter().map(|(rank, _)| *rank).collect();
        let (streams, ours) = connect(&all, wave.server, wave.process)?;
        if wave.plan == Plan::Gather && !ours && connections > 0 {
            let found = "its server has no GATHER: --plan keys is for others".to_owned();
            return Err(LoadError::Handshake { rank: all[0], server: wave.server, found });
        }
        let watch = |errno: Errno| LoadError::Watch(errno.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(watch)?;
        let mut ranks = Vec::with_capacity(connections);
        for ((rank, host), stream) in numbers.into_iter().zip(streams) {
            let data = EventData::new_u64(ranks.len() as u64);
            epoll::add(&epoll, &stream, data, EventFlags::IN).map_err(watch)?;
            ranks.push(Rank::new(stream, rank, host));
        }
        let mut load = Load {
            station,
            deadline: wave.deadline,
            epoll,
            left: ranks.len(),
            ranks,
            hosts,
            requests: Vec::new(),
            first_group: wave.groups.start,
            token: Vec::new(),
            is_late: false,
            out: Vec::new(),
            met: Met::default(),
        };
        if matches!(wave.plan, Plan::Keys | Plan::MultiGet) {
            load.requests = wave.groups.map(|group| load.encode_requests(group)).collect();
        }
        Ok(load)
    }

    fn encode_requests(&self, group: u32) -> Requests {
        let mut requests = Requests::default();
        for round in [Round::Records, Round::Votes] {
            let key = |slot| self.station.content.slot_key(round, group, slot);
            let keys: Vec<String> = (0..self.station.total(group)).map(key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            Request::Wait { keys: keys.clone() }.encode(&mut requests.wait[round as usize]);
            Request::MultiGet { keys }.encode(&mut requests.fetch[round as usize]);
        }
        requests
    }

    /// How many ranks are connected.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Lets all meet, from that moment on.
    pub fn meet(&mut self, at_ns: u64) -> Result<Met, LoadError> {
        sleep_until(at_ns);
        let before = cpu_seconds();
        let deadline = at_ns + self.deadline.as_nanos() as u64;
        for index in 0..self.ranks.len() {
            self.begin(index)?;
        }
        let mut block = vec![0; BLOCK];
        let mut events: Vec<Event> = Vec::with_capacity(1024);
        while self.left > 0 {
            let now = now_ns();
            if now >= deadline && !self.is_late {
                self.is_late = true;
                for index in 0..self.ranks.len() {
                    self.name_missing(index)?;
                }
            }
            let until = if self.is_late { deadline + GRACE.as_nanos() as u64 } else { deadline };
            if now >= until && self.is_late {
                return Err(self.silent());
            }
            events.clear();
            let timeout = timespec(until.saturating_sub(now));
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(LoadError::Watch(errno.into())),
            }
            for event in &events {
                let (index, ready) = (event.data.u64() as usize, event.flags);
                if ready.contains(EventFlags::OUT) {
                    self.flush(index)?;
                }
                if ready.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.read(index, &mut block)?;
                }
            }
        }
        self.met.finished_ns = now_ns();
        self.met.cpu_seconds = cpu_seconds() - before;
        self.met.counts =
            self.ranks.iter().map(|rank| rank.counts).fold(Counts::default(), |a, b| a + b);
        self.met.most_requests =
            self.ranks.iter().map(|rank| rank.counts.requests).max().unwrap_or(0);
        Ok(self.met.clone())
    }

    fn silent(&self) -> LoadError {
        let mut waiting = self.ranks.iter().filter(|rank| rank.step != Step::Ended);
        let (rank, state) =
            waiting.next().map_or((0, String::new()), |r| (r.rank, r.step.to_string()));
        let (others, deadline) = (waiting.count(), self.deadline);
        LoadError::Silent { rank, state, others, deadline, grace: GRACE }
    }

    /// The first request of a rank.
    fn begin(&mut self, index: usize) -> Result<(), LoadError> {
        let rank = self.ranks[index].rank;
        let content = self.station.content;
        match self.station.plan {
            plan @ (Plan::Gather | Plan::Keys) => {
                if plan == Plan::Gather {
                    // What changes something is numbered, so that a lost connection does not repeat it.
                    let session = u64::from(rank) << 32 | u64::from(std::process::id());
                    Request::Open { session }.encode(&mut self.out);
                }
                let (key, token) = (content.token_key(), content.token(rank));
                let (key, expected, desired) = (key.as_bytes(), &b""[..], token.as_bytes());
                self.ask(index, &Request::CompareSet { key, expected, desired });
                self.send(index, Step::Token)
            }
            Plan::Flat | Plan::MultiGet => {
                let (group, slot) = (self.group(index), self.station.slot(rank));
                let key = content.slot_key(Round::Records, group, slot);
                let mut value = Vec::with_capacity(content.length(Round::Records));
                content.put(Round::Records, rank, &mut value);
                self.ask(index, &Request::Set { key: key.as_bytes(), value: &value });
                match self.station.plan {
                    Plan::Flat => self.next_peer(index, 0),
                    _ => self.await_all(index, Round::Records),
                }
            }
        }
    }

    fn group(&self, index: usize) -> u32 {
        self.hosts[self.ranks[index].host].host.group
    }

    /// Waits for the next other rank's record, from that slot on.
    fn next_peer(&mut self, index: usize, from: u32) -> Result<(), LoadError> {
        let (group, own) = (self.group(index), self.station.slot(self.ranks[index].rank));
        let slot = if from == own { from + 1 } else { from };
        if slot >= self.station.total(group) {
            return self.send_last(index);
        }
        let key = self.station.content.slot_key(Round::Records, group, slot);
        self.ask(index, &Request::Wait { keys: vec![key.as_bytes()] });
        self.send(index, Step::PeerWait { slot })
    }

    fn await_all(&mut self, index: usize, round: Round) -> Result<(), LoadError> {
        let requests = &self.requests[(self.group(index) - self.first_group) as usize];
        self.out.extend_from_slice(&requests.wait[round as usize]);
        self.ranks[index].asked(Some(Answer::Wait));
        self.send(index, Step::Wait { round })
    }

    fn fetch_all(&mut self, index: usize, round: Round) -> Result<(), LoadError> {
        let group = self.group(index);
        let requests = &self.requests[(group - self.first_group) as usize];
        self.out.extend_from_slice(&requests.fetch[round as usize]);
        let count = self.station.total(group) as usize;
        self.ranks[index].asked(Some(Answer::Values { count }));
        self.send(index, Step::Fetch { round })
    }

    /// The leader of a host brings what its ranks have.
    fn bring(&mut self, index: usize, round: Round) -> Result<(), LoadError> {
        let host = self.hosts[self.ranks[index].host].host.clone();
        let group = host.group;
        let covered = self.station.slots(&host);
        if self.station.plan == Plan::Keys {
            let key = |slot: &u32| self.station.content.slot_key(round, group, *slot);
            let keys: Vec<String> = covered.iter().map(key).collect();
            let values = self.station.entries(round, &host);
            let entries = keys.iter().map(String::as_bytes).zip(values.iter().map(Vec::as_slice));
            if let ([key], [value]) = (&*keys, &*values) {
                // Where one key says all, who is there first stays.
                let (key, expected, desired) = (key.as_bytes(), &b""[..], &**value);
                self.ask(index, &Request::CompareSet { key, expected, desired });
                return self.send(index, Step::Claim { round });
            }
            self.ask(index, &Request::MultiSet { entries: entries.collect() });
            return self.await_all(index, round);
        }
        let covered: Vec<u8> = covered.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        let key = self.station.content.group_key(round, group);
        let (total, value) = (self.station.total(group), self.station.value(round, &host));
        let (key, slots, value) = (key.as_bytes(), &*covered, &*value);
        self.ask(index, &Request::Gather { key, total, slots, value });
        self.send(index, Step::Gather { round })
    }

    /// Puts a request in line for a rank.
    fn ask(&mut self, index: usize, request: &Request<'_>) {
        request.encode(&mut self.out);
        self.ranks[index].asked(request.answer());
    }

    /// Sends what is in line.
    fn send(&mut self, index: usize, step: Step) -> Result<(), LoadError> {
        let rank = &mut self.ranks[index];
        rank.step = step;
        let watch = rank.send(&self.out).map_err(|cause| rank.lost(cause))?;
        self.out.clear();
        if watch {
            self.watch(index, EventFlags::IN | EventFlags::OUT)?;
        }
        Ok(())
    }

    fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let rank = &mut self.ranks[index];
        if rank.flush().map_err(|cause| rank.lost(cause))? {
            self.watch(index, EventFlags::IN)?;
        }
        Ok(())
    }

    fn watch(&self, index: usize, events: EventFlags) -> Result<(), LoadError> {
        let data = EventData::new_u64(index as u64);
        epoll::modify(&self.epoll, &self.ranks[index].stream, data, events)
            .map_err(|errno| LoadError::Watch(errno.into()))
    }

    /// Reads what has come for a rank, and goes on with each whole answer.
    fn read(&mut self, index: usize, block: &mut [u8]) -> Result<(), LoadError> {
        let rank = &mut self.ranks[index];
        let n = match rank.stream.read(block) {
            Ok(0) => return Err(rank.lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => n,
            Err(error) if rank::is_later(&error) => return Ok(()),
            Err(cause) => return Err(rank.lost(cause)),
        };
        rank.counts.received += n as u64;
        if rank.input.is_empty() && rank.due.is_some() {
            let taken = self.take(index, &block[..n])?;
            self.ranks[index].input.extend_from_slice(&block[taken..n]);
        } else {
            rank.input.extend_from_slice(&block[..n]);
            if rank.input.len() >= rank.needed {
                let mut input = std::mem::take(&mut rank.input);
                let taken = self.take(index, &input)?;
                input.drain(..taken);
                self.ranks[index].input = input;
            }
        }
        let rank = &self.ranks[index];
        match rank.due {
            None if !rank.input.is_empty() => {
                Err(rank.answer(&format!("{} bytes that nobody asked for", rank.input.len())))
            }
            _ => Ok(()),
        }
    }

    /// Goes on with the whole answers at hand; returns how many bytes they took.
    fn take(&mut self, index: usize, bytes: &[u8]) -> Result<usize, LoadError> {
        let mut taken = 0;
        while let Some(due) = self.ranks[index].due
            && taken < bytes.len()
        {
            let rank = &mut self.ranks[index];
            match due.decode(&bytes[taken..], &Limits::DEFAULT) {
                Ok(Decoded::Whole { message, length }) => {
                    rank.due = None;
                    rank.needed = 0;
                    taken += length;
                    self.answered(index, message)?;
                }
                Ok(Decoded::Partial { needed }) => {
                    rank.needed = needed;
                    break;
                }
                Err(error) => return Err(rank.answer(&error.to_string())),
            }
        }
        Ok(taken)
    }

    fn answered(&mut self, index: usize, answer: &[u8]) -> Result<(), LoadError> {
        let group = self.group(index);
        match self.ranks[index].step.clone() {
            Step::Token => self.has_token(index, answer),
            Step::Claim { round } => {
                let host = &self.hosts[self.ranks[index].host].host;
                let own = self.station.entries(round, host);
                let well = strings(answer).eq(own.iter().map(Vec::as_slice));
                self.see(index, well, "its own claim")?;
                self.await_all(index, round)
            }
            Step::Wait { round } => self.fetch_all(index, round),
            Step::Fetch { round } => {
                let values = strings(answer);
                let well = match self.station.plan {
                    Plan::MultiGet => self.station.are_records(group, values),
                    _ => self.station.are_entries(round, group, values),
                };
                self.see(index, well, "what its group has set")?;
                self.has_all(index, round)
            }
            Step::PeerWait { slot } => {
                let key = self.station.content.slot_key(Round::Records, group, slot);
                self.ask(index, &Request::Get { key: key.as_bytes() });
                self.send(index, Step::PeerGet { slot })
            }
            Step::PeerGet { slot } => {
                let rank = self.station.rank_of(group, slot);
                let value = strings(answer).next().unwrap_or_default();
                let well = self.station.content.is(Round::Records, rank, value);
                self.see(index, well, "a peer's record")?;
                self.next_peer(index, slot + 1)
            }
            Step::Gather { round } => {
                self.check_gathered(index, round, answer)?;
                self.has_all(index, round)
            }
            Step::Naming(naming) => self.named(index, naming, answer),
            Step::Idle | Step::Held | Step::Ended => Ok(()),
        }
    }

    /// Whether an answer is what it must be.
    fn see(&self, index: usize, well: bool, what: &str) -> Result<(), LoadError> {
        if well { Ok(()) } else { Err(self.ranks[index].wrong(what)) }
    }

    fn check_gathered(&self, index: usize, round: Round, answer: &[u8]) -> Result<(), LoadError> {
        // After a status and a number, slots and value of each.
        let Some(&[0, ..]) = answer.get(..9) else {
            let said = match Answer::gathered(answer) {
                Some(Gathered::Fault(fault)) => fault.to_string(),
                other => format!("{other:?}"),
            };
            return Err(self.ranks[index].answer(&said));
        };
        let mut pieces = strings(&answer[9..]);
        let parts = std::iter::from_fn(|| Some((slots(pieces.next()?), pieces.next()?)));
        let well = self.station.are_parts(round, self.group(index), parts);
        self.see(index, well, "what its group has gathered")
    }

    /// A rank has the run's token. Once all of its host have, their leader speaks for them.
    fn has_token(&mut self, index: usize, answer: &[u8]) -> Result<(), LoadError> {
        let token = strings(answer).next().unwrap_or_default();
        if self.token.is_empty() {
            self.token = token.to_vec();
        }
        let well = self.token == token && self.station.content.is_token(token);
        self.see(index, well, "the run's token")?;
        let place = self.ranks[index].host;
        let meeting = &mut self.hosts[place];
        meeting.coming -= 1;
        let (leader, all) = (meeting.leader, meeting.coming == 0);
        if index == leader {
            self.ranks[index].step = Step::Held;
        } else {
            self.end(index);
        }
        if all { self.bring(leader, Round::Records) } else { Ok(()) }
    }

    /// A rank, or the leader of a host, has all of a round.
    fn has_all(&mut self, index: usize, round: Round) -> Result<(), LoadError> {
        if !self.station.plan.has_leaders() || round == Round::Votes {
            return self.send_last(index);
        }
        self.bring(index, Round::Votes)
    }

    /// Ends a rank that has everything, once it has sent what is still in line.
    fn send_last(&mut self, index: usize) -> Result<(), LoadError> {
        self.send(index, Step::Ended)?;
        self.met.complete += self.stands_for(index);
        self.left -= 1;
        Ok(())
    }

    /// How many ranks know what this one does.
    fn stands_for(&self, index: usize) -> u32 {
        let has_leaders = self.station.plan.has_leaders();
        if has_leaders { self.hosts[self.ranks[index].host].size } else { 1 }
    }

    fn end(&mut self, index: usize) {
        self.ranks[index].step = Step::Ended;
        self.left -= 1;
    }

    /// At the deadline: ends what a rank waits for, and asks what is missing.
    fn name_missing(&mut self, index: usize) -> Result<(), LoadError> {
        let group = self.group(index);
        let (round, asked): (Round, Vec<u32>) = match self.ranks[index].step {
            Step::Gather { .. } => {
                // Its own answer says it.
                self.ask(index, &Request::CancelWait);
                self.ranks[index].due = Some(Answer::Gathered);
                return self.send(index, Step::Naming(Naming::Gather));
            }
            Step::PeerWait { slot } => (Round::Records, vec![slot]),
            Step::Wait { round } => (round, (0..self.station.total(group)).collect()),
            _ => return Ok(()),
        };
        self.ask(index, &Request::CancelWait);
        for &slot in &asked {
            let key = self.station.content.slot_key(round, group, slot);
            self.ask(index, &Request::Check { keys: vec![key.as_bytes()] });
        }
        self.ranks[index].due = Some(Answer::CancelledWait);
        self.send(index, Step::Naming(Naming::Checks { asked, next: None, missing: Vec::new() }))
    }

    fn named(&mut self, index: usize, naming: Naming, answer: &[u8]) -> Result<(), LoadError> {
        let (then, due) = match naming {
            Naming::Gather => {
                let missing = match Answer::gathered(answer) {
                    Some(Gathered::Missing(missing)) => missing,
                    Some(Gathered::Complete(_)) => Vec::new(),
                    other => return Err(self.ranks[index].answer(&format!("{other:?}"))),
                };
                (Naming::Cancelled { missing }, Answer::Cancelled)
            }
            Naming::Cancelled { missing } => return self.tell(index, &missing),
            Naming::Checks { asked, next, mut missing } => {
                if let Some(next) = next
                    && !Answer::is_ready(answer)
                {
                    missing.push(asked[next]);
                }
                let next = next.map_or(0, |next| next + 1);
                if next == asked.len() {
                    return self.tell(index, &missing);
                }
                (Naming::Checks { asked, next: Some(next), missing }, Answer::Check)
            }
        };
        let rank = &mut self.ranks[index];
        rank.step = Step::Naming(then);
        rank.due = Some(due);
        Ok(())
    }

    /// A rank, or all of a host by their leader, know who is missing.
    fn tell(&mut self, index: usize, missing: &[u32]) -> Result<(), LoadError> {
        let (group, ranks) = (self.group(index), self.stands_for(index));
        let missing = missing.iter().map(|slot| self.station.rank_of(group, *slot)).collect();
        self.met.told.push(Told { ranks, missing, at_ns: now_ns() });
        self.end(index);
        Ok(())
    }
}

/// The byte strings that follow each other in an answer.
fn strings(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (string, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        Some(string)
    })
}

fn timespec(ns: u64) -> Timespec {
    // Not less than what is left: to wake up early would be to look again at once.
    let ns = ns.saturating_add(1);
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
