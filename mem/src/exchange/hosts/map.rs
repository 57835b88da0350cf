//! Who is on which host.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use parking_lot::Mutex;

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Whereabouts {
    /// Equal for all ranks of a host.
    pub host: String,
    /// Where it lets members on other hosts in.
    pub door: SocketAddr,
}

/// What is known of the ranks of a run, by global rank: all of them, once the first round is over.
#[derive(Debug, Default)]
pub(super) struct Map(Mutex<HashMap<u32, Whereabouts>>);

impl Map {
    pub fn add(&self, places: impl Iterator<Item = (u32, Whereabouts)>) {
        let mut known = self.0.lock();
        for (rank, place) in places {
            known.entry(rank).or_insert(place);
        }
    }

    /// Where each of these ranks is; `None` unless all are known.
    pub fn of(&self, members: &[u32]) -> Option<Vec<Whereabouts>> {
        let known = self.0.lock();
        members.iter().map(|member| known.get(member).cloned()).collect()
    }

    /// Whether a rank is on this host; `None` unless it is known.
    pub fn is_on(&self, rank: u32, host: &str) -> Option<bool> {
        self.0.lock().get(&rank).map(|place| place.host == host)
    }

    /// The indices of the members on each host, ascending; `None` unless all are known.
    pub fn hosts(&self, members: &[u32]) -> Option<Vec<Vec<u32>>> {
        let mut hosts: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (index, place) in (0u32..).zip(self.of(members)?) {
            hosts.entry(place.host).or_default().push(index);
        }
        Some(hosts.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_known_together_or_not_at_all() {
        let map = Map::default();
        let place = |host: &str| Whereabouts {
            host: host.to_owned(),
            door: SocketAddr::from(([127, 0, 0, 1], 1)),
        };
        map.add([(3, place("b")), (1, place("a")), (5, place("b"))].into_iter());
        assert_eq!(map.of(&[1, 2]), None);
        assert_eq!(map.hosts(&[3, 1, 5]), Some(vec![vec![1], vec![0, 2]]));
        assert_eq!(map.of(&[5]), Some(vec![place("b")]));
        assert_eq!([5, 1, 2].map(|rank| map.is_on(rank, "b")), [Some(true), Some(false), None]);
    }
}
