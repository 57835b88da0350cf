//! Starting ranks, or joining those that a launcher has started.

mod join;
mod on_host;
mod processes;
mod room;
mod threads;

pub use join::{Place, StartError};
pub use on_host::OnHost;
pub use processes::{Job, JobError, Processes, SpawnError};
pub use room::{NoRoom, TaskLimit, TaskLimitSource, check_room};
pub use threads::{Threads, threads};
