//! How the members of a group meet: one at a time on each rank, in one order on all.

use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use symmem_hal::{AccessError, Memory, Wait};

use super::Group;
use crate::exchange::{ExchangeError, Part, Round, RoundKey};
use crate::rendezvous::record::{About, Record, Step};
use crate::rendezvous::{self, Given, Imports, MulticastMapping, NoMulticast, RendezvousError};

/// Where the group's agreement stands. Locked while a member meets the others: a group's meetings
/// have one order.
///
/// Rounds are counted within a call, so that a member whose part in a call ended early, for want of
/// descriptors or of patience say, meets the others again in its next call: their records differ in
/// the ordinal, which is an error on all, and all go on from the highest.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    round: u64,
    ordinal: u64,
}

impl Sequence {
    pub(crate) fn next_ordinal(&mut self) -> u64 {
        self.ordinal += 1;
        self.ordinal
    }

    fn next_call(&mut self) {
        self.round = 0;
    }

    pub(super) fn next_round(&mut self) -> u64 {
        self.round += 1;
        self.round
    }
}

impl Group {
    /// The right to meet the others. Held while this rank waits for them, so that another thread that
    /// wants it waits within its own bound.
    pub(crate) fn meeting(&self, wait: &Wait) -> Result<MutexGuard<'_, Sequence>, ExchangeError> {
        /// How often a wait looks at its cancel token.
        const TICK: Duration = Duration::from_millis(20);
        let deadline = wait.deadline();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(mut turn) = self.0.meeting.try_lock_for(left.min(TICK)) {
                turn.next_call();
                return Ok(turn);
            }
            if wait.is_cancelled() {
                return Err(ExchangeError::Cancelled);
            }
            if left.is_zero() {
                return Err(ExchangeError::Busy { allowed: wait.duration() });
            }
        }
    }

    pub(crate) fn about(&self) -> About<'_> {
        About {
            step: Step::Rendezvous,
            run: &self.0.world.run,
            group: self.0.id,
            members: &self.0.members,
            generation: self.0.world.generation,
            ordinal: 0,
            view: None,
            segment: None,
        }
    }

    /// One round of the group's members.
    pub(crate) fn gather(
        &self,
        turn: &mut Sequence,
        part: Part,
        wait: &Wait,
    ) -> Result<Vec<Part>, ExchangeError> {
        let world = &self.0.world;
        let key = RoundKey {
            group: self.0.id,
            generation: world.generation,
            number: turn.next_round(),
            part: 0,
        };
        world
            .exchange
            .gather(Round { key, members: &self.0.members, me: self.0.me, links: true, part }, wait)
    }

    /// A round in which records are compared, and nothing else happens.
    pub(crate) fn exchange_record(
        &self,
        turn: &mut Sequence,
        about: &About<'_>,
        wait: &Wait,
    ) -> Result<(), RendezvousError> {
        let mut record = Record::new(about, &self.0.options, &self.0.device);
        let mut gather = |part| self.gather(turn, part, wait);
        let agreed =
            rendezvous::agree(&mut gather, &self.0.world.ledger, &mut record, Default::default());
        turn.ordinal = turn.ordinal.max(record.equal.ordinal);
        agreed.map(|_| ())
    }

    /// Maps every member's memory into every member, one by one and, where they can, as one.
    pub(crate) fn exchange_memory(
        &self,
        turn: &mut Sequence,
        about: &About<'_>,
        memory: &Memory,
        finish: &dyn Fn(&[Memory]) -> Result<(), AccessError>,
        wait: &Wait,
    ) -> Result<(Vec<Memory>, Result<MulticastMapping, NoMulticast>), RendezvousError> {
        let mut record = Record::new(about, &self.0.options, &self.0.device);
        let mut gather = |part| self.gather(turn, part, wait);
        let world = &self.0.world;
        let imports = Imports {
            device: &self.0.device,
            threads: world.threads,
            me: self.0.me,
            exchange: &*world.exchange,
        };
        let exchanged = rendezvous::exchange_memory(
            &mut gather,
            &world.ledger,
            &mut record,
            &Given { memory, beside: None },
            &imports,
            finish,
        );
        let joined = exchanged.and_then(|exchanged| {
            let records = &exchanged.records;
            let multicast =
                rendezvous::join_multicast(&mut gather, records, memory, &imports, wait)?;
            Ok((exchanged.memories, multicast))
        });
        turn.ordinal = turn.ordinal.max(record.equal.ordinal);
        joined
    }
}
