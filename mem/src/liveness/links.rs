//! Links between processes, and the watcher that listens to them.
//!
//! On one host a link is a pair of sockets with a descriptor of the process at its other end. Between
//! hosts it is a TCP connection: when that ends, the rank at its other end is lost, but nobody knows
//! whether its device still writes, so its end is never taken for known.
//!
//! One thread a process, from the first link on, polls every link and every peer process. It makes
//! no device call and takes no lock that is held during a wait: it sets bits in the groups'
//! statuses and wakes whoever sleeps.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::fork;
use super::fork::LinkFd;
use super::socket::Socket;
use super::{Message, Register, Voice};
use crate::exchange::ExchangeError;

/// This process's links. The watcher ends with the last owner.
#[derive(Debug)]
pub(crate) struct Links {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    bell: LinkFd,
    register: Arc<Register>,
}

#[derive(Debug, Default)]
struct State {
    /// By global rank. Two rounds at once may each have made a link to the same peer; either
    /// closing means the same.
    links: HashMap<u32, Vec<Link>>,
    /// Global ranks whose process has ended, in the order in which that was seen; where a process
    /// cannot be watched, its link's end counts.
    ended: Vec<u32>,
    /// Processes that are lost and not known to have ended, by global rank.
    dying: Vec<Dying>,
    watching: bool,
    stop: bool,
}

#[derive(Debug)]
struct Link {
    socket: Arc<Socket>,
    process: Option<Arc<LinkFd>>,
    out: VecDeque<Message>,
}

impl Links {
    pub(crate) fn new(register: Arc<Register>) -> Result<Self, ExchangeError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| ExchangeError::errno("eventfd", e))?;
        let inner = Inner { state: Mutex::default(), bell: LinkFd::new(bell), register };
        Ok(Links { inner: Arc::new(inner) })
    }

    /// The global ranks to which there is a link.
    pub(crate) fn peers(&self) -> Vec<u32> {
        self.inner.state.lock().links.keys().copied().collect()
    }

    /// Whether there is a link to a global rank, or was one until its process ended.
    pub(crate) fn has_met(&self, global: u32) -> bool {
        let state = self.inner.state.lock();
        state.links.contains_key(&global) || state.ended.contains(&global)
    }

    /// If a global rank's process has ended: as which of those that have. One that has only closed
    /// its link may come again, to the next run of the name.
    pub(crate) fn lost_order(&self, global: u32) -> Option<usize> {
        self.inner.state.lock().ended.iter().position(|rank| *rank == global)
    }

    /// Adds a link to a peer and, if there is one, a descriptor of its process.
    pub(crate) fn add(
        &self,
        peer: u32,
        socket: OwnedFd,
        process: Option<OwnedFd>,
    ) -> Result<(), ExchangeError> {
        self.insert(peer, Socket::near(socket), process)
    }

    /// Adds a link to a peer on another host.
    pub(crate) fn add_far(&self, peer: u32, stream: LinkFd) -> Result<(), ExchangeError> {
        let socket = Socket::far(stream).map_err(|e| ExchangeError::errno("setsockopt", e))?;
        self.insert(peer, socket, None)
    }

    fn insert(
        &self,
        peer: u32,
        socket: Socket,
        process: Option<OwnedFd>,
    ) -> Result<(), ExchangeError> {
        let link = Link {
            socket: Arc::new(socket),
            process: process.map(|fd| Arc::new(LinkFd::new(fd))),
            out: VecDeque::new(),
        };
        let mut state = self.inner.state.lock();
        state.links.entry(peer).or_default().push(link);
        if !state.watching {
            let inner = self.inner.clone();
            std::thread::Builder::new()
                .name("symmem-watcher".to_owned())
                .spawn(move || watch(&inner))
                .map_err(|e| ExchangeError::system("spawn", e))?;
            state.watching = true;
        }
        drop(state);
        self.inner.ring();
        Ok(())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if !fork::is_child() {
            self.inner.state.lock().stop = true;
            self.inner.ring();
        }
    }
}

impl Voice for Links {
    fn send(&self, to: u32, message: Message) {
        let mut state = self.inner.state.lock();
        let Some(link) = state.links.get_mut(&to).and_then(|links| links.first_mut()) else {
            return;
        };
        link.out.push_back(message);
        if !link.flush() {
            drop(state);
            self.inner.ring();
        }
    }

    fn exclude(&self, rank: u32) {
        // Without a descriptor of its process nobody learns of its end.
        let _ = self.inner.let_go(rank);
        self.inner.ring();
    }
}

impl Link {
    /// Sends what it can; `false` if something is left.
    fn flush(&mut self) -> bool {
        while let Some(message) = self.out.front() {
            match self.socket.send(message) {
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => {}
                // Sent, or the peer is gone, which the watcher sees.
                Ok(()) | Err(_) => {
                    self.out.pop_front();
                }
            }
        }
        true
    }
}

impl Inner {
    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Closes the links to a peer, which counts as lost. Its process, where it is known, is watched to
    /// its end; `true` if it had links and none is known, though it is on this host.
    fn let_go(&self, peer: u32) -> bool {
        let mut state = self.state.lock();
        let Some(links) = state.links.remove(&peer) else { return false };
        let process = links.iter().find_map(|link| link.process.clone());
        let unknown = process.is_none();
        let is_far = links.iter().any(|link| link.socket.is_far());
        if unknown {
            state.ended.push(peer);
        }
        state.dying.extend(process.map(|process| (peer, process)));
        drop(state);
        self.register.lost(peer);
        unknown && !is_far
    }
}

fn watch(inner: &Arc<Inner>) {
    // A bug here must not leave groups that believe all is well.
    if catch_unwind(AssertUnwindSafe(|| watch_loop(inner))).is_err() {
        tracing::error!("the watcher panicked; every peer counts as lost");
        let peers: Vec<u32> = inner.state.lock().links.drain().map(|(peer, _)| peer).collect();
        peers.into_iter().for_each(|peer| inner.register.lost(peer));
    }
}

/// What the watcher polls of one link.
struct Watched {
    peer: u32,
    socket: Arc<Socket>,
    process: Option<Arc<LinkFd>>,
    pending: bool,
}

/// A lost peer's process.
type Dying = (u32, Arc<LinkFd>);

/// All links as they are now, and the processes whose end is awaited; `None` once the watcher is to
/// end.
fn snapshot(inner: &Inner) -> Option<(Vec<Watched>, Vec<Dying>)> {
    let state = inner.state.lock();
    let watch = |peer: u32, link: &Link| Watched {
        peer,
        socket: link.socket.clone(),
        process: link.process.clone(),
        pending: !link.out.is_empty(),
    };
    let all =
        state.links.iter().flat_map(|(peer, links)| links.iter().map(move |l| watch(*peer, l)));
    (!state.stop).then(|| (all.collect(), state.dying.clone()))
}

fn watch_loop(inner: &Arc<Inner>) {
    let bell = &inner.bell;
    loop {
        let Some((watched, dying)) = snapshot(inner) else { return };
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        for Watched { socket, process, pending, .. } in &watched {
            let events = if *pending { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::new(socket.fd(), events));
            // A peer without a process descriptor gets its socket polled twice instead.
            fds.push(match process {
                Some(process) => PollFd::new(&**process, PollFlags::IN),
                None => PollFd::new(socket.fd(), PollFlags::empty()),
            });
        }
        fds.extend(dying.iter().map(|(_, process)| PollFd::new(&**process, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => {
                tracing::error!(error = %e, "the watcher cannot poll; every peer counts as lost");
                watched.iter().for_each(|w| inner.register.lost(w.peer));
                return;
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let _ = rustix::io::read(bell, &mut [0u8; 8]);
        for (i, Watched { peer, socket, process, pending }) in watched.iter().enumerate() {
            let (link_ready, process_ready) =
                (ready[1 + 2 * i], process.is_some() && ready[2 + 2 * i]);
            if *pending && let Some(links) = inner.state.lock().links.get_mut(peer) {
                links.iter_mut().for_each(|link| {
                    link.flush();
                });
            }
            // What the peer said before it ended is heard first: a leave makes its end orderly.
            let closed = (link_ready || process_ready) && hear(inner, *peer, socket);
            if (closed || process_ready) && inner.let_go(*peer) {
                // Its descriptors closed with it, as far as can be known here.
                inner.register.gone(*peer);
            }
        }
        let ended = dying.iter().zip(&ready[1 + 2 * watched.len()..]).filter(|(_, ended)| **ended);
        for ((peer, process), _) in ended {
            let mut state = inner.state.lock();
            state.dying.retain(|(_, awaited)| !Arc::ptr_eq(awaited, process));
            state.ended.push(*peer);
            drop(state);
            inner.register.gone(*peer);
        }
    }
}

/// Reads all that a link holds; `true` if it is closed.
fn hear(inner: &Inner, peer: u32, socket: &Socket) -> bool {
    loop {
        match socket.receive() {
            Ok(Some(Ok(message))) => inner.register.receive(peer, message),
            Ok(Some(Err(error))) => {
                tracing::warn!(peer, %error, "a message on a link is not one");
            }
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return true,
        }
    }
}
