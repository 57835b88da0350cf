//! The bytes that a table holds.

use super::TableError;

#[derive(Debug)]
pub(super) struct Account {
    used: usize,
    capacity: usize,
}

impl Account {
    pub fn new(capacity: usize) -> Self {
        Account { used: 0, capacity }
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn has_room(&self, needed: usize) -> Result<(), TableError> {
        let &Account { used, capacity } = self;
        if needed > capacity.saturating_sub(used) {
            return Err(TableError::Full { needed, used, capacity });
        }
        Ok(())
    }

    /// Frees some bytes and takes others, if there is room for these then.
    pub fn exchange(&mut self, freed: usize, needed: usize) -> Result<(), TableError> {
        self.used -= freed;
        let room = self.has_room(needed);
        self.used += if room.is_ok() { needed } else { freed };
        room
    }

    /// Takes bytes that are there already, whether there is room or not.
    pub fn add(&mut self, bytes: usize) {
        self.used += bytes;
    }

    pub fn free(&mut self, bytes: usize) {
        self.used -= bytes;
    }
}
