//! Tables of addresses in a device's memory, where kernels find every rank's.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use symmem_hal::types::Bytes;
use symmem_hal::{AccessError, AllocError, Device, DevicePtr, Memory};

use crate::pool::Blocks;

/// Where a group's tables are: many in one memory, since each is smaller than a page.
#[derive(Debug)]
pub(crate) struct Tables {
    device: Device,
    /// Of one table: addresses of buffers, addresses of pads, global ranks.
    bytes: u64,
    chunks: Mutex<Vec<(Memory, Blocks)>>,
}

/// One table; free for another when dropped.
#[derive(Debug)]
pub(crate) struct Table {
    memory: Memory,
    offset: u64,
    home: Weak<Tables>,
}

impl Tables {
    /// Tables in a memory.
    const CHUNK: u64 = 64;

    /// None yet, of a group of so many ranks.
    pub(crate) fn new(device: &Device, ranks: usize) -> Arc<Self> {
        let bytes = (20 * ranks as u64).next_multiple_of(64);
        Arc::new(Tables { device: device.clone(), bytes, chunks: Mutex::default() })
    }

    /// A table that nobody has.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Table, AllocError> {
        let table = |memory: &Memory, offset| Table {
            memory: memory.clone(),
            offset,
            home: Arc::downgrade(self),
        };
        let mut chunks = self.chunks.lock();
        for (memory, blocks) in chunks.iter_mut() {
            if let Some(offset) = blocks.take(self.bytes) {
                return Ok(table(memory, offset));
            }
        }
        let size = Self::CHUNK * self.bytes;
        let memory = self.device.allocate_private(Bytes(size))?;
        let mut blocks = Blocks::new(size);
        let first = blocks.take(self.bytes).unwrap_or_default();
        let table = table(&memory, first);
        chunks.push((memory, blocks));
        Ok(table)
    }
}

impl Table {
    /// Fills it in: before anything can read it.
    pub(crate) fn write(
        &self,
        buffers: &[DevicePtr],
        pads: &[DevicePtr],
        globals: &[u32],
    ) -> Result<(), AccessError> {
        let mut bytes: Vec<u8> = bytemuck::cast_slice(buffers).to_vec();
        bytes.extend_from_slice(bytemuck::cast_slice(pads));
        bytes.extend_from_slice(bytemuck::cast_slice(globals));
        self.memory.write(Bytes(self.offset), &bytes)
    }

    /// Its address: that of the buffers' addresses, of 8 bytes a rank, which the pads' follow, and
    /// then the global ranks, of 4 bytes each.
    pub(crate) fn base(&self) -> DevicePtr {
        self.at(0)
    }

    /// The address `bytes` into it.
    pub(crate) fn at(&self, bytes: u64) -> DevicePtr {
        self.memory.base().checked_add(Bytes(self.offset + bytes)).unwrap_or(DevicePtr::NULL)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else { return };
        let mut chunks = home.chunks.lock();
        let mine = chunks.iter_mut().position(|(m, _)| m.base() == self.memory.base());
        if let Some(index) = mine {
            let blocks = &mut chunks[index].1;
            blocks.give_back(self.offset, home.bytes);
            if blocks.free() == blocks.size() {
                // This table still holds the memory, which goes with it, outside the lock.
                chunks.swap_remove(index);
            }
        }
    }
}
