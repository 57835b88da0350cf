//! One rank's connection, and what it is at.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write as _};
use std::net::TcpStream;

use symmem::mem::store::tcp::wire::Answer;

use super::super::LoadError;
use crate::bench::logical::content::Round;
use crate::bench::logical::messages::Counts;

/// What a rank awaits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The start.
    Idle,
    /// The run's token.
    Token,
    /// The tokens of its host's other ranks, whose leader it is.
    Held,
    /// That a key is its own.
    Claim { round: Round },
    /// That a group's keys are all there.
    Wait { round: Round },
    /// Their values.
    Fetch { round: Round },
    /// That a peer's record is there.
    PeerWait { slot: u32 },
    /// The record.
    PeerGet { slot: u32 },
    /// The contributions of a group's hosts.
    Gather { round: Round },
    /// After the deadline: who is missing.
    Naming(Naming),
    /// Nothing more.
    Ended,
}

/// How a rank learns who is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The gather's own answer, now that it is cancelled.
    Gather,
    /// The cancellation's.
    Cancelled { missing: Vec<u32> },
    /// That of the cancelled wait, then of one CHECK for each slot that was `asked`.
    Checks { asked: Vec<u32>, next: Option<usize>, missing: Vec<u32> },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let round = |round: &Round| match round {
            Round::Records => "records",
            Round::Votes => "votes",
        };
        match self {
            Step::Idle => write!(f, "has yet to begin"),
            Step::Token => write!(f, "awaits the run's token"),
            Step::Held => write!(f, "awaits the ranks of its host"),
            Step::Claim { round: r } => write!(f, "claims its key of {}", round(r)),
            Step::Wait { round: r } => write!(f, "awaits its group's {}", round(r)),
            Step::Fetch { round: r } => write!(f, "fetches its group's {}", round(r)),
            Step::PeerWait { slot } => write!(f, "awaits the record of its group's slot {slot}"),
            Step::PeerGet { slot } => write!(f, "fetches the record of its group's slot {slot}"),
            Step::Gather { round: r } => write!(f, "gathers its group's {}", round(r)),
            Step::Naming(_) => write!(f, "asks who is missing"),
            Step::Ended => write!(f, "has everything"),
        }
    }
}

pub struct Rank {
    pub stream: TcpStream,
    pub rank: u32,
    /// Its host's place among those of the process.
    pub host: usize,
    pub step: Step,
    /// The answer that it awaits.
    pub due: Option<Answer>,
    /// What has come of it.
    pub input: Vec<u8>,
    /// Bytes that the input must have before it can be whole.
    pub needed: usize,
    /// What the socket did not take yet.
    output: VecDeque<u8>,
    pub counts: Counts,
}

impl Rank {
    pub fn new(stream: TcpStream, rank: u32, host: usize) -> Self {
        Rank {
            stream,
            rank,
            host,
            step: Step::Idle,
            due: None,
            input: Vec::new(),
            needed: 0,
            output: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Counts a request that is put in line.
    pub fn asked(&mut self, answer: Option<Answer>) {
        self.counts.requests += 1;
        self.due = answer;
    }

    /// Sends bytes after those in line. `true` if some stay, and nobody waits for room for them yet.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.counts.sent += bytes.len() as u64;
        if !self.output.is_empty() {
            self.output.extend(bytes);
            return Ok(false);
        }
        let sent = write_some(&self.stream, bytes)?;
        self.output.extend(&bytes[sent..]);
        Ok(sent < bytes.len())
    }

    /// Sends what is in line, as far as there is room. `true` if nothing is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        let sent = write_some(&self.stream, self.output.make_contiguous())?;
        self.output.drain(..sent);
        Ok(self.output.is_empty())
    }

    pub fn lost(&self, cause: io::Error) -> LoadError {
        LoadError::Lost { rank: self.rank, state: self.step.to_string(), cause }
    }

    pub fn answer(&self, cause: &str) -> LoadError {
        let (rank, state) = (self.rank, self.step.to_string());
        LoadError::Answer { rank, state, cause: cause.to_owned() }
    }

    pub fn wrong(&self, what: &str) -> LoadError {
        let (rank, state) = (self.rank, self.step.to_string());
        LoadError::Wrong { rank, state, what: what.to_owned() }
    }
}

/// Writes until everything is gone or there is no room.
fn write_some(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Whether an error says "not now".
pub fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_the_socket_does_not_take_stays_in_line() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut rank = Rank::new(stream, 0, 0);
        let bytes: Vec<u8> = (0..64 << 20).map(|i: u32| (i >> 8) as u8 ^ i as u8).collect();
        assert!(rank.send(&bytes).unwrap() && !rank.output.is_empty());
        // Somebody waits for room already.
        assert!(!rank.send(b"end").unwrap() && !rank.flush().unwrap());
        let mut peer = listener.accept().unwrap().0;
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        while !rank.flush().unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(rank.counts.sent, bytes.len() as u64 + 3);
        drop(rank);
        assert!(reading.join().unwrap() == [&bytes[..], b"end"].concat());
    }
}
