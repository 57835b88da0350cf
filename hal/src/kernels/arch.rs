//! What code is compiled for.

use core::fmt;
use core::str::FromStr;

/// A GPU's architecture: its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    /// The generation.
    pub major: u32,
    /// The member of it.
    pub minor: u32,
}

/// What a compilation makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Code of that architecture.
    Binary(Arch),
    /// Code in PTX, which a driver compiles for any later architecture.
    Portable(Arch),
}

impl Arch {
    /// As compilers number it: 90 for 9.0.
    #[must_use]
    pub fn number(self) -> u32 {
        self.major * 10 + self.minor
    }

    /// Whether the code compiled for it uses what no other architecture has. The kernels of 9.0 do:
    /// its matrix units cannot be reached otherwise.
    fn is_specific(self) -> bool {
        self == Arch { major: 9, minor: 0 }
    }

    /// Whether its code runs on `device`: on itself, and later members of its generation.
    #[must_use]
    pub fn runs_on(self, device: Arch) -> bool {
        self == device
            || (!self.is_specific() && self.major == device.major && self.minor < device.minor)
    }
}

impl From<(u32, u32)> for Arch {
    fn from((major, minor): (u32, u32)) -> Self {
        Arch { major, minor }
    }
}

impl Target {
    /// What to compile for a device, by a compiler that knows the architectures of these numbers:
    /// its own code, else PTX of the latest that is earlier; `None` where all are later.
    #[must_use]
    pub fn choose(device: Arch, known: &[u32]) -> Option<Self> {
        let number = device.number();
        let latest = known.iter().copied().filter(|known| *known <= number).max()?;
        Some(match latest == number {
            true => Target::Binary(device),
            false => Target::Portable(Arch { major: latest / 10, minor: latest % 10 }),
        })
    }

    /// The compiler's option.
    #[must_use]
    pub fn option(self) -> String {
        match self {
            Target::Binary(arch) => format!("--gpu-architecture={arch}"),
            Target::Portable(arch) => format!("--gpu-architecture=compute_{}", arch.number()),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.number(), if self.is_specific() { "a" } else { "" })
    }
}

/// A text does not name an architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no architecture: sm_80, sm_90a, sm_100 are some")]
pub struct ArchError(String);

impl FromStr for Arch {
    type Err = ArchError;

    fn from_str(text: &str) -> Result<Self, ArchError> {
        let number = text.strip_prefix("sm_").and_then(|number| number.parse::<u32>().ok());
        let arch = match text {
            "sm_90a" => Some(Arch { major: 9, minor: 0 }),
            _ => number.map(|number| Arch { major: number / 10, minor: number % 10 }),
        };
        // What has a name of its own has no other.
        arch.filter(|arch| arch.to_string() == text).ok_or_else(|| ArchError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn arch(major: u32, minor: u32) -> Arch {
        Arch { major, minor }
    }

    #[test]
    fn known_devices_get_their_own_code() {
        let known = [75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121];
        let option = |major, minor| Target::choose(arch(major, minor), &known).unwrap().option();
        assert_eq!(option(8, 0), "--gpu-architecture=sm_80");
        assert_eq!(option(8, 9), "--gpu-architecture=sm_89");
        assert_eq!(option(9, 0), "--gpu-architecture=sm_90a");
        assert_eq!(option(10, 0), "--gpu-architecture=sm_100");
        assert_eq!(option(12, 1), "--gpu-architecture=sm_121");
    }

    #[test]
    fn unknown_devices_get_what_a_driver_can_compile_for_them() {
        let known = [80, 100, 90];
        let choose = |major, minor| Target::choose(arch(major, minor), &known);
        assert_eq!(choose(8, 9), Some(Target::Portable(arch(8, 0))));
        assert_eq!(choose(9, 1), Some(Target::Portable(arch(9, 0))));
        assert_eq!(choose(13, 0), Some(Target::Portable(arch(10, 0))));
        // PTX of 9.0 alone: what only 9.0 has is not in it.
        assert_eq!(choose(9, 1).unwrap().option(), "--gpu-architecture=compute_90");
        assert_eq!(choose(7, 5), None);
        assert_eq!(Target::choose(arch(9, 0), &[]), None);
    }

    #[test]
    fn code_runs_on_its_generation() {
        assert!(arch(8, 0).runs_on(arch(8, 6)));
        assert!(arch(8, 6).runs_on(arch(8, 6)));
        assert!(!arch(8, 6).runs_on(arch(8, 0)));
        assert!(!arch(8, 0).runs_on(arch(9, 0)));
        assert!(arch(9, 0).runs_on(arch(9, 0)));
        assert!(!arch(9, 0).runs_on(arch(9, 1)));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for number in [70, 80, 89, 90, 100, 103, 121] {
            let arch = arch(number / 10, number % 10);
            assert_eq!(arch.to_string().parse(), Ok(arch));
        }
        for wrong in ["", "sm_", "80", "sm_90", "sm_80a", "sm_080", "compute_80", "sm_-1"] {
            assert!(wrong.parse::<Arch>().is_err(), "{wrong}");
        }
    }
}
