use core::fmt;

/// The version that a library states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl Version {
    /// From CUDA's single number, 1000 * major + 10 * minor.
    #[must_use]
    pub const fn from_cuda(number: u32) -> Self {
        Version { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
