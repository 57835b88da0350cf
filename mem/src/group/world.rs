//! What a rank is before it is in any group: its run, how it meets others, how it hears of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::exchange::Exchange;
use crate::exchange::local::{Hub, LocalExchange};
use crate::liveness::peers::{PeerVoice, Peers};
use crate::liveness::{Register, Voice};
use crate::memory::ledger::Ledger;
use crate::store::{LocalStore, Store};

/// One rank of a run.
#[derive(Debug)]
pub(crate) struct World {
    pub run: String,
    pub generation: u32,
    pub rank: u32,
    pub size: u32,
    /// Whether the other ranks are threads of this process, which share mappings.
    pub threads: bool,
    pub exchange: Arc<dyn Exchange>,
    pub register: Arc<Register>,
    pub voice: Arc<dyn Voice>,
    pub ledger: Arc<Ledger>,
    /// Where those who go on without somebody agree on it.
    pub store: Arc<dyn Store>,
    /// What tells the groups of this world from those of others of the run: 0 for the first.
    lineage: u64,
    /// How many groups of each member list this rank has made: a list used again is a new group.
    made: Mutex<HashMap<Vec<u32>, u64>>,
}

impl World {
    pub(crate) fn new(
        run: String,
        (rank, size): (u32, u32),
        threads: bool,
        exchange: Arc<dyn Exchange>,
        register: Arc<Register>,
        voice: Arc<dyn Voice>,
        store: Arc<dyn Store>,
    ) -> Self {
        World {
            run,
            generation: 0,
            rank,
            size,
            threads,
            exchange,
            register,
            voice,
            ledger: Arc::default(),
            store,
            lineage: 0,
            made: Mutex::default(),
        }
    }

    /// The same rank after a recovery of the group of this `root`: its groups meet elsewhere and have
    /// other ids, so that nobody who was left behind can get in their way.
    pub(crate) fn succeed(&self, root: u64, generation: u32) -> Self {
        World {
            run: self.run.clone(),
            generation,
            rank: self.rank,
            size: self.size,
            threads: self.threads,
            exchange: self.exchange.succeed(root, generation),
            register: self.register.clone(),
            voice: self.voice.clone(),
            ledger: self.ledger.clone(),
            store: self.store.clone(),
            lineage: root,
            made: Mutex::default(),
        }
    }

    /// The worlds of ranks that are threads of this process, and what tells them of each other.
    pub(crate) fn threads(run: &str, size: u32) -> (Vec<Arc<World>>, Arc<Peers>) {
        let hub = Arc::new(Hub::new());
        let peers = Arc::new(Peers::new(size as usize, hub.clone()));
        let store = LocalStore::new();
        let worlds = (0..size).map(|rank| {
            let register = Arc::new(Register::default());
            peers.join(rank, &register);
            let exchange = Arc::new(LocalExchange { hub: hub.clone() });
            let voice = Arc::new(PeerVoice { peers: peers.clone(), rank });
            let (run, store) = (run.to_owned(), Arc::new(store.clone()));
            Arc::new(World::new(run, (rank, size), true, exchange, register, voice, store))
        });
        (worlds.collect(), peers)
    }

    /// The id of the next group of these members: equal on all of them, since each counts the
    /// groups it made with that very list.
    pub(crate) fn next_group_id(&self, members: &[u32]) -> u64 {
        let mut made = self.made.lock();
        let count = made.entry(members.to_vec()).or_default();
        *count += 1;
        // FNV-1a over the list and the count; the record carries both, so that a collision is an
        // error and never a mix-up.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let rest = [u64::MAX, *count, self.lineage, u64::from(self.generation)];
        for word in members.iter().map(|m| u64::from(*m)).chain(rest) {
            for byte in word.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        hash
    }
}
