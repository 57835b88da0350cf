//! The program's arguments: libtest's, and where to run.

use std::path::PathBuf;

use clap::Parser;
use symmem_hal::DeviceError;
use symmem_hal::types::BackendKind;

use super::place::{BACKENDS, Mode, Place, backend_of};

/// Runs the conformance suite. Without --ranks, --threads, --local or --backend: a quick matrix.
#[derive(Clone, Debug, Parser)]
#[command(name = "conformance", disable_version_flag = true)]
pub(super) struct Invocation {
    #[command(flatten)]
    pub libtest: libtest_mimic::Arguments,

    /// How many ranks: one number, or several, each of which makes a run.
    #[arg(long, value_name = "N[,N..]", value_delimiter = ',')]
    pub ranks: Vec<usize>,

    /// Ranks are threads, not processes.
    #[arg(long)]
    pub threads: bool,

    /// The tests that make their own ranks.
    #[arg(long)]
    pub local: bool,

    /// The backend: host, stub or cuda. Without it the GPUs where there are any, else the host.
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<String>,

    /// All ranks share the first device, however many there are.
    #[arg(long)]
    pub one_device: bool,

    /// What random data is made from; printed by each run.
    #[arg(long, value_parser = seed)]
    pub seed: Option<u64>,

    /// Print the times of this many of the slowest tests.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub slowest: usize,

    /// Appends what tests found out to a file, a line of JSON each.
    #[arg(long, value_name = "FILE")]
    pub findings: Option<PathBuf>,

    /// Long runs of the tests that have them.
    #[arg(long)]
    pub soak: bool,

    /// As --soak, for so many seconds: of the tests that can end by the clock.
    #[arg(long, value_name = "N")]
    pub soak_seconds: Option<u32>,
}

/// Arguments that name no place to run at.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadArguments {
    #[error("no backend {name:?}: this build has {all}", all = names())]
    Backend { name: String },
    #[error("0 ranks: at least one is needed")]
    NoRanks,
    #[error("no device for the suite: {0}")]
    Device(DeviceError),
}

fn names() -> String {
    let names: Vec<_> = BACKENDS.iter().map(|backend| backend.name()).collect();
    names.join(", ")
}

/// How many devices of a backend there are.
pub(super) type Devices = fn(BackendKind) -> Result<u32, DeviceError>;

fn seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

impl Invocation {
    /// The places to run at, in order.
    pub(super) fn places(&self, devices: Devices) -> Result<Vec<Place>, BadArguments> {
        let backend = match &self.backend {
            Some(name) => {
                Some(backend_of(name).ok_or_else(|| BadArguments::Backend { name: name.clone() })?)
            }
            None => None,
        };
        if self.ranks.contains(&0) {
            return Err(BadArguments::NoRanks);
        }
        if self.ranks.is_empty() && !self.threads && !self.local && backend.is_none() {
            return Ok(quick(devices(BackendKind::Cuda).is_ok()));
        }
        let backend = match backend {
            Some(backend) => backend,
            None if devices(BackendKind::Cuda).is_ok() => BackendKind::Cuda,
            None => BackendKind::Host,
        };
        // Before any rank starts.
        devices(backend).map_err(BadArguments::Device)?;
        let mode = if self.threads { Mode::Threads } else { Mode::Processes };
        let mut places = Vec::new();
        if self.local {
            places.push(Place::local(backend));
        }
        let ranks: &[usize] = match &self.ranks[..] {
            // Only what was asked for.
            [] if self.local && !self.threads => &[],
            [] => &[2],
            given => given,
        };
        places.extend(ranks.iter().map(|&ranks| Place::new(backend, mode, ranks)));
        places.iter_mut().for_each(|place| place.one_device = self.one_device);
        Ok(places)
    }
}

/// Each kind of place once, with few ranks.
fn quick(gpus: bool) -> Vec<Place> {
    let mut places = vec![
        Place::local(BackendKind::Host),
        Place::local(BackendKind::Stub),
        Place::new(BackendKind::Host, Mode::Processes, 1),
        Place::new(BackendKind::Host, Mode::Processes, 3),
        Place::new(BackendKind::Host, Mode::Threads, 3),
        Place::new(BackendKind::Stub, Mode::Threads, 2),
    ];
    if gpus {
        places.push(Place::local(BackendKind::Cuda));
        places.push(Place::new(BackendKind::Cuda, Mode::Processes, 2));
        places.push(Place::new(BackendKind::Cuda, Mode::Threads, 2));
    }
    places
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    fn none(backend: BackendKind) -> Result<u32, DeviceError> {
        match backend {
            BackendKind::Cuda => Err(DeviceError::NoDevice { backend, wanted: 0, found: 0 }),
            _ => Ok(1),
        }
    }

    fn places_with(devices: Devices, arguments: &[&str]) -> Result<Vec<String>, BadArguments> {
        let all = ["conformance"].iter().chain(arguments);
        Invocation::try_parse_from(all)
            .unwrap()
            .places(devices)
            .map(|places| places.iter().map(Place::to_string).collect())
    }

    fn places(arguments: &[&str]) -> Result<Vec<String>, BadArguments> {
        places_with(none, arguments)
    }

    #[test]
    fn what_is_asked_for_is_what_runs() {
        assert_eq!(places(&["--ranks", "1,3"]).unwrap(), ["host-processes-1", "host-processes-3"]);
        assert_eq!(
            places(&["--ranks", "8", "--threads", "--backend", "stub", "barrier"]).unwrap(),
            ["stub-threads-8"]
        );
        assert_eq!(places(&["--local"]).unwrap(), ["host-local-1"]);
        assert_eq!(places(&["--threads"]).unwrap(), ["host-threads-2"]);
        assert_eq!(places(&["--backend", "stub"]).unwrap(), ["stub-processes-2"]);
        assert!(places(&[]).unwrap().len() > 4);
    }

    #[test]
    fn a_soak_may_have_a_time() {
        let parse = |arguments: &[&str]| {
            Invocation::try_parse_from(["conformance"].iter().chain(arguments)).unwrap()
        };
        assert_eq!(parse(&["--soak-seconds", "600", "soak::"]).soak_seconds, Some(600));
        assert!(parse(&["--soak"]).soak && parse(&["--soak"]).soak_seconds.is_none());
    }

    #[test]
    fn what_is_nowhere_is_refused() {
        assert!(matches!(places(&["--ranks", "2,0"]), Err(BadArguments::NoRanks)));
        assert!(matches!(places(&["--backend", "abacus"]), Err(BadArguments::Backend { .. })));
        #[cfg(feature = "cuda")]
        assert!(matches!(places(&["--backend", "cuda"]), Err(BadArguments::Device(_))));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn gpus_are_taken_where_there_are_any() {
        let places = |arguments: &[&str]| places_with(|_| Ok(2), arguments);
        assert_eq!(places(&["--ranks", "2"]).unwrap(), ["cuda-processes-2"]);
        assert_eq!(places(&["--ranks", "2", "--backend", "host"]).unwrap(), ["host-processes-2"]);
        assert_eq!(
            places(&["--ranks", "4", "--threads", "--one-device"]).unwrap(),
            ["cuda-threads-4-one_device"]
        );
        assert!(places(&[]).unwrap().contains(&"cuda-threads-2".to_owned()));
    }

    #[test]
    fn places_are_named_after_what_they_are() {
        for place in quick(cfg!(feature = "cuda")) {
            for place in [place, Place { one_device: true, ..place }] {
                assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
            }
        }
        for text in ["host-3", "gpu-threads-1", "host-threads-1-two", "host-threads-1-one_device-1"]
        {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
