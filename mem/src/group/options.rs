//! What a group is made with.

use std::path::PathBuf;
use std::time::Duration;

use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{Fault, Kind};

use super::Choices;
use crate::settings;

/// Whether reductions keep the bitwise contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Determinism {
    /// The same bits on every rank, repeat, size, algorithm and backend. Algorithms that cannot
    /// promise it are refused.
    #[default]
    Bitwise,
    /// Any order of reduction, so that every algorithm may serve.
    Relaxed,
}

/// What the completion of an operation says of the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Completion {
    /// Nothing: this rank's output is final and its input is its own again.
    #[default]
    Local,
    /// All ranks have completed it, too.
    Group,
}

/// What a group is made with; every field is agreed by all members.
///
/// Built by assignment over [`Options::default`].
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Bytes of each rank's signal pad: `channels * world_size` words of 4 bytes. By default
    /// [`settings::signal_pad_size`].
    pub pad: Bytes,
    /// Bytes of workspace for each lane. Zero, the default, for as much as operations on the group's
    /// backend make use of: 56 MiB on GPUs, else 32 MiB.
    pub workspace: Bytes,
    /// Most lanes the group can have. Default 1.
    pub max_lanes: u32,
    /// Most blocks a grid can have, on backends that have blocks: lanes keep words for each. Default 128.
    pub max_blocks: u32,
    /// How long operations and meetings wait where the call says nothing else. Default 30 s.
    pub deadline: Duration,
    /// Whether each operation proves at its entry that it has its lane to itself.
    pub checked: bool,
    /// The epoch that fresh lanes count as completed; 0 means the usual one. Tests begin just below
    /// the places where epochs turn over.
    pub first_epoch: u32,
    /// Whether reductions keep the bitwise contract.
    pub determinism: Determinism,
    /// What completion says of other ranks.
    pub completion: Completion,
    /// Whether a rendezvous also makes one address that stands for all ranks' memory, where a store
    /// reaches every rank and a load can reduce: see
    /// [`SymmetricMemory::multicast_ptr`](crate::SymmetricMemory::multicast_ptr). Where the devices have
    /// none, or one refuses, all ranks do without.
    ///
    /// Default false, other than PyTorch's: of what is chosen by itself nothing uses it; it costs each
    /// rendezvous three rounds more and one of the objects of which a switch between GPUs has few; and
    /// where several tenants share a machine's GPUs, making one can put these out of service for all.
    pub multicast: bool,
    /// By which table algorithms are chosen.
    pub choices: Choices,
    /// What upper layers want agreed: (namespace, key, value).
    pub sections: Vec<(String, String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            pad: settings::take_signal_pad_size(),
            workspace: Bytes::ZERO,
            max_lanes: 1,
            max_blocks: 128,
            deadline: Duration::from_secs(30),
            checked: false,
            first_epoch: 0,
            determinism: Determinism::default(),
            completion: Completion::default(),
            multicast: false,
            choices: Choices::default(),
            sections: Vec::new(),
        }
    }
}

/// An option that no group can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The pad has no channel.
    #[error(
        "Options::pad is {pad}: too little for one channel of {world} ranks, which takes {needed}"
    )]
    Pad {
        /// The option.
        pad: Bytes,
        /// Ranks of the group.
        world: usize,
        /// Bytes of one channel.
        needed: Bytes,
    },
    /// A group has at least one lane, and a grid one block.
    #[error("Options::{option} is 0: at least 1 is needed")]
    Zero {
        /// Which.
        option: &'static str,
    },
    /// Pad and workspace do not fit in an address space.
    #[error("Options::pad and workspace for {lanes} lanes do not fit in 64 bits: ask for less")]
    TooLarge {
        /// The lanes.
        lanes: u32,
    },
    /// There is no table where one should be.
    #[error("SYMMEM_TUNE names {}: {cause}: name a table of `symmem tune`, or unset it", path.display())]
    Choices {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        cause: String,
    },
}

impl Fault for OptionsError {
    fn kind(&self) -> Kind {
        Kind::InvalidArgument
    }
}

impl Options {
    /// That a group of `world` ranks can have them.
    pub(crate) fn check(&self, world: usize) -> Result<(), OptionsError> {
        let needed = Bytes(4 * world as u64);
        if self.pad < needed {
            return Err(OptionsError::Pad { pad: self.pad, world, needed });
        }
        for (option, value) in [("max_lanes", self.max_lanes), ("max_blocks", self.max_blocks)] {
            if value == 0 {
                return Err(OptionsError::Zero { option });
            }
        }
        if self.region().is_none() {
            return Err(OptionsError::TooLarge { lanes: self.max_lanes });
        }
        Ok(())
    }

    /// These, with what is left to the backend filled in.
    #[must_use]
    pub fn on(&self, backend: BackendKind) -> Self {
        let mut options = self.clone();
        if options.workspace == Bytes::ZERO {
            options.workspace = match backend {
                BackendKind::Cuda => Bytes::mib(56),
                _ => Bytes::mib(32),
            };
        }
        options
    }

    /// Bytes of a rank's control page in host memory, of a group of `world` ranks: enough for its fixed
    /// words, and for the faults of as many channels as a pad can have.
    #[doc(hidden)]
    #[must_use]
    pub fn control_bytes(&self, world: usize) -> Option<Bytes> {
        // A channel's fault takes 8 bytes and 8 for each 64 ranks, where its slots take 4 a rank.
        let faults = self.pad.get().checked_mul(4)?;
        let words = (world as u64).checked_mul(64)?.checked_add(16 << 10)?;
        Bytes(faults.checked_add(words)?).round_up(64 << 10)
    }

    /// Bytes of one rank's shared region: pad, then workspace, each to a multiple of 4096. `None` where
    /// 64 bits do not count them.
    #[must_use]
    pub fn region(&self) -> Option<Bytes> {
        let pad = self.pad.round_up(4096)?;
        let workspace =
            Bytes(self.workspace.get().checked_mul(u64::from(self.max_lanes))?).round_up(4096)?;
        pad.checked_add(workspace)
    }
}
