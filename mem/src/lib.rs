//! Memory layer of symmem: groups of ranks whose memory is mapped into each other.
//!
//! # Does
//!
//! - [`Group`]: the ranks of a run ([`launch::threads`], [`launch::Processes`], [`Group::from_env`]
//!   under torchrun, mpirun, srun or `symmem run`), sub-groups that may overlap, splits by colour.
//! - [`Allocation`], [`Tensor`], [`View`]: memory that a rank owns, and typed ranges of it;
//!   [`MemoryPool`]: many of them in few segments, and memory that keeps its place under an id.
//!   On GPUs another library's memory can be one, too.
//! - Rendezvous: [`Group::rendezvous`] maps every member's allocation into every member, after all
//!   members have agreed on everything that must be equal; what differs is one typed error, naming
//!   field, ranks and values, on *every* rank.
//! - Multicast, where asked for and where all devices have it: one address that stands for the memory
//!   of all members ([`SymmetricMemory::multicast_ptr`]).
//! - One-sided operations: [`put`](SymmetricMemory::put) and [`get`](SymmetricMemory::get) of any
//!   contiguous view, fills of words that somebody polls ([`View::write_value32`],
//!   [`View::memset32`]), at once or in a stream's order.
//! - Defaults of the process ([`settings`]), fixed at their first use.
//! - Liveness: a peer that dies is known at once by a closed link, without heartbeats
//!   ([`liveness`]), and every wait of the layers above looks there.
//! - Recovery: [`Group::recover`] makes a new group of the ranks that are left, once they have agreed
//!   on who that is; memory that others can still write is [`quarantined`].
//! - The stores through which ranks first meet ([`store`]), PyTorch's TCPStore among them, and what a
//!   launcher says in the environment ([`bootstrap`]).
//!
//! # Does not
//!
//! - Give meaning to a group's pad and workspace: they are bytes here. Signals, barriers and lanes
//!   are `symmem-sync`'s.
//! - Hand out references into memory that a peer may write. [`View::read`] and [`View::write`] copy.
//! - Carry memory of the CPU to other hosts: a group may span hosts where its devices reach each other by
//!   fabric handles, and is refused on every rank, with both hosts, where they do not
//!   ([`Bootstrap::on_this_host`](bootstrap::Bootstrap::on_this_host) makes a group of those that do).
//! - Tell a host that is cut off from one that has died: either is lost to the others, and what it could write
//!   stays in quarantine.
//! - Talk to anybody while allocating, viewing or dropping. Only calls that are documented as
//!   collective meet other ranks, and each is bounded by a [`Wait`](symmem_hal::Wait).
//!
//! # Choices
//!
//! - *Descriptors travel by `SCM_RIGHTS` over a Unix socket*, never by ptrace or `pidfd_getfd`: no
//!   privilege is needed in a container. Handles that are bytes (of a fabric; of another library's
//!   memory) travel in the message itself.
//! - *"One host" is decided by meeting*: the process that binds the run's name in its network
//!   namespace leads, and all prove that they know the run's token. Where ranks do not meet, the error
//!   lists the hosts, users and namespaces.
//! - *One to three requests to the store a rank*, however large the group, and however many hosts it has: a
//!   host's ranks meet there, one of them brings their records to the store's
//!   [`gather`](store::Store::gather), and tells the others what came back. The gather is where hosts agree: a
//!   round succeeds on all of them or on none.
//! - *Dropped memory is retired, not freed*, until every member that mapped it has let go of it.
//! - *A pool's block is reused by consent*: what ranks let go of is said where they meet anyhow, so that
//!   all of them take the same bytes back at the same point of their programs, and the next blocks lie
//!   alike again. A message whenever a peer lets go would come at another moment on each rank.
//! - *Recovery agrees in the store, by one value that is sealed once*: the ranks need not agree on who
//!   is dead, and each may die at any step of it.
//! - *A closed link is not a dead process*: only its descriptor is, before its former peers' memory is
//!   used again.
//! - *Ranks are a type tied to their group*, so that a global rank cannot pass for a group's.
//!
//! # Two ranks
//!
//! ```
//! use symmem_mem::{Tensor, launch};
//!
//! let seen = launch::threads(2, |group| {
//!     // Local: nobody is spoken to.
//!     let mine = Tensor::<u32>::zeros(group.device(), &[4])?;
//!     mine.write(&[group.rank().index() as u32 + 1; 4])?;
//!     // Collective: each rank's four words are mapped into the other. All have written before it.
//!     let memory = group.rendezvous(&mine, &group.wait())?;
//!     let other = group.rank_at(1 - group.rank().index())?;
//!     let theirs: Tensor<u32> = memory.remote(other)?.try_into()?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(theirs.to_vec()?)
//! })?;
//! assert_eq!(seen[0].as_ref().unwrap(), &[2; 4]);
//! assert_eq!(seen[1].as_ref().unwrap(), &[1; 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bootstrap;
pub mod call;
mod exchange;
mod failure;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod handle;
pub mod launch;
pub mod liveness;
mod memory;
mod pool;
mod rendezvous;
pub mod settings;
#[cfg(feature = "stalls")]
#[doc(hidden)]
pub mod stalls;
#[cfg(not(feature = "stalls"))]
mod stalls;
#[doc(hidden)]
pub mod stamps;
pub mod store;
mod transfer;

pub use exchange::ExchangeError;
pub use failure::Failure;
pub use group::{
    Choices, Completion, Determinism, Group, Layer, Options, OptionsError, RankError, RecoverError,
    Subgroup, SubgroupError, quarantined,
};
pub use handle::{PeerError, SymmetricMemory};
#[cfg(feature = "cuda")]
pub use memory::ForeignError;
pub use memory::{Allocation, Tensor, TensorError, View, ViewError, collect, is_symmetric};
pub use pool::{MemoryPool, PersistentError, PoolUsage};
pub use rendezvous::{Mismatch, MulticastStep, NoMulticast, NotSymmetric, RendezvousError};
pub use symmem_hal as hal;
pub use transfer::{Fill, FillError, Transfer, TransferError};
