//! The units there are.

use std::collections::HashSet;

use symmem::KERNEL_UNITS;
use symmem::hal::kernels::{KernelSource, Unit};

/// A unit that owns its definitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub source: &'static KernelSource,
    pub defines: Vec<(String, String)>,
}

impl Owned {
    fn new(unit: &Unit<'_>) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Owned { source: unit.source, defines: unit.defines.iter().map(owned).collect() }
    }

    /// Calls `act` with the unit.
    pub fn with<R>(&self, act: impl FnOnce(&Unit<'_>) -> R) -> R {
        let defines: Vec<_> = self.defines.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        act(&Unit { source: self.source, defines: &defines })
    }

    /// What a sample shall have: the source by itself, and with each of its definitions.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let file = (self.source.name, self.source.file.0);
        let defines = self.defines.iter().map(Some);
        [None].into_iter().chain(defines).map(move |define| Part { file, define })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Part<'u> {
    file: (&'static str, &'static str),
    define: Option<&'u (String, String)>,
}

/// Every unit of every set.
pub fn all() -> Vec<Owned> {
    let mut all = Vec::new();
    for set in KERNEL_UNITS {
        (set.each)(&mut |unit| all.push(Owned::new(unit)));
    }
    all
}

/// Few of the units, with every source and every value of every definition: always the one that has
/// the most of what is still missing.
pub fn sample(units: &[Owned]) -> Vec<Owned> {
    let mut missing: HashSet<Part<'_>> = units.iter().flat_map(Owned::parts).collect();
    let mut sample = Vec::new();
    while !missing.is_empty() {
        let new = |unit: &&Owned| unit.parts().filter(|part| missing.contains(part)).count();
        // The first of the best.
        let Some(best) = units.iter().rev().max_by_key(new) else { break };
        let found: HashSet<Part<'_>> = best.parts().collect();
        missing.retain(|part| !found.contains(part));
        sample.push(best.clone());
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    static FIRST: KernelSource = KernelSource { name: "a", file: ("first.cu", ""), headers: &[] };
    static SECOND: KernelSource = KernelSource { name: "a", file: ("second.cu", ""), headers: &[] };

    #[test]
    fn a_sample_has_every_value_once_and_is_small() {
        let mut units = vec![Owned::new(&Unit { source: &SECOND, defines: &[] })];
        for dtype in 0..12 {
            for op in 0..8 {
                let (dtype, op) = (dtype.to_string(), op.to_string());
                let defines = [("DTYPE", dtype.as_str()), ("OP", op.as_str())];
                units.push(Owned::new(&Unit { source: &FIRST, defines: &defines }));
            }
        }
        let sample = sample(&units);
        // As many as the definition with the most values has, and the other source.
        assert_eq!(sample.len(), 13);
        for unit in &units {
            for part in unit.parts() {
                assert!(sample.iter().any(|unit| unit.parts().any(|other| other == part)));
            }
        }
        assert!(super::sample(&[]).is_empty());
    }
}
