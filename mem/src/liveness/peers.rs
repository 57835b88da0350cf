//! Links between ranks that are threads of one process: calls.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use symmem_hal::Event;

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
        self.each_other(rank, |register| register.lost(rank));
    }

    /// A rank that has ended has no work in flight any more.
    pub(crate) fn announce_gone(&self, rank: u32) {
        self.each_other(rank, |register| register.gone(rank));
    }

    /// What marks the end of a rank's work in flight.
    pub(crate) fn in_flight(&self, rank: u32) -> Vec<Event> {
        let register = self.registers.lock().get(rank as usize).and_then(Weak::upgrade);
        register.map_or_else(Vec::new, |register| register.in_flight())
    }

    fn each_other(&self, rank: u32, act: impl Fn(&Register)) {
        let others = self.registers.lock().clone();
        let others = (0u32..).zip(others).filter(|(other, _)| *other != rank);
        others.filter_map(|(_, register)| register.upgrade()).for_each(|register| act(&register));
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

    fn exclude(&self, rank: u32) {
        let register =
            |of: u32| self.peers.registers.lock().get(of as usize).and_then(Weak::upgrade);
        for (of, who) in [(self.rank, rank), (rank, self.rank)] {
            if let Some(register) = register(of) {
                register.lost(who);
            }
        }
    }
}
