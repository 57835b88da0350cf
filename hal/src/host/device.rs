//! The CPU as a device.

use std::sync::OnceLock;
use std::thread::available_parallelism;

use super::{Event, Memory, Module, Stream};
use crate::backend::DeviceOps;
use crate::memory::{AllocError, ImportError, Shareable, import_segment};
use crate::module::{KernelSet, LoadError};
use crate::shm::Segment;
use crate::stream::{Role, StreamMode};
use crate::types::{BackendKind, Bytes, DeviceUuid};
use crate::{Capabilities, DeviceError};

/// The CPU.
#[derive(Clone, Copy, Debug)]
pub struct Device(());

impl Device {
    pub(crate) fn new() -> Self {
        Device(())
    }
}

/// A UUID made of this machine's boot and a number: every process of the machine makes the same,
/// and two machines, or two boots, do not.
pub(crate) fn machine_uuid(salt: u64) -> DeviceUuid {
    DeviceUuid((boot() ^ u128::from(salt)).to_be_bytes())
}

/// Whether it is the identity of a device of this machine's that is made of software.
pub(crate) fn is_of_machine(uuid: DeviceUuid) -> bool {
    u128::from_be_bytes(uuid.0) ^ boot() <= u128::from(u32::MAX) + 1
}

fn boot() -> u128 {
    static BOOT: OnceLock<u128> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).unwrap_or(0)
    })
}

impl DeviceOps for Device {
    type Memory = Memory;
    type Stream = Stream;
    type Event = Event;
    type Module = Module;

    fn kind(&self) -> BackendKind {
        BackendKind::Host
    }

    fn uuid(&self) -> DeviceUuid {
        machine_uuid(0)
    }

    fn name(&self) -> String {
        std::fs::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| {
                let line = text.lines().find(|l| l.starts_with("model name"))?;
                Some(line.split_once(':')?.1.trim().to_owned())
            })
            .unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            units: available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            peer_atomics: true,
            shareable: true,
            ..Capabilities::default()
        }
    }

    fn allocate(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Ok(Memory::new(Segment::create(bytes)?))
    }

    fn allocate_private(&self, bytes: Bytes) -> Result<Memory, AllocError> {
        Ok(Memory::new(Segment::create_private(bytes)?))
    }

    fn import(&self, shared: Shareable, bytes: Bytes) -> Result<Memory, ImportError> {
        Ok(Memory::new(import_segment(shared, bytes)?))
    }

    fn stream(&self, mode: StreamMode, role: Role) -> Result<Stream, DeviceError> {
        Stream::new(mode, role)
    }

    fn event(&self) -> Event {
        Event::default()
    }

    fn load(&self, set: &'static KernelSet) -> Result<Module, LoadError> {
        Ok(Module(set))
    }
}
