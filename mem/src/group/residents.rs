//! Who shares a device with whom: what progress and patience are computed from.

use std::collections::BTreeMap;

use crate::rendezvous::RendezvousError;
use crate::rendezvous::record::Reported;

/// The ranks of one device.
#[derive(Debug, Default)]
struct Residents {
    ranks: u32,
    /// Ranks of each process, which is a host and a number there.
    processes: BTreeMap<(String, u32), u32>,
}

/// A group's devices, as every rank computes them from the same records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Blocks that a rank may run at once on each of its lanes.
    pub blocks_per_lane: u32,
    /// By how much longer everything may take.
    pub deadline_scale: u32,
    /// Whether lines that are stored at once arrive whole, whoever stores and whoever loads them.
    pub whole_lines: bool,
}

impl Shares {
    /// Counts ranks by device.
    ///
    /// # Errors
    ///
    /// [`RendezvousError::Crowded`], where a device would not run the work of all ranks of a process at
    /// once: one that waits for another would keep it from running.
    pub(super) fn of(reported: &[Reported], max_lanes: u32) -> Result<Self, RendezvousError> {
        let mut devices: BTreeMap<[u8; 16], Residents> = BTreeMap::new();
        for rank in reported {
            let residents = devices.entry(rank.device).or_default();
            let process = (rank.host.clone(), rank.process);
            let beside = residents.processes.entry(process).or_default();
            residents.ranks += 1;
            *beside += 1;
            if rank.connections != 0 && *beside > rank.connections {
                let (device, limit) = (rank.device_name.clone(), rank.connections);
                let here = |r: &&Reported| {
                    (r.device, &r.host, r.process) == (rank.device, &rank.host, rank.process)
                };
                let ranks = reported.iter().filter(here).count();
                return Err(RendezvousError::Crowded { device, ranks, limit });
            }
        }
        let share = |rank: &Reported| {
            let ranks = devices.get(&rank.device).map_or(1, |residents| residents.ranks);
            rank.occupancy / ranks.saturating_mul(max_lanes).max(1)
        };
        let takes_turns = |residents: &&Residents| residents.processes.len() > 1;
        // Only devices take turns: the processes of a CPU run beside each other.
        let is_device = reported.iter().any(|rank| rank.occupancy != 0);
        let turns = devices.values().filter(takes_turns).map(|residents| residents.ranks).max();
        Ok(Shares {
            blocks_per_lane: reported.iter().map(share).min().unwrap_or(0).max(1),
            deadline_scale: turns.filter(|_| is_device).unwrap_or(1),
            whole_lines: reported.iter().all(|rank| rank.whole_lines),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;
    use crate::rendezvous::Support;

    fn rank(device: u8, process: u32, occupancy: u32) -> Reported {
        Reported {
            device: [device; 16],
            device_name: format!("device {device}"),
            arch: "sm_90".to_owned(),
            units: occupancy,
            occupancy,
            connections: 8,
            peer_atomics: true,
            whole_lines: true,
            descriptors: true,
            fabric: false,
            multicast: Support::Absent,
            versions: Vec::new(),
            kernels: String::new(),
            host: "here".to_owned(),
            process,
            let_go: Vec::new(),
        }
    }

    fn shares(ranks: &[Reported], lanes: u32) -> (u32, u32) {
        let shares = Shares::of(ranks, lanes).unwrap();
        (shares.blocks_per_lane, shares.deadline_scale)
    }

    #[test]
    fn blocks_are_shared_by_ranks_and_lanes() {
        let alone = [rank(0, 1, 132), rank(1, 2, 114)];
        assert_eq!(shares(&alone, 1), (114, 1));
        assert_eq!(shares(&alone, 4), (28, 1));
        // Threads of one process on a device.
        let threads: Vec<_> = (0..4).map(|_| rank(0, 1, 132)).collect();
        assert_eq!(shares(&threads, 1), (33, 1));
        assert_eq!(shares(&threads, 200), (1, 1));
        // A CPU has no blocks, and its processes do not take turns.
        assert_eq!(shares(&[rank(0, 1, 0), rank(0, 2, 0)], 1), (1, 1));
    }

    #[test]
    fn processes_that_share_a_device_take_turns() {
        let ranks = [rank(0, 1, 132), rank(0, 2, 132), rank(0, 2, 132), rank(1, 3, 132)];
        assert_eq!(shares(&ranks, 1), (44, 3));
    }

    #[test]
    fn more_ranks_than_connections_are_refused() {
        let ranks: Vec<_> = (0..10).map(|i| rank(u8::from(i == 4), 1, 132)).collect();
        let found = Shares::of(&ranks, 1).unwrap_err();
        assert!(matches!(&found, RendezvousError::Crowded { ranks: 9, limit: 8, .. }), "{found}");
        // As processes they take turns instead.
        let ranks: Vec<_> = (0..9).map(|i| rank(0, i, 132)).collect();
        assert_eq!(shares(&ranks, 1), (14, 9));
    }
}
