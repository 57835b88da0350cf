//! Which rank is where: groups of ranks, and hosts of groups.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Ranks in groups of `group`, on hosts of `per_host`; the last group, and the last host of each, may
/// have fewer. A host's ranks are of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub ranks: u32,
    pub group: u32,
    pub per_host: u32,
}

/// The ranks of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub group: u32,
    pub ranks: Range<u32>,
}

impl Layout {
    pub fn groups(&self) -> u32 {
        self.ranks.div_ceil(self.group)
    }

    pub fn group_of(&self, rank: u32) -> u32 {
        rank / self.group
    }

    /// The ranks of a group.
    pub fn members(&self, group: u32) -> Range<u32> {
        let first = group.saturating_mul(self.group).min(self.ranks);
        first..first.saturating_add(self.group).min(self.ranks)
    }

    /// How many ranks those groups have.
    pub fn ranks_of(&self, groups: &Range<u32>) -> u32 {
        self.members(groups.end.saturating_sub(1)).end - self.members(groups.start).start
    }

    /// The hosts of a group, in the order of their ranks.
    pub fn hosts(&self, group: u32) -> impl Iterator<Item = Host> + use<> {
        let Range { start, end } = self.members(group);
        let per_host = self.per_host;
        (start..end)
            .step_by(per_host as usize)
            .map(move |first| Host { group, ranks: first..first.saturating_add(per_host).min(end) })
    }

    /// The hosts of those groups that a process stands for: the processes take them in turn, so that
    /// groups are spread over all of them.
    pub fn share(
        &self,
        groups: Range<u32>,
        process: u32,
        processes: u32,
    ) -> impl Iterator<Item = Host> {
        let layout = *self;
        let hosts = groups.flat_map(move |group| layout.hosts(group));
        hosts.skip(process as usize).step_by(processes as usize)
    }

    /// All groups in as few runs of equal length as `most` groups at a time allow.
    pub fn waves(&self, most: u32) -> Vec<Range<u32>> {
        let groups = self.groups();
        let waves = groups.div_ceil(most.max(1));
        let bound = |wave: u32| (u64::from(groups) * u64::from(wave) / u64::from(waves)) as u32;
        (0..waves).map(|wave| bound(wave)..bound(wave + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_on_one_host_of_one_group() {
        for (ranks, group, per_host) in
            [(1, 72, 8), (144, 72, 8), (150, 72, 8), (10, 3, 2), (7, 7, 7)]
        {
            let layout = Layout { ranks, group, per_host };
            let all: Vec<Host> = (0..layout.groups()).flat_map(|g| layout.hosts(g)).collect();
            let found: Vec<u32> = all.iter().flat_map(|host| host.ranks.clone()).collect();
            assert_eq!(found, (0..ranks).collect::<Vec<_>>());
            for host in &all {
                assert!(host.ranks.len() <= per_host as usize);
                assert!(host.ranks.clone().all(|rank| layout.group_of(rank) == host.group));
            }
            for processes in 1..4 {
                let mut shared: Vec<u32> = (0..processes)
                    .flat_map(|process| layout.share(0..layout.groups(), process, processes))
                    .flat_map(|host| host.ranks)
                    .collect();
                shared.sort_unstable();
                assert_eq!(shared, found);
            }
        }
    }

    #[test]
    fn waves_are_even_and_hold_everybody() {
        let layout = Layout { ranks: 100_800, group: 72, per_host: 8 };
        assert_eq!(layout.waves(1400), [Range { start: 0, end: 1400 }]);
        let waves = layout.waves(276);
        assert_eq!(waves.len(), 6);
        assert!(waves.iter().all(|wave| (233..=234).contains(&wave.len())));
        assert_eq!(waves.iter().map(|wave| layout.ranks_of(wave)).sum::<u32>(), 100_800);
        let odd = Layout { ranks: 100, group: 72, per_host: 8 };
        assert_eq!(
            odd.waves(1).iter().map(|wave| odd.ranks_of(wave)).collect::<Vec<_>>(),
            [72, 28]
        );
    }
}
