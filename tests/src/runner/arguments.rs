//! The program's arguments: libtest's, and where to run.

use clap::Parser;
use symmem_hal::types::BackendKind;

use super::place::{Mode, Place, backend_of};

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

    /// The backend: host or stub.
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<String>,

    /// What random data is made from; printed by each run.
    #[arg(long, value_parser = seed)]
    pub seed: Option<u64>,

    /// Print the times of this many of the slowest tests.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub slowest: usize,

    /// Long runs of the tests that have them.
    #[arg(long)]
    pub soak: bool,
}

/// Arguments that name no place to run at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadArguments {
    #[error("no backend {0:?}: there are host and stub")]
    Backend(String),
    #[error("0 ranks: at least one is needed")]
    NoRanks,
}

fn seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

impl Invocation {
    /// The places to run at, in order.
    pub(super) fn places(&self) -> Result<Vec<Place>, BadArguments> {
        let backend = match &self.backend {
            Some(name) => {
                Some(backend_of(name).ok_or_else(|| BadArguments::Backend(name.clone()))?)
            }
            None => None,
        };
        if self.ranks.contains(&0) {
            return Err(BadArguments::NoRanks);
        }
        if self.ranks.is_empty() && !self.threads && !self.local && backend.is_none() {
            return Ok(quick());
        }
        let backend = backend.unwrap_or(BackendKind::Host);
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
        places.extend(ranks.iter().map(|&ranks| Place { backend, mode, ranks }));
        Ok(places)
    }
}

/// Each kind of place once, with few ranks.
fn quick() -> Vec<Place> {
    let place = |backend, mode, ranks| Place { backend, mode, ranks };
    vec![
        Place::local(BackendKind::Host),
        Place::local(BackendKind::Stub),
        place(BackendKind::Host, Mode::Processes, 1),
        place(BackendKind::Host, Mode::Processes, 3),
        place(BackendKind::Host, Mode::Threads, 3),
        place(BackendKind::Stub, Mode::Threads, 2),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    fn places(arguments: &[&str]) -> Result<Vec<String>, BadArguments> {
        let all = ["conformance"].iter().chain(arguments);
        Invocation::try_parse_from(all)
            .unwrap()
            .places()
            .map(|places| places.iter().map(Place::to_string).collect())
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
    fn what_is_nowhere_is_refused() {
        assert_eq!(places(&["--ranks", "2,0"]), Err(BadArguments::NoRanks));
        assert_eq!(places(&["--backend", "cuda"]), Err(BadArguments::Backend("cuda".to_owned())));
    }

    #[test]
    fn places_are_named_after_what_they_are() {
        for place in quick() {
            assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        }
        assert!("host-3".parse::<Place>().is_err() && "gpu-threads-1".parse::<Place>().is_err());
    }
}
