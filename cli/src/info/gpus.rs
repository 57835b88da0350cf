//! NVIDIA GPUs: each of them, and what each pair has of each other.

use std::fs;

use serde::Serialize;
use symmem::hal::DeviceError;
use symmem::hal::{Multicast, MulticastError};
use symmem::prelude::*;

/// What there is of GPUs.
#[derive(Debug)]
pub struct Gpus {
    /// Those that can be used.
    pub devices: Vec<Device>,
    /// Why there are none, or not all.
    pub missing: Vec<DeviceError>,
}

/// What is told of a GPU beside what every device has.
#[derive(Debug, Serialize)]
pub struct Gpu {
    pub ordinal: usize,
    /// The generation of its instruction set.
    pub arch: Option<String>,
    pub memory_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    pub virtual_memory: bool,
    pub fabric_handles: bool,
    pub stream_memory_operations: bool,
}

/// Whether one GPU reaches another's memory.
#[derive(Debug, Serialize)]
pub struct Link {
    pub from: usize,
    pub to: usize,
    pub peer_access: bool,
    pub because: String,
}

impl Gpus {
    /// Makes a context on each.
    pub fn new() -> Self {
        let mut gpus = Gpus { devices: Vec::new(), missing: Vec::new() };
        match Device::cuda_count() {
            Ok(count) => (0..count).for_each(|ordinal| match Device::cuda(ordinal) {
                Ok(device) => gpus.devices.push(device),
                Err(error) => gpus.missing.push(error),
            }),
            Err(error) => gpus.missing.push(error),
        }
        gpus
    }

    /// What is told of each.
    pub fn described(&self) -> impl Iterator<Item = (&Device, Gpu)> {
        self.devices.iter().enumerate().map(|(ordinal, device)| {
            let can = device.capabilities();
            let memory = device.memory().ok().flatten();
            let gpu = Gpu {
                ordinal,
                arch: can.arch.map(|(major, minor)| format!("{major}.{minor}")),
                memory_bytes: memory.map(|memory| memory.total.get()),
                free_bytes: memory.map(|memory| memory.free.get()),
                virtual_memory: can.virtual_memory,
                fabric_handles: can.fabric,
                stream_memory_operations: can.stream_memory_ops,
            };
            (device, gpu)
        })
    }

    /// Every pair, in both directions.
    pub fn links(&self) -> Vec<Link> {
        let all = || self.devices.iter().enumerate();
        let pairs = all().flat_map(|a| all().map(move |b| (a, b)));
        let pairs = pairs.filter(|((from, _), (to, _))| from != to);
        let link = |((from, a), (to, b)): ((usize, &Device), (usize, &Device))| {
            let found = a.can_access_peer(b.uuid());
            let because = match &found {
                Ok(()) if a.capabilities().peer_atomics => "loads, stores and atomics".to_owned(),
                Ok(()) => "loads and stores; no native atomics".to_owned(),
                Err(error) => error.to_string(),
            };
            Link { from, to, peer_access: found.is_ok(), because }
        };
        pairs.map(link).collect()
    }

    /// Whether multicast works, and which switch is off.
    pub fn multicast(&self) -> Result<String, String> {
        match Multicast::allowed() {
            Err(MulticastError::Off { variable, value }) => {
                Err(format!("switched off by {variable}={value}"))
            }
            Err(error) => Err(error.to_string()),
            Ok(()) => {
                let able = self.devices.iter().filter(|device| device.capabilities().multicast);
                match (able.count(), self.devices.len()) {
                    (0, _) => Err("no device here has it".to_owned()),
                    (able, all) => {
                        Ok(format!("{able} of {all} GPUs have it; nobody switched it off"))
                    }
                }
            }
        }
    }
}

/// The version of the driver's kernel module, as the module says.
pub fn kernel_module() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let mut words = text.lines().next()?.split_whitespace();
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    words.find(is_version).map(str::to_owned)
}
