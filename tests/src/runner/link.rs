//! The control socket between the runner and a rank: one datagram is one message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest message. What does not fit is cut where it is made.
const MAX_MESSAGE: usize = 64 << 10;

/// Longest text in a message.
const MAX_TEXT: usize = 32 << 10;

/// Whether tests run long.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Soak {
    pub asked: bool,
    /// For those that can end by the clock.
    pub seconds: Option<u32>,
}

/// What the runner tells a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Run a test.
    Run { test: String, seed: u64, soak: Soak },
    /// Every rank has come to the meeting.
    Go,
    /// Some rank has failed and will not come to the meeting.
    GiveUp,
    /// End.
    End,
}

/// What a rank tells the runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Report {
    /// It can run tests.
    Ready,
    /// What it is about to do.
    Step(String),
    /// Something that every rank is to find the same.
    Same { key: String, value: String },
    /// It has come to a meeting, and waits to be told to go on.
    Met,
    /// It is about to die, as the test wants.
    Dying,
    /// What it found out, for people.
    Found { what: String },
    /// How a test ended on this rank.
    Ended(Outcome),
}

/// How a test ended on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
    /// It stopped, since another rank had failed.
    GaveUp,
}

/// One end.
#[derive(Debug)]
pub(super) struct Link(UnixDatagram);

impl Link {
    pub(super) fn new(socket: UnixDatagram) -> Self {
        Link(socket)
    }

    pub(super) fn send<M: Serialize>(&self, message: &M) -> io::Result<()> {
        let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
        self.0.send(&bytes).map(drop)
    }

    pub(super) fn receive<M: DeserializeOwned>(&self) -> io::Result<M> {
        let mut space = vec![0; MAX_MESSAGE];
        let length = self.0.recv(&mut space)?;
        postcard::from_bytes(&space[..length]).map_err(io::Error::other)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A text that fits in a message.
pub(super) fn text(text: impl Into<String>) -> String {
    let mut text = text.into();
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" ... (cut)");
    }
    text
}
