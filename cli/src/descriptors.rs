//! How many files and sockets this process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that a process needs beside those for connections: standard streams, a port, what
/// watches them and what wakes it.
pub const OWN: u64 = 16;

/// What RLIMIT_NOFILE can be raised to.
pub fn most() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Raises RLIMIT_NOFILE to `needed`, as far as that is allowed. Returns what it is then, at most
/// `needed`.
pub fn raise(needed: u64) -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(limit.maximum.map_or(needed, |most| most.min(needed)));
        // Where this fails, the limit stays what it was, and that is what counts.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.map_or(needed, |now| now.min(needed))
}
