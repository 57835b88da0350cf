//! Meeting of ranks that are processes of several hosts.
//!
//! The members of a host meet as those of a run on one host do, one of them speaks for all at the
//! store, and tells the others what it heard there. So a round costs one request to the store a host,
//! whatever the number of its ranks.
//!
//! Who is on which host is found in the first round of all ranks. Launchers say how many ranks they
//! started on a host, so those meet by their local ranks; who has the same boot, network namespace and
//! user is on one host, even where a launcher started it as two. From then on a round of ranks of one
//! host is theirs alone.
//!
//! A member that dies or gives up where its host meets is told to the other hosts at the store, and
//! names itself to them; a host that is cut off is named when the bound of the first to wait is over.
//! Where the one who speaks for a host is seen to die, the next one says the same in its place.
//!
//! Rounds are numbered at the store. Who comes to one that is over, since the others have given it up, goes to
//! the next one, as on one host: so all meet again, however many rounds a host has missed, and a group that is
//! made again meets behind the rounds of the first.

mod consult;
mod map;
mod says;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use symmem_hal::Wait;

use super::door::Door;
use super::unix::UnixExchange;
use super::{Exchange, ExchangeError, Handle, Part, Round, RoundKey};
use crate::liveness::links::Links;
use crate::store::Store;
use consult::Consultation;
use map::{Map, Whereabouts};
use says::{Outcome, Says, Word};

#[cfg(any(test, fuzzing))]
pub(crate) use says::{fuzz, seeds};

/// Parts of a round: members of a host bring theirs; where they are known, or by what the launcher counts.
const BRING: u32 = 1;
const COUNTED: u32 = 1 << 31;
/// More parts than a round ever has for a host.
const NODE_SHIFT: u32 = 12;
/// They bring what only they can use, once they know each other.
const BESIDE: u32 = 2;
/// One tells the others what it heard, in so many frames.
const TELL: u32 = 3;

/// Of what is told, as much as fits in a frame beside what else is in it.
const FRAME: usize = 64 << 10;

/// How much longer the members of a host wait for what is told than those who tell it may take.
const BEHIND: Duration = Duration::from_secs(3);

/// How long a round's outcome is asked for again, which is there unless the store is not.
const AGAIN: Duration = Duration::from_secs(2);

/// How long who tells waits for those of its host, who are there unless they were stopped or have given
/// up: where all is well, and where it is not.
const TELLING: Duration = Duration::from_secs(10);
const TELLING_TROUBLE: Duration = Duration::from_secs(1);

/// What a launcher says of a process's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The process's index among those that the launcher started there.
    pub local_rank: u32,
    /// How many it started there.
    pub local_size: u32,
    /// Which of its hosts that is, where it counts them.
    pub node: u32,
}

/// One process's way to the ranks of all hosts.
#[derive(Debug)]
pub(crate) struct HostsExchange {
    near: Arc<dyn Exchange>,
    store: Arc<dyn Store>,
    links: Arc<Links>,
    door: Arc<Door>,
    unit: Unit,
    rank: u32,
    /// What tells this process's host from others.
    host: String,
    map: Arc<Map>,
    /// How many rounds each group, in its generation, has had at the store.
    counts: Mutex<HashMap<(u64, u32), u64>>,
}

/// What of a round's members is on this host.
struct Here {
    /// Their indices among the round's members, in order; not known before the first round.
    indices: Option<Vec<u32>>,
    /// As they meet.
    numbers: Vec<u32>,
    me: usize,
    part: u32,
}

impl HostsExchange {
    pub(crate) fn new(
        near: UnixExchange,
        store: Arc<dyn Store>,
        links: Arc<Links>,
        door: Door,
        (rank, unit): (u32, Unit),
        host: String,
    ) -> Self {
        HostsExchange {
            near: Arc::new(near),
            store,
            links,
            door: Arc::new(door),
            unit,
            rank,
            host,
            map: Arc::default(),
            counts: Mutex::default(),
        }
    }

    /// Who of the members is on this host; `None` if all are.
    fn here(&self, members: &[u32], me: usize) -> Option<Here> {
        let Some(places) = self.map.of(members) else {
            let Unit { local_rank, local_size, node } = self.unit;
            return Some(Here {
                indices: None,
                numbers: (0..local_size).collect(),
                me: local_rank as usize,
                part: COUNTED.wrapping_add(node << NODE_SHIFT),
            });
        };
        let near = (0u32..).zip(&places).filter(|(_, place)| place.host == self.host);
        let indices: Vec<u32> = near.map(|(index, _)| index).collect();
        if indices.len() == members.len() {
            return None;
        }
        Some(Here {
            numbers: indices.iter().map(|index| members[*index as usize]).collect(),
            me: indices.iter().position(|index| *index as usize == me)?,
            indices: Some(indices),
            part: 0,
        })
    }

    fn across(
        &self,
        round: Round<'_>,
        here: &Here,
        wait: &Wait,
    ) -> Result<Vec<Part>, ExchangeError> {
        let of_group = (round.key.group, round.key.generation);
        let mut count = self.counts.lock().get(&of_group).copied().unwrap_or_default();
        let mine = Word::new(
            count,
            (round.me as u32, self.rank),
            (self.host.clone(), self.door.address()),
            &round.part,
        );
        let Round { key, members, me, part, .. } = round;
        let meeting = Meeting { exchange: self, key, members, here, wait };
        // Handles go to those of whom it is known that they are here.
        let (handles, later) = if here.indices.is_some() {
            (part.handles, None)
        } else {
            (Vec::new(), Some(part.handles))
        };
        let brought = meeting.bring(mine, handles);
        count = brought.as_ref().map_or(count, |b| b.count.max(count));
        let outcome = match brought {
            Ok(Brought { words, places, near, .. }) => {
                meeting.hear(&mut count, words, &places).map(|words| (words, near))
            }
            Err(error) => Err(meeting.give_up(&mut count, me as u32, error)),
        };
        self.counts.lock().insert(of_group, count + 1);
        let (words, mut near) = outcome?;
        let places = words
            .iter()
            .map(|word| (word.rank, Whereabouts { host: word.host.clone(), door: word.door }));
        self.map.add(places);
        if let Some(handles) = later {
            near = self.beside(key, members, me, handles, wait)?;
        }
        self.reach(&words, wait)?;
        let garbled = |rank: u32| {
            ExchangeError::Refused(format!("what rank {rank} sent has handles that cannot travel"))
        };
        let far = |word: Word| {
            let rank = word.index;
            word.into_part().ok_or_else(|| garbled(rank))
        };
        words
            .into_iter()
            .map(|word| match near.remove(&word.index) {
                Some(part) => Ok(Part { payload: word.payload, ..part }),
                None => far(word),
            })
            .collect()
    }

    /// Gives the members on this host what only they can use. Links them.
    fn beside(
        &self,
        key: RoundKey,
        members: &[u32],
        me: usize,
        handles: Vec<Handle>,
        wait: &Wait,
    ) -> Result<HashMap<u32, Part>, ExchangeError> {
        let near = (0u32..).zip(members).filter(|(_, member)| self.is_near(**member));
        let (indices, numbers): (Vec<u32>, Vec<u32>) = near.map(|(i, m)| (i, *m)).unzip();
        let place = indices.iter().position(|index| *index as usize == me).unwrap_or_default();
        let part = Part { handles, ..Part::default() };
        if indices.len() == 1 {
            return Ok(HashMap::from([(indices[0], part)]));
        }
        let key = RoundKey { part: BESIDE, ..key };
        let round = Round { key, members: &numbers, me: place, links: true, part };
        let parts = self.near.gather(round, wait).map_err(|error| of_members(error, &indices))?;
        Ok(indices.into_iter().zip(parts).collect())
    }

    /// Links this process and those of other hosts among the words' that it has no link to: the higher
    /// rank goes to the lower one's door.
    fn reach(&self, words: &[Word], wait: &Wait) -> Result<(), ExchangeError> {
        let is_apart = |word: &&Word| word.host != self.host && !self.links.has_met(word.rank);
        let apart = words.iter().filter(is_apart);
        let (mut to, from): (Vec<&Word>, Vec<&Word>) =
            apart.partition(|word| word.rank < self.rank);
        // Not all at one door at once.
        let first = self.rank as usize % to.len().max(1);
        to.rotate_left(first);
        for word in to {
            self.door.knock(word.rank, word.door, wait).map_err(|reason| {
                ExchangeError::Unreachable { rank: word.index, address: word.door, reason }
            })?;
        }
        for word in from {
            if !self.door.await_peer(word.rank, wait) {
                let (missing, allowed) = (vec![word.index], wait.duration());
                return Err(ExchangeError::Missing { missing, allowed, hosts: Vec::new() });
            }
        }
        Ok(())
    }
}

impl Exchange for HostsExchange {
    fn gather(&self, round: Round<'_>, wait: &Wait) -> Result<Vec<Part>, ExchangeError> {
        let wait = &wait.begun();
        match self.here(round.members, round.me) {
            None => self.near.gather(round, wait),
            Some(here) => self.across(round, &here, wait),
        }
    }

    fn is_near(&self, global: u32) -> bool {
        self.map.is_on(global, &self.host).unwrap_or(true)
    }

    fn has_hosts(&self) -> bool {
        true
    }

    fn succeed(&self, root: u64, generation: u32) -> Arc<dyn Exchange> {
        Arc::new(HostsExchange {
            near: self.near.succeed(root, generation),
            store: self.store.clone(),
            links: self.links.clone(),
            door: self.door.clone(),
            unit: self.unit,
            rank: self.rank,
            host: self.host.clone(),
            map: self.map.clone(),
            counts: Mutex::default(),
        })
    }
}

/// What the members of a host have brought each other.
struct Brought {
    /// In group order.
    words: Vec<Word>,
    /// Where each word's member is among those who met.
    places: Vec<usize>,
    /// What came beside, by group index.
    near: HashMap<u32, Part>,
    /// The highest of their counts.
    count: u64,
}

/// What one told the others, in frames.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// Whether there is another frame.
    more: bool,
    bytes: Vec<u8>,
}

/// One round of several hosts, on this one.
struct Meeting<'a> {
    exchange: &'a HostsExchange,
    key: RoundKey,
    members: &'a [u32],
    here: &'a Here,
    wait: &'a Wait,
}

impl Meeting<'_> {
    /// The members of this host bring their words.
    fn bring(&self, mine: Word, handles: Vec<Handle>) -> Result<Brought, ExchangeError> {
        let known = self.here.indices.is_some();
        // Ends early enough for the other hosts to hear of it within their own bounds.
        let left = self.left();
        let wait = self.bounded(left - (left / 8).min(Duration::from_secs(2)));
        let payload =
            postcard::to_stdvec(&mine).map_err(|error| ExchangeError::system("encode", error))?;
        let part = Part { payload, handles, fabric: Vec::new() };
        let parts = self.near(BRING, known, part, &wait)?;
        let mut words: Vec<(Word, usize)> = Vec::new();
        let mut near = HashMap::new();
        for (place, part) in parts.into_iter().enumerate() {
            let word: Word = postcard::from_bytes(&part.payload).map_err(|_| {
                ExchangeError::Refused("a rank of this host sent no word".to_owned())
            })?;
            let is_its = self.members.get(word.index as usize) == Some(&word.rank)
                && self.here.indices.as_ref().is_none_or(|known| known[place] == word.index);
            if !is_its || words.iter().any(|(known, _)| known.index == word.index) {
                return Err(ExchangeError::Claimed { rank: word.rank });
            }
            near.insert(word.index, Part { payload: Vec::new(), ..part });
            words.push((word, place));
        }
        let count = words.iter().map(|(word, _)| word.count).max().unwrap_or_default();
        words.sort_unstable_by_key(|(word, _)| word.index);
        // The same from whoever says it.
        words.iter_mut().for_each(|(word, _)| word.count = count);
        let (words, places) = words.into_iter().unzip();
        Ok(Brought { words, places, near, count })
    }

    /// What all hosts said: from the store, on the member that speaks for this one, or from that member.
    fn hear(&self, count: &mut u64, words: Vec<Word>, places: &[usize]) -> Outcome {
        let slots: Vec<u32> = words.iter().map(|word| word.index).collect();
        let says = Says::All(words);
        let mut speaker = 0;
        loop {
            // The first of the group, however members are numbered here.
            if places[speaker] == self.here.me {
                let outcome = self.speak(count, &slots, &says, self.wait);
                self.tell(&(*count, outcome.clone()))?;
                return outcome;
            }
            match self.listen(places[speaker]) {
                // The next one says the same in its place.
                Err(ExchangeError::Lost { rank })
                    if rank as usize == places[speaker] && speaker + 1 < places.len() =>
                {
                    speaker += 1;
                }
                // Told while this process was stopped, say: the store tells it again.
                Err(ExchangeError::Missing { .. }) => {
                    return self.speak(count, &slots, &says, &Wait::timeout(AGAIN));
                }
                Err(ExchangeError::Cancelled) => {
                    // Who speaks for this host is where nobody here can reach it.
                    self.consult(*count, |at| at.call_off(&slots, &ExchangeError::Cancelled));
                    return Err(ExchangeError::Cancelled);
                }
                Err(error) => {
                    let mut indices = vec![u32::MAX; places.len()];
                    places.iter().zip(&slots).for_each(|(place, slot)| indices[*place] = *slot);
                    return Err(self.of_members(error, &indices));
                }
                Ok((at, outcome)) => {
                    *count = at;
                    return outcome.map_err(|error| error.with_allowed(self.wait.duration()));
                }
            }
        }
    }

    /// Says what this host's members do, and reads what all say. A round that was over before is one that the
    /// others have given up, or one of an earlier group of this name: the next one is this host's.
    fn speak(&self, count: &mut u64, slots: &[u32], says: &Says, wait: &Wait) -> Outcome {
        let bound = wait.begun();
        let deadline = bound.deadline();
        loop {
            let heard = self.consult(*count, |at| at.gather(slots, says, &bound));
            match heard {
                Err(ExchangeError::Late { .. }) if Instant::now() < deadline => *count += 1,
                heard => {
                    let allowed = self.wait.duration();
                    return heard
                        .and_then(|parts| says::read(&parts, self.members))
                        .map_err(|error| error.with_allowed(allowed));
                }
            }
        }
    }

    /// At the round of this number, at the store.
    fn consult<T>(&self, count: u64, act: impl FnOnce(&Consultation<'_>) -> T) -> T {
        let exchange = self.exchange;
        let key = format!("meet/{:016x}.{}/{count}", self.key.group, self.key.generation);
        let hosts = self.here.indices.as_ref().and_then(|_| exchange.map.hosts(self.members));
        let lost = |index: u32| exchange.links.lost_order(*self.members.get(index as usize)?);
        act(&Consultation {
            store: &*exchange.store,
            key: &key,
            total: self.members.len() as u32,
            hosts: hosts.as_deref(),
            lost: &lost,
        })
    }

    /// Tells the others of this host what was heard: of their own words they know.
    fn tell(&self, heard: &(u64, Outcome)) -> Result<(), ExchangeError> {
        let bytes =
            postcard::to_stdvec(heard).map_err(|error| ExchangeError::system("encode", error))?;
        let frames = bytes.chunks(FRAME).count();
        for (i, chunk) in bytes.chunks(FRAME).enumerate() {
            let told = Told { more: i + 1 < frames, bytes: chunk.to_vec() };
            let payload = postcard::to_stdvec(&told)
                .map_err(|error| ExchangeError::system("encode", error))?;
            let most = if heard.1.is_ok() { TELLING } else { TELLING_TROUBLE };
            let wait = Wait::timeout(most.min(self.left() + BEHIND));
            let told = self.near(TELL + i as u32, true, Part::plain(payload), &wait);
            // Who does not listen any more has its own trouble; it is missed in the next round.
            if let Err(error) = told {
                tracing::debug!(%error, "what other hosts said was not heard by all of this one");
                return Ok(());
            }
        }
        Ok(())
    }

    /// What the one that speaks for this host heard.
    fn listen(&self, speaker: usize) -> Result<(u64, Outcome), ExchangeError> {
        let mut bytes = Vec::new();
        for i in 0.. {
            let wait = self.bounded(self.left() + BEHIND);
            let parts = self.near(TELL + i, true, Part::default(), &wait)?;
            let told =
                parts.get(speaker).and_then(|p| postcard::from_bytes::<Told>(&p.payload).ok());
            let Some(told) = told else { break };
            bytes.extend_from_slice(&told.bytes);
            if !told.more {
                return postcard::from_bytes(&bytes).map_err(|_| garbled());
            }
        }
        Err(garbled())
    }

    /// A meeting on this host, as part of the round.
    fn near(
        &self,
        part: u32,
        links: bool,
        brings: Part,
        wait: &Wait,
    ) -> Result<Vec<Part>, ExchangeError> {
        let Here { numbers, me, part: base, .. } = self.here;
        if numbers.len() == 1 {
            return Ok(vec![brings]);
        }
        let key = RoundKey { part: base + part, ..self.key };
        let links = links && self.here.indices.is_some();
        let round = Round { key, members: numbers, me: *me, links, part: brings };
        self.exchange.near.gather(round, wait)
    }

    /// The members of this host did not all come. Tells the other hosts; what to report.
    fn give_up(&self, count: &mut u64, me: u32, error: ExchangeError) -> ExchangeError {
        match &self.here.indices {
            Some(indices) => {
                let error = self.of_members(error, indices);
                // Everybody who knows tells it, since nobody knows who else does.
                while !self.consult(*count, |at| at.fail(indices, &error)) && !self.left().is_zero()
                {
                    *count += 1;
                }
                error
            }
            // Who is missing has a rank that nobody here knows, and that is left when all others have
            // said that they are there.
            None => match (self.speak(count, &[me], &Says::Incomplete, self.wait), error) {
                (_, error @ (ExchangeError::Cancelled | ExchangeError::Refused(_))) => error,
                (Err(heard), _) => heard,
                (Ok(_), error) => ExchangeError::Store(error.to_string()),
            },
        }
    }

    /// An error of a meeting on this host, in the round's numbers, and with what its caller allowed.
    fn of_members(&self, error: ExchangeError, indices: &[u32]) -> ExchangeError {
        of_members(error, indices).with_allowed(self.wait.duration())
    }

    fn left(&self) -> Duration {
        self.wait.deadline().saturating_duration_since(Instant::now())
    }

    fn bounded(&self, left: Duration) -> Wait {
        let wait = Wait::timeout(left);
        match self.wait.cancel() {
            Some(token) => wait.with_cancel(token.clone()),
            None => wait,
        }
    }
}

fn garbled() -> ExchangeError {
    ExchangeError::Refused("who speaks for this host said nothing that is known".to_owned())
}

/// An error of a meeting on this host, in the round's numbers.
fn of_members(mut error: ExchangeError, indices: &[u32]) -> ExchangeError {
    let index = |place: u32| indices.get(place as usize).copied().unwrap_or(place);
    match &mut error {
        ExchangeError::Missing { missing, .. } => missing.iter_mut().for_each(|i| *i = index(*i)),
        ExchangeError::Lost { rank } | ExchangeError::Duplicate { rank } => *rank = index(*rank),
        _ => {}
    }
    error
}

impl ExchangeError {
    fn with_allowed(mut self, by_caller: Duration) -> Self {
        if let ExchangeError::Missing { allowed, .. } = &mut self {
            *allowed = by_caller;
        }
        self
    }
}
