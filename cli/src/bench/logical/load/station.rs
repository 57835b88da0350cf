//! The hosts that a process stands for, and what groups have by right.

use super::super::content::{Content, Round};
use super::super::layout::{Host, Layout};
use super::super::messages::{Plan, Wave};

/// What all ranks of a wave need to know of it.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    pub plan: Plan,
    layout: Layout,
    pub content: Content,
    missing: Option<u32>,
}

impl Station {
    pub fn new(wave: &Wave) -> Self {
        let &Wave { plan, layout, missing, .. } = wave;
        Station { plan, layout, content: wave.content(), missing }
    }

    /// The ranks of a host that come. Its leader is the first of them.
    pub fn present(&self, host: &Host) -> impl Iterator<Item = u32> + use<> {
        let missing = self.missing;
        host.ranks.clone().filter(move |rank| missing != Some(*rank))
    }

    /// The number of slots of a group: one a rank.
    pub fn total(&self, group: u32) -> u32 {
        self.layout.members(group).len() as u32
    }

    /// The slot of a rank in its group.
    pub fn slot(&self, rank: u32) -> u32 {
        rank - self.layout.members(self.layout.group_of(rank)).start
    }

    pub fn rank_of(&self, group: u32, slot: u32) -> u32 {
        self.layout.members(group).start + slot
    }

    pub fn slots(&self, host: &Host) -> Vec<u32> {
        self.present(host).map(|rank| self.slot(rank)).collect()
    }

    /// What the leader of a host brings.
    pub fn value(&self, round: Round, host: &Host) -> Vec<u8> {
        let mut value = Vec::new();
        self.present(host).for_each(|rank| self.content.put(round, rank, &mut value));
        value
    }

    /// Whether those are what a group's hosts brought, slots and values.
    pub fn are_parts<'a>(
        &self,
        round: Round,
        group: u32,
        mut parts: impl Iterator<Item = (impl Iterator<Item = u32>, &'a [u8])>,
    ) -> bool {
        let mut well = true;
        for host in self.layout.hosts(group) {
            if self.present(&host).next().is_none() {
                continue;
            }
            let Some((slots, value)) = parts.next() else { return false };
            well &= slots.eq(self.present(&host).map(|rank| self.slot(rank)));
            well &= self.content.are(round, self.present(&host), value);
        }
        well && parts.next().is_none()
    }

    /// What a leader stores for each slot of its host, where a gather is by keys: its whole contribution
    /// for the first, for the others which one that is.
    pub fn entries(&self, round: Round, host: &Host) -> Vec<Vec<u8>> {
        let slots = self.slots(host);
        let Some(&head) = slots.first() else { return Vec::new() };
        let mut first = (slots.len() as u32).to_le_bytes().to_vec();
        slots.iter().for_each(|slot| first.extend_from_slice(&slot.to_le_bytes()));
        first.extend_from_slice(&self.value(round, host));
        let mark = [0u32.to_le_bytes(), head.to_le_bytes()].concat();
        std::iter::once(first).chain(std::iter::repeat_n(mark, slots.len() - 1)).collect()
    }

    /// Whether those are what stands for a group's slots, in their order.
    pub fn are_entries<'a>(
        &self,
        round: Round,
        group: u32,
        mut values: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let hosts = self.layout.hosts(group);
        let well = hosts.map(|host| self.is_entry(round, &host, &mut values));
        well.fold(true, |all, one| all & one) && values.next().is_none()
    }

    fn is_entry<'a>(
        &self,
        round: Round,
        host: &Host,
        values: &mut impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let count = self.present(host).count();
        let Some(first) = self.present(host).next() else { return true };
        let head = self.slot(first).to_le_bytes();
        let Some((slots, value)) = values.next().and_then(|v| v.split_at_checked(4 + 4 * count))
        else {
            return false;
        };
        let slots = slots.chunks_exact(4).map(|s| u32::from_le_bytes([s[0], s[1], s[2], s[3]]));
        let expected =
            std::iter::once(count as u32).chain(self.present(host).map(|rank| self.slot(rank)));
        let mut well = slots.eq(expected) && self.content.are(round, self.present(host), value);
        for _ in 1..count {
            let mark = values.next().and_then(|mark| mark.split_at_checked(4));
            well &= mark == Some((&[0; 4], &head));
        }
        well
    }

    /// Whether those are the records of a group's ranks, in their order.
    pub fn are_records<'a>(&self, group: u32, mut values: impl Iterator<Item = &'a [u8]>) -> bool {
        let is = |rank| values.next().is_some_and(|v| self.content.is(Round::Records, rank, v));
        let well = self.layout.members(group).map(is).fold(true, |all, one| all & one);
        well && values.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(missing: Option<u32>) -> Station {
        let layout = Layout { ranks: 10, group: 5, per_host: 2 };
        Station { plan: Plan::Gather, layout, content: Content::new(1, 20), missing }
    }

    #[test]
    fn what_hosts_bring_is_what_groups_have() {
        for missing in [None, Some(6), Some(9)] {
            let station = station(missing);
            let hosts: Vec<Host> =
                station.layout.hosts(1).filter(|h| station.present(h).next().is_some()).collect();
            for round in [Round::Records, Round::Votes] {
                let brought: Vec<(Vec<u32>, Vec<u8>)> = hosts
                    .iter()
                    .map(|host| (station.slots(host), station.value(round, host)))
                    .collect();
                let are = |parts: &[(Vec<u32>, Vec<u8>)]| {
                    let parts = parts.iter().map(|(s, v)| (s.iter().copied(), v.as_slice()));
                    station.are_parts(round, 1, parts)
                };
                assert!(are(&brought));
                assert!(!are(&brought[1..]) && !are(&[&brought[..], &brought[..1]].concat()));
                let mut other = brought.clone();
                other[0].0[0] += 1;
                assert!(!are(&other));
                let mut other = brought.clone();
                other[1].1[3] ^= 1;
                assert!(!are(&other));

                let stored: Vec<Vec<u8>> =
                    hosts.iter().flat_map(|host| station.entries(round, host)).collect();
                assert_eq!(stored.len() as u32, 5 - u32::from(missing.is_some()));
                let are = |values: &[Vec<u8>]| {
                    station.are_entries(round, 1, values.iter().map(Vec::as_slice))
                };
                assert!(are(&stored));
                assert!(!are(&stored[1..]) && !are(&[&stored[..], &stored[..1]].concat()));
                for index in 0..stored.len() {
                    let mut other = stored.clone();
                    *other[index].last_mut().into_iter().next().unwrap_or(&mut 0) ^= 1;
                    assert!(!are(&other), "{index}");
                }
            }
        }
    }

    #[test]
    fn records_are_in_order() {
        let station = station(None);
        let records: Vec<Vec<u8>> = (5..10)
            .map(|rank| {
                let mut record = Vec::new();
                station.content.put(Round::Records, rank, &mut record);
                record
            })
            .collect();
        let are = |records: &[Vec<u8>], group| {
            station.are_records(group, records.iter().map(Vec::as_slice))
        };
        assert!(are(&records, 1) && !are(&records, 0) && !are(&records[1..], 1));
        assert_eq!((station.slot(7), station.rank_of(1, 2), station.total(1)), (2, 7, 5));
    }
}
