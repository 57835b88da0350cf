//! Links between ranks that are threads of one process: calls.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{Message, Register, Voice};
use crate::exchange::local::Hub;

/// The ranks of one process, by global rank.
#[derive(Debug)]
pub(crate) struct Peers {
    registers: Mutex<Vec<Weak<Register>>>,
    hub: Arc<Hub>,
}

impl Peers {
    pub(crate) fn new(world: usize, hub: Arc<Hub>) -> Self {
        Peers { registers: Mutex::new((0..world).map(|_| Weak::new()).collect()), hub }
    }

    pub(crate) fn join(&self, rank: u32, register: &Arc<Register>) {
        if let Some(place) = self.registers.lock().get_mut(rank as usize) {
            *place = Arc::downgrade(register);
        }
    }

    /// A rank has ended without leaving.
    pub(crate) fn announce_lost(&self, rank: u32) {
        self.hub.mark_lost(rank);
        let others = self.registers.lock().clone();
        for (other, register) in (0u32..).zip(others) {
            if other != rank
                && let Some(register) = register.upgrade()
            {
                register.lost(rank);
            }
        }
    }
}

/// One rank's voice among [`Peers`].
#[derive(Debug)]
pub(crate) struct PeerVoice {
    pub peers: Arc<Peers>,
    pub rank: u32,
}

impl Voice for PeerVoice {
    fn send(&self, to: u32, message: Message) {
        let register = self.peers.registers.lock().get(to as usize).and_then(Weak::upgrade);
        if let Some(register) = register {
            register.receive(self.rank, message);
        }
    }
}
