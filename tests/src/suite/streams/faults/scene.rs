//! One rank is struck at a point of its work.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use symmem_hal::types::{BackendKind, Bytes, RankSet};
use symmem_hal::{Fault, Graph, Kind, Stream, StreamMode};
use symmem_mem::{Group, SymmetricMemory, Tensor, quarantined};
use symmem_sync::Lanes as _;

use super::super::graphs::capture;
use super::super::kernels::Gather;
use super::super::recovery::works;
use super::Point;
use super::strike::{STOPPED, Strike};
use crate::runner::{Context, PATIENT, TestError, Verdict};
use crate::support::eventually;
use crate::support::observe::{Holdings, is_asleep};
use crate::support::tombstone::Tombstone;
use crate::{check, check_eq};

/// What the contract allows between the end of a rank's links and the report.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Long enough for a rank to be in the middle of what it has begun.
const UNDER_WAY: Duration = Duration::from_millis(30);

const TAGS: [u64; 2] = [1, 2];

/// What a test throws to end a rank: not printed as a panic is.
struct Thrown;

/// A rank's part.
struct Scene<'c> {
    context: &'c Context,
    point: Point,
    group: Group,
    stream: Stream,
    gather: Gather,
    graph: Option<Graph>,
    memory: Tensor<u32>,
    tombstone: Tombstone,
    victim: usize,
    /// The rank that comes to what the victim is in once that has been struck: so it is in there.
    late: usize,
}

/// How what a rank was in has ended.
type Ended = Result<(), Box<dyn Fault>>;

pub(super) fn struck(context: &Context, strike: Strike, point: Point) -> Verdict {
    if let Some(lacking) = strike.lacks() {
        return Err(TestError::skipped(lacking));
    }
    let before = Holdings::of_all_ranks(context)?;
    let scene = Scene::new(context, point)?;
    let ended = if context.rank() == scene.victim {
        scene.before()?;
        strike.prepare()?;
        match strike {
            Strike::Panic | Strike::Leak => return scene.end_by_itself(strike),
            _ => scene.be_struck(strike)?,
        }
    } else {
        scene.before()?;
        scene.wait_for_the_victim(strike);
        scene.attempt(strike)?
    };
    if strike.is_survived() { scene.check_unharmed(ended) } else { scene.check_lost(ended) }?;
    before.check_nothing_left()?;
    context.found("nothing");
    Ok(())
}

impl<'c> Scene<'c> {
    /// Collective.
    fn new(context: &'c Context, point: Point) -> Result<Self, TestError> {
        let victim = (context.seed() % context.size() as u64) as usize;
        let group = context.group()?;
        works(&group)?;
        let tombstone = Tombstone::new(context, &group, victim)?;
        let (stream, gather) = (context.device().stream(StreamMode::Worker)?, Gather::new(&group)?);
        let graph = match point {
            Point::InsideReplay => Some(capture(group.lane()?, &gather, &stream, &TAGS)?),
            _ => None,
        };
        let memory = Tensor::<u32>::zeros(context.device(), &[1000])?;
        let late = (victim + 1) % context.size();
        context.ready()?;
        context.meet()?;
        Ok(Scene { context, point, group, stream, gather, graph, memory, tombstone, victim, late })
    }

    /// What all ranks do before one is struck.
    fn before(&self) -> Verdict {
        if self.point == Point::AfterRendezvous {
            self.rendezvous().map_err(|e| TestError::failed(e.to_string()))?;
            self.context.meet()?;
        }
        Ok(())
    }

    fn rendezvous(&self) -> Result<SymmetricMemory, Box<dyn Fault>> {
        self.group.rendezvous(&self.memory, &PATIENT).map_err(boxed)
    }

    /// All but one are in what the victim is struck in; where it is struck before, none is.
    fn wait_for_the_victim(&self, strike: Strike) {
        let in_it = matches!(
            self.point,
            Point::DuringRendezvous | Point::InsideCollective | Point::InsideReplay
        );
        if !in_it || self.context.rank() == self.late {
            // Should it not come, the checks tell.
            eventually(|| self.tombstone.since().is_ok());
            if strike.is_survived() {
                // It says so before it is stopped.
                std::thread::sleep(UNDER_WAY);
            }
        }
    }

    /// Enqueues two operations, eagerly or as a graph. Who waits in the first has not come to the second.
    fn issue(&self) -> Ended {
        if let Some(graph) = &self.graph {
            return graph.launch(&self.stream, &PATIENT).map_err(boxed);
        }
        let lane = self.group.lane().map_err(boxed)?;
        let issue = |tag| self.gather.issue(lane, &self.stream, &PATIENT, tag).map_err(boxed);
        TAGS.into_iter().try_for_each(issue)
    }

    fn operations(&self) -> Ended {
        self.issue()?;
        self.stream.synchronize(&PATIENT).map_err(boxed)
    }

    /// What every rank is in when the victim is struck, or comes to afterwards.
    fn attempt(&self, strike: Strike) -> Result<Ended, TestError> {
        self.context.step(format_args!("{:?}", self.point));
        let ended = match self.point {
            Point::BeforeRendezvous | Point::DuringRendezvous => self.rendezvous().map(drop),
            _ => self.operations(),
        };
        if ended.is_ok()
            && !strike.is_survived()
            && self.context.rank() != self.victim
            && (self.context.device().kind() == BackendKind::Cuda || strike == Strike::Panic)
        {
            // What a GPU was given goes on for a while without its process, and what a stream was while its
            // rank unwinds: the victim may have done its part after its end.
            return Ok(self.operations());
        }
        Ok(ended)
    }

    /// The victim, which something else ends or stops.
    fn be_struck(&self, strike: Strike) -> Result<Ended, TestError> {
        if !strike.is_survived() {
            self.context.dying();
        }
        if matches!(self.point, Point::BeforeRendezvous | Point::AfterRendezvous) {
            strike.strike(&self.tombstone)?;
            return self.attempt(strike);
        }
        let me = rustix::thread::gettid();
        std::thread::scope(|scope| {
            let striker = scope.spawn(|| {
                eventually(|| is_asleep(me));
                std::thread::sleep(UNDER_WAY);
                strike.strike(&self.tombstone)
            });
            let ended = self.attempt(strike);
            striker.join().unwrap_or_else(|_| Err(TestError::failed("the striker panicked")))?;
            ended
        })
    }

    /// The victim, whose own thread ends the process: what it is in is done on another, or by the stream.
    fn end_by_itself(self, strike: Strike) -> Verdict {
        self.context.dying();
        let tombstone = self.tombstone.clone();
        match self.point {
            Point::DuringRendezvous => {
                let (group, memory) = (self.group.clone(), self.memory.clone());
                // Ends with the process.
                std::thread::spawn(move || group.rendezvous(&memory, &PATIENT).map(drop));
            }
            Point::InsideCollective | Point::InsideReplay => {
                self.issue().map_err(|e| TestError::failed(e.to_string()))?;
            }
            Point::BeforeRendezvous | Point::AfterRendezvous => {}
        }
        std::thread::sleep(UNDER_WAY);
        if strike == Strike::Panic {
            tombstone.engrave();
            // All that the scene holds is dropped on the way.
            let thrown = catch_unwind(AssertUnwindSafe(move || {
                let _held = self;
                resume_unwind(Box::new(Thrown))
            }));
            drop(thrown);
        } else {
            std::mem::forget(self);
        }
        strike.strike(&tombstone)
    }

    /// Nobody was lost: everything took as long as the rank was stopped, and no longer for good.
    fn check_unharmed(self, ended: Ended) -> Verdict {
        let waited = self.tombstone.since()?;
        ended.map_err(|e| TestError::failed(format!("a stopped rank is not lost: {e}")))?;
        check!(waited >= STOPPED.mul_f32(0.9), "over {waited:?} after the rank was stopped");
        self.context.found(format_args!("no error; over {} ms after the stop", waited.as_millis()));
        self.context.meet()?;
        works(&self.group)
    }

    /// What the survivors are told, and that they go on without the victim.
    fn check_lost(self, ended: Ended) -> Verdict {
        let Scene { context, group, memory, tombstone, victim, .. } = &self;
        let after = tombstone.since()?;
        let Err(error) = ended else {
            return Err(TestError::failed(
                "what the victim takes part in has succeeded without it",
            ));
        };
        check_eq!(error.kind(), Kind::PeerLost, "{error}");
        check_eq!(error.ranks(), RankSet::one(*victim), "{error}");
        // How long a GPU takes to let a process end is the driver's.
        let bounded = context.device().kind() != BackendKind::Cuda;
        check!(!bounded || after < TOLD_WITHIN, "told {after:?} after the end: {error}");
        context.found(format_args!("{error}; told after {:.1} ms", after.as_secs_f64() * 1e3));
        let since = Instant::now();
        let recovered = group.recover(&PATIENT)?;
        let took = since.elapsed();
        check!(took < PATIENT.duration() / 2, "waited for a rank that is gone");
        check_eq!(recovered.size(), context.size() - 1);
        works(&recovered)?;
        // A process closes its links before it has ended: until then it could still write.
        check!(eventually(|| quarantined() == Bytes::ZERO), "{} quarantined", quarantined());
        recovered.rendezvous(memory, &PATIENT)?;
        context.found(format_args!(
            "goes on as {} of {} ranks, recovered in {:.1} ms",
            recovered.size(),
            context.size(),
            took.as_secs_f64() * 1e3
        ));
        Ok(())
    }
}

fn boxed(fault: impl Fault) -> Box<dyn Fault> {
    Box::new(fault)
}
