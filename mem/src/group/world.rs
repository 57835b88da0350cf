//! What a rank is before it is in any group: its run, how it meets others, how it hears of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::exchange::Exchange;
use crate::exchange::local::{Hub, LocalExchange};
use crate::liveness::peers::{PeerVoice, Peers};
use crate::liveness::{Register, Voice};
use crate::memory::ledger::Ledger;

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
    /// How many groups of each member list this rank has made: a list used again is a new group.
    made: Mutex<HashMap<Vec<u32>, u64>>,
}

impl World {
    pub(crate) fn new(
        run: String,
        rank: u32,
        size: u32,
        threads: bool,
        exchange: Arc<dyn Exchange>,
        register: Arc<Register>,
        voice: Arc<dyn Voice>,
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
            made: Mutex::default(),
        }
    }

    /// The worlds of ranks that are threads of this process, and what tells them of each other.
    pub(crate) fn threads(run: &str, size: u32) -> (Vec<Arc<World>>, Arc<Peers>) {
        let hub = Arc::new(Hub::new());
        let peers = Arc::new(Peers::new(size as usize, hub.clone()));
        let worlds = (0..size).map(|rank| {
            let register = Arc::new(Register::default());
            peers.join(rank, &register);
            let exchange = Arc::new(LocalExchange { hub: hub.clone() });
            let voice = Arc::new(PeerVoice { peers: peers.clone(), rank });
            Arc::new(World::new(run.to_owned(), rank, size, true, exchange, register, voice))
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
        for word in members.iter().map(|m| u64::from(*m)).chain([u64::MAX, *count]) {
            for byte in word.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        hash
    }
}
