//! The units there are.

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
}

/// Every unit of every set.
pub fn all() -> Vec<Owned> {
    let mut all = Vec::new();
    for set in KERNEL_UNITS {
        (set.each)(&mut |unit| all.push(Owned::new(unit)));
    }
    all
}
