//! What the environment says the machine is like. Read once.

use std::env;
use std::sync::LazyLock;
use std::time::Duration;

/// Whether a device can exchange fabric handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    Absent,
    /// Announced by the attribute, refused at use: a node without access to its fabric channel.
    Denied,
    Present,
}

#[derive(Debug)]
pub(crate) struct Config {
    /// The physical ordinal of each visible device.
    pub devices: Vec<u32>,
    pub memory: u64,
    /// Pairs of physical ordinals that cannot reach each other.
    pub apart: Vec<(u32, u32)>,
    pub virtual_memory: bool,
    pub pools: bool,
    pub descriptors: bool,
    pub fabric: Fabric,
    pub multicast: bool,
    pub memory_operations: bool,
    pub arch: (i32, i32),
    pub wait: Duration,
}

fn read(name: &str) -> Option<String> {
    env::var(format!("SYMMEM_FAKE_CUDA_{name}")).ok()
}

fn number(name: &str) -> Option<u64> {
    read(name)?.parse().ok()
}

fn flag(name: &str, default: bool) -> bool {
    read(name).map_or(default, |value| value != "0")
}

fn pair(text: &str) -> Option<(u32, u32)> {
    let (a, b) = text.trim().strip_suffix(":no")?.split_once('-')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

fn visible(present: u32) -> Vec<u32> {
    let Ok(list) = env::var("CUDA_VISIBLE_DEVICES") else { return (0..present).collect() };
    // The real driver, too, ends its list at the first entry that means nothing.
    let ordinal = |entry: &str| entry.trim().parse().ok().filter(|&ordinal| ordinal < present);
    list.split(',').map_while(ordinal).collect()
}

pub(crate) static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let present = number("DEVICES").and_then(|n| u32::try_from(n).ok()).unwrap_or(2);
    let arch = read("ARCH").unwrap_or_default();
    let arch = arch
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    Config {
        devices: visible(present),
        memory: number("MEMORY").unwrap_or(4 << 30),
        apart: read("P2P").unwrap_or_default().split(';').filter_map(pair).collect(),
        virtual_memory: flag("VMM", true),
        pools: flag("POOLS", true),
        descriptors: flag("DESCRIPTORS", true),
        fabric: match read("FABRIC").as_deref() {
            Some("1") => Fabric::Present,
            Some("denied") => Fabric::Denied,
            _ => Fabric::Absent,
        },
        multicast: flag("MULTICAST", false),
        memory_operations: flag("MEM_OPS", true),
        arch: arch.unwrap_or((9, 0)),
        wait: Duration::from_millis(number("WAIT_MS").unwrap_or(10_000)),
    }
});
