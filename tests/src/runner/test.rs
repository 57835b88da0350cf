//! What a test is.

use core::fmt;
use std::time::Duration;

use symmem_hal::types::BackendKind;

use super::context::Context;
use super::error::Verdict;
use super::place::{BACKENDS, Mode, Place};

/// Backends whose memory is this system's, under its limits: for tests that reach those limits.
pub const ON_MEMORY_OF_THE_SYSTEM: &[BackendKind] = &[BackendKind::Host, BackendKind::Stub];

/// Backends whose streams are not inline: for tests of what is found out later.
pub const ON_ASYNCHRONOUS_STREAMS: &[BackendKind] = &[BackendKind::Stub, BackendKind::Cuda];

/// One test: a function that every rank runs, and where it may run.
///
/// Made by [`test!`](crate::test), which names it after its module and function.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The module it is in, as `module_path!` says.
    module: &'static str,
    /// The function.
    function: &'static str,
    /// The fewest and the most ranks that it is for.
    ranks: (usize, usize),
    /// The backends that it is for.
    backends: &'static [BackendKind],
    /// The kinds of rank that it is for.
    modes: &'static [Mode],
    /// Whether it gets ranks of its own, which nobody uses after it.
    isolated: bool,
    /// What the watchdog allows it.
    timeout: Duration,
    pub(super) body: fn(&Context) -> Verdict,
}

/// Why a test is not for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// It is for other kinds of rank.
    Mode(&'static [Mode]),
    /// It is for other backends.
    Backend(&'static [BackendKind]),
    /// It needs more ranks.
    TooFew {
        /// How many.
        needed: usize,
    },
    /// It is for fewer ranks.
    TooMany {
        /// How many at most.
        most: usize,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Mode(modes) => {
                let names: Vec<_> = modes.iter().map(|m| m.name()).collect();
                write!(f, "for {} only", names.join(" or "))
            }
            Unfit::Backend(backends) => {
                let names: Vec<_> = backends.iter().map(|b| b.name()).collect();
                write!(f, "on {} only", names.join(" or "))
            }
            Unfit::TooFew { needed } => write!(f, "for {needed} ranks or more"),
            Unfit::TooMany { most } => write!(f, "for {most} ranks or fewer"),
        }
    }
}

impl Test {
    /// A test of ranks in any place. See [`test!`](crate::test).
    #[must_use]
    pub const fn new(
        module: &'static str,
        function: &'static str,
        body: fn(&Context) -> Verdict,
    ) -> Self {
        Test {
            module,
            function,
            ranks: (1, usize::MAX),
            backends: BACKENDS,
            modes: &[Mode::Processes, Mode::Threads],
            isolated: false,
            timeout: Duration::from_secs(60),
            body,
        }
    }

    /// For `fewest` to `most` ranks.
    #[must_use]
    pub const fn ranks(mut self, fewest: usize, most: usize) -> Self {
        self.ranks = (fewest, most);
        self
    }

    /// For `fewest` ranks or more.
    #[must_use]
    pub const fn at_least(self, fewest: usize) -> Self {
        self.ranks(fewest, usize::MAX)
    }

    /// For one backend.
    #[must_use]
    pub const fn only_on(mut self, backends: &'static [BackendKind]) -> Self {
        self.backends = backends;
        self
    }

    /// For one kind of rank.
    #[must_use]
    pub const fn only_as(mut self, modes: &'static [Mode]) -> Self {
        self.modes = modes;
        self
    }

    /// Without ranks: the body runs once in a process of its own, and makes the ranks it needs.
    #[must_use]
    pub const fn local(mut self) -> Self {
        self.modes = &[Mode::Local];
        self.ranks = (1, 1);
        self
    }

    /// With fresh ranks, which nobody uses afterwards: the test kills some, or leaves them at odds.
    #[must_use]
    pub const fn isolated(mut self) -> Self {
        self.isolated = true;
        self
    }

    /// With another time on the watchdog than a minute.
    #[must_use]
    pub const fn seconds(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// Its name: the module within the suite and the function.
    #[must_use]
    pub fn name(&self) -> String {
        let module = self.module.split_once("suite::").map_or(self.module, |(_, inner)| inner);
        format!("{module}::{}", self.function)
    }

    /// The layer it is of: the first part of its name.
    #[must_use]
    pub fn layer(&self) -> String {
        self.name().split("::").next().unwrap_or_default().to_owned()
    }

    /// Whether it gets ranks of its own.
    #[must_use]
    pub const fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// What the watchdog allows it.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether it is for a place.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn fits(&self, place: &Place) -> Result<(), Unfit> {
        let (fewest, most) = self.ranks;
        if !self.modes.contains(&place.mode) {
            Err(Unfit::Mode(self.modes))
        } else if !self.backends.contains(&place.backend) {
            Err(Unfit::Backend(self.backends))
        } else if place.ranks < fewest {
            Err(Unfit::TooFew { needed: fewest })
        } else if place.ranks > most {
            Err(Unfit::TooMany { most })
        } else {
            Ok(())
        }
    }
}

/// A [`Test`](crate::runner::Test) of a function, named after it and the module it is in.
#[macro_export]
macro_rules! test {
    ($function:ident) => {
        $crate::runner::Test::new(module_path!(), stringify!($function), $function)
    };
}
