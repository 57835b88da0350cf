//! How a rank finds the socket that its runner left it.
#![allow(unsafe_code, reason = "takes over descriptors known by number")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::link::Link;
use super::place::Place;

/// Names the place, for a rank.
pub(super) const PLACE: &str = "SYMMEM_TESTS_PLACE";
/// Numbers of the ranks' descriptors, by rank, separated by commas. Empty counts as unset.
pub(super) const SOCKETS: &str = "SYMMEM_TESTS_SOCKETS";

/// What a re-executed program is.
#[derive(Debug)]
pub(super) struct Part {
    pub place: Place,
    /// One a rank, by rank: a process that is one rank uses its own alone.
    pub links: Vec<Link>,
}

/// This process's part, if a runner started it.
pub(super) fn part() -> io::Result<Option<Part>> {
    let Some(sockets) = std::env::var(SOCKETS).ok().filter(|s| !s.is_empty()) else {
        return Ok(None);
    };
    // Descriptors can be taken over once.
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    // Whoever waits for this process is the thread that made it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let place =
        std::env::var(PLACE).map_err(io::Error::other)?.parse().map_err(io::Error::other)?;
    let links = sockets.split(',').map(take).collect::<io::Result<Vec<_>>>()?;
    Ok(Some(Part { place, links }))
}

fn take(number: &str) -> io::Result<Link> {
    let number: RawFd = number.parse().map_err(io::Error::other)?;
    // SAFETY: the runner put this number into the environment for a descriptor that it left open
    // for this process, where nothing else knows it; `part` takes each once.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    // Not for this process's own children. Fails if the number is no descriptor after all.
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(Link::new(UnixDatagram::from(socket)))
}

/// The two ends for each rank: the runner's, and the rank's, which processes started from now on
/// inherit.
pub(super) fn pairs(ranks: usize) -> io::Result<(Vec<Link>, Vec<UnixDatagram>)> {
    let (mut near, mut far) = (Vec::with_capacity(ranks), Vec::with_capacity(ranks));
    for _ in 0..ranks {
        let (runners, ranks) = UnixDatagram::pair()?;
        runners.set_nonblocking(true)?;
        fcntl_setfd(&ranks, FdFlags::empty())?;
        near.push(Link::new(runners));
        far.push(ranks);
    }
    Ok((near, far))
}

/// The variables with which a rank finds its place and socket.
pub(super) fn variables(place: Place, far: &[UnixDatagram]) -> [(&'static str, String); 2] {
    let numbers: Vec<_> = far.iter().map(|s| s.as_raw_fd().to_string()).collect();
    [(PLACE, place.to_string()), (SOCKETS, numbers.join(","))]
}
