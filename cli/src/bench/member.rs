//! One rank of a benchmark: its group, and the few meetings that measuring needs.

use std::time::{Duration, Instant};

use symmem::hal::types::BackendKind;
use symmem::prelude::*;

use super::check::Wrong;

/// Why a rank could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The library said so.
    #[error("{0}")]
    Fault(Box<dyn Fault>),
    /// A result is not what it must be.
    #[error("{what}: {wrong}")]
    Wrong { what: String, wrong: Wrong },
}

impl RankError {
    /// Whether a call was refused for what it was, before anything was sent.
    pub fn is_refusal(&self) -> bool {
        match self {
            RankError::Fault(fault) => {
                matches!(fault.kind(), Kind::InvalidArgument | Kind::Unsupported)
            }
            RankError::Wrong { .. } => false,
        }
    }
}

impl<E: Fault> From<E> for RankError {
    fn from(error: E) -> Self {
        RankError::Fault(Box::new(error))
    }
}

/// The channel of the barriers around what is measured.
const CHANNEL: Channel = Channel(0);

/// A rank of the group that is measured.
pub struct Member<'g> {
    pub group: &'g Group,
    pub stream: Stream,
    wait: Wait,
    /// One word of each rank, for [`gather`](Self::gather).
    words: SymmetricMemory,
}

impl<'g> Member<'g> {
    /// Collective.
    pub fn new(group: &'g Group) -> Result<Self, RankError> {
        // For the length of the benchmark: this thread launches for no other.
        group.device().make_current()?;
        let stream = group.lane()?.default_stream().clone();
        let wait = group.wait();
        let word = Tensor::<u64>::zeros(group.device(), &[1])?;
        let words = group.rendezvous(&word, &wait)?;
        Ok(Member { group, stream, wait, words })
    }

    /// The same on a stream that can be captured, which a default stream cannot.
    pub fn capturing(&self) -> Result<Self, RankError> {
        let mode = match self.stream.is_inline() {
            true => StreamMode::Inline,
            false => StreamMode::Worker,
        };
        let stream = self.group.device().stream(mode)?;
        self.group.lane()?.prepare()?;
        Ok(Member { stream, wait: self.wait.clone(), words: self.words.clone(), ..*self })
    }

    /// The same on another stream.
    pub fn on(self, stream: &Stream) -> Result<Self, RankError> {
        self.group.lane()?.prepare()?;
        Ok(Member { stream: stream.clone(), ..self })
    }

    pub fn ranks(&self) -> usize {
        self.group.size()
    }

    pub fn rank(&self) -> usize {
        self.group.rank().index()
    }

    /// Makes memory of the group's device: symmetric if asked for, which is collective.
    pub fn allocate(&self, bytes: Bytes, symmetric: bool) -> Result<Allocation, RankError> {
        let allocation = Allocation::new(self.group.device(), bytes)?;
        if symmetric {
            let all = View::new(&allocation, Bytes::ZERO, DType::U8, Layout::flat(bytes.get()))?;
            self.group.rendezvous(&all, &self.wait)?;
        }
        Ok(allocation)
    }

    /// Enqueues a barrier.
    pub fn issue_barrier(&self) -> Result<(), RankError> {
        Ok(self.group.barrier(CHANNEL).on(&self.stream)?)
    }

    /// Waits until what was enqueued has run.
    pub fn finish(&self) -> Result<(), RankError> {
        // What an inline stream was given has run, and said how it went.
        if self.stream.is_inline() {
            return Ok(());
        }
        // The library's own wait sleeps when it gets long, and would be timed oversleeping.
        if self.group.device().kind() == BackendKind::Cuda {
            let deadline = self.wait.deadline();
            while !self.stream.is_idle() && Instant::now() < deadline {
                std::hint::spin_loop();
            }
        }
        Ok(self.stream.synchronize(&self.wait)?)
    }

    /// A barrier, done at return.
    pub fn barrier(&self) -> Result<(), RankError> {
        self.issue_barrier()?;
        self.finish()
    }

    /// Every rank's word, by rank.
    pub fn gather(&self, mine: u64) -> Result<Vec<u64>, RankError> {
        self.words.view().write(&[mine])?;
        self.barrier()?;
        let mut all = vec![0; self.ranks()];
        for (rank, word) in self.group.ranks().zip(&mut all) {
            self.words.remote(rank)?.read(std::slice::from_mut(word))?;
        }
        // Nobody overwrites a word that somebody still has to read.
        self.barrier()?;
        Ok(all)
    }

    /// The longest of all ranks' times.
    pub fn slowest(&self, mine: Duration) -> Result<Duration, RankError> {
        let nanos = u64::try_from(mine.as_nanos()).unwrap_or(u64::MAX);
        let slowest = self.gather(nanos)?.into_iter().max().unwrap_or(nanos);
        Ok(Duration::from_nanos(slowest))
    }
}
