//! What a block of a rank does in a model: a script of operations, checked.

use std::future::poll_fn;
use std::task::Poll;

use symmem_hal::types::RankSet;
use symmem_mem::call::Issued;

use super::world::{Machine, View};
use crate::protocol::control::{self, Cause, Gate, Look, Reason, Record, Verdict};
use crate::protocol::lane::{Agreed, Clear, LookedBack, Phase};
use crate::protocol::{
    Arrival, Call, ControlMemory, Entry, Epoch, Header, LaneMemory, Mismatch, Operation, Peers,
    Progress, Refused, Seat, Word, header, lane,
};

/// An operation of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub kind: Kind,
    /// Items of payload.
    pub size: usize,
    /// Blocks.
    pub grid: usize,
    /// How items travel.
    pub via: Via,
    /// Part of the signature and of every item, and of nothing else.
    pub tag: usize,
    /// A run of an operation in a graph: which one.
    pub node: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Every rank reads every rank's items.
    Exchange,
    /// Every rank reads the root's items.
    Rooted(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Packets,
    Flags,
}

impl Step {
    pub const fn exchange(size: usize, grid: usize) -> Self {
        Step { kind: Kind::Exchange, size, grid, via: Via::Packets, tag: 0, node: None }
    }

    pub const fn rooted(root: usize, size: usize, grid: usize) -> Self {
        Step { kind: Kind::Rooted(root), ..Step::exchange(size, grid) }
    }

    pub const fn empty() -> Self {
        Step::exchange(0, 1)
    }

    /// The same through raw staging and flags.
    pub const fn staged(self) -> Self {
        Step { via: Via::Flags, ..self }
    }

    /// Another call that looks alike until headers are compared.
    pub const fn tagged(self, tag: usize) -> Self {
        Step { tag, ..self }
    }

    /// The same as a run of an operation in a graph.
    pub const fn replayed(self, node: usize) -> Self {
        Step { node: Some(node), ..self }
    }

    fn signature(self) -> u64 {
        let (kind, root) = match self.kind {
            Kind::Exchange => (1, 0),
            Kind::Rooted(root) => (2, root),
        };
        let origin = self.node.map_or(0, |node| node + 1);
        [kind, root, self.size, self.grid, self.via as usize, self.tag, origin]
            .into_iter()
            .fold(0, |sum, part| sum << 8 | part as u64)
    }
}

/// What a program leaves out, to show that the models notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// It stores without waiting for the headers of e - 1.
    NoLeave,
    /// It succeeds without comparing headers.
    NoComparison,
    /// It gives up as soon as it sees a cause, without one more poll.
    Hasty,
    /// It looks back at whatever header is in a slot, be it of the operation before.
    AnyEpoch,
}

/// When a program looks back at its last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookBack {
    Never,
    /// As soon as it has ended, as a rank does that leaves.
    Alone,
    /// Once every rank has ended, as a barrier does.
    Together,
}

/// How a program runs its script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub checked: bool,
    /// Misses between two looks at the control page.
    pub period: u32,
    /// Misses of one wait after which its deadline is over.
    pub patience: u32,
    /// Whether a miss ends the program instead, as [`Stop::Blocked`].
    pub once: bool,
    pub look_back: LookBack,
    pub flaw: Flaw,
}

impl Habits {
    pub const PLAIN: Habits = Habits {
        checked: false,
        period: u32::MAX,
        patience: u32::MAX,
        once: false,
        look_back: LookBack::Never,
        flaw: Flaw::None,
    };
    /// Looks at the control page at every miss.
    pub const WATCHFUL: Habits = Habits { period: 1, ..Habits::PLAIN };
}

/// Why a program ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The rank reports this failure.
    Failed(Record),
    /// A poll missed. A miss has no effect, so what happens after one also happens in a schedule
    /// that polls later: a model that visits all schedules loses nothing when it ends here.
    Blocked,
}

impl From<Record> for Stop {
    fn from(record: Record) -> Self {
        Stop::Failed(record)
    }
}

/// Lets others run.
pub(super) async fn tick() {
    let mut ticked = false;
    poll_fn(|_| {
        if ticked {
            return Poll::Ready(());
        }
        ticked = true;
        Poll::Pending
    })
    .await;
}

/// Lets others run where the machine does so by itself nowhere.
async fn breathe<M: Machine>() {
    if M::PREEMPT {
        tick().await;
    }
}

/// The value of an item: another for every call, writer and index, in both halves.
fn payload(step: Step, issue: usize, writer: usize, index: usize) -> u64 {
    let seed = (step.tag << 24 | (issue + 1) << 16 | (writer + 1) << 8 | (index + 1)) as u64;
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Which issue the last of these steps is: of all calls of the lane, or of the runs of its operation in
/// a graph, which a kernel counts on its device.
fn issued(script: &[Step]) -> Issued {
    let node = script.last().and_then(|step| step.node);
    let count = script.iter().filter(|step| step.node == node).count() as u64;
    Issued(if node.is_some() { Issued::REPLAY | count } else { count })
}

/// Runs block `block` of `view`'s rank through `script`. `Err` is the failure that the rank
/// reports. Panics when it reads what it should not.
pub(super) async fn run<M: Machine>(
    view: View<M>,
    block: usize,
    script: Vec<Step>,
    first: Epoch,
    habits: Habits,
) -> Result<(), Stop> {
    let mut epoch = first;
    for (issue, step) in script.iter().enumerate() {
        if block < step.grid {
            let issued = issued(&script[..=issue]);
            let mut part = Part { view: &view, block, step: *step, issue, issued, epoch, habits };
            if let Err(stop) = part.run().await {
                // The blocks of a rank fail together; the others need not wait for this one.
                if let Stop::Failed(_) = stop {
                    view.world.left[view.rank][block].store_release(u32::MAX);
                }
                return Err(stop);
            }
        }
        epoch = epoch.next();
        if issue + 1 == script.len() {
            break;
        }
        leave_together(&view, block, issue + 1, habits).await?;
    }
    match script.last() {
        Some(step) if block == 0 => look_back(&view, *step, epoch.previous(), habits).await,
        _ => Ok(()),
    }
}

/// How many operations a rank has left that has come to the end of its script, behind which it looks
/// back. Less than of one that failed.
const AT_THE_END: u32 = u32::MAX - 1;

/// Looks back at the last call, for all blocks of the rank.
async fn look_back<M: Machine>(
    view: &View<M>,
    step: Step,
    epoch: Epoch,
    habits: Habits,
) -> Result<(), Stop> {
    // Whether every rank has ended well, so that its last header is there.
    let mut all = habits.look_back == LookBack::Together;
    match habits.look_back {
        LookBack::Never => return Ok(()),
        LookBack::Alone => {}
        LookBack::Together => {
            // What a barrier is: everybody's word, released and acquired.
            view.world.left[view.rank][0].store_release(AT_THE_END);
            for left in &view.world.left {
                let mut seen = left[0].load_acquire();
                while seen < AT_THE_END {
                    if habits.once {
                        return Err(Stop::Blocked);
                    }
                    tick().await;
                    seen = left[0].load_acquire();
                }
                all &= seen == AT_THE_END;
            }
        }
    }
    // A rank may have failed before its header was there.
    if view.control(view.rank).is_some_and(|page| page.is_aborted()) {
        return Err(control::adopt(view).expect("an abort has a record").into());
    }
    let found = match habits.flaw {
        Flaw::AnyEpoch => look_back_at_any(view, epoch),
        _ => lane::look_back(view),
    };
    match found {
        Ok(seen) => {
            assert!(!all || seen == LookedBack::All, "something is not there behind a barrier");
            Ok(())
        }
        Err(Mismatch { rank, difference, .. }) => {
            let issued = Issued(0);
            let part = Part { view, block: 0, step, issue: 0, issued, epoch, habits };
            let stop =
                part.fail(Reason::CallMismatch(difference), Some(rank), RankSet::new()).await;
            view.world.left[view.rank][0].store_release(u32::MAX);
            Err(stop)
        }
    }
}

/// As [`lane::look_back`], with a header of the epoch that had the slot before, where none of `epoch` is
/// there yet.
fn look_back_at_any<M: Machine>(view: &View<M>, epoch: Epoch) -> Result<LookedBack, Mismatch> {
    let of = |writer| {
        let slot = view.header(epoch.parity(), 0, writer, view.rank);
        header::poll(slot, epoch).or_else(|| header::poll(slot, epoch.previous().previous()))
    };
    let Some(mine) = of(view.rank) else { return Ok(LookedBack::Part) };
    for rank in 0..view.world() {
        let compared = of(rank).map_or(Ok(()), |theirs| mine.compare(theirs));
        compared.map_err(|difference| Mismatch { rank, epoch, difference })?;
    }
    Ok(LookedBack::All)
}

/// Waits until every block of the rank has left `count` operations.
async fn leave_together<M: Machine>(
    view: &View<M>,
    block: usize,
    count: usize,
    habits: Habits,
) -> Result<(), Stop> {
    let count = count as u32;
    let left = &view.world.left[view.rank];
    if left.len() > 1 {
        left[block].store_release(count);
    }
    for other in (0..left.len()).filter(|&other| other != block) {
        while left[other].load_acquire() < count {
            if habits.once {
                return Err(Stop::Blocked);
            }
            tick().await;
        }
    }
    Ok(())
}

/// One block's part in one operation.
struct Part<'v, M: Machine> {
    view: &'v View<M>,
    block: usize,
    step: Step,
    issue: usize,
    issued: Issued,
    epoch: Epoch,
    habits: Habits,
}

impl<M: Machine> Part<'_, M> {
    fn items(&self) -> impl Iterator<Item = usize> + use<M> {
        (self.block..self.step.size).step_by(self.step.grid)
    }

    /// The header and the ranks that this block feeds and consumes.
    fn call(&self) -> Call<'static> {
        let header = Header { signature: self.step.signature(), issue: self.issued.0 };
        let (feeds, consumes) = match self.step.kind {
            _ if self.items().next().is_none() => (Peers::None, Peers::None),
            Kind::Exchange => (Peers::All, Peers::All),
            Kind::Rooted(root) if root == self.view.rank => (Peers::All, Peers::None),
            Kind::Rooted(root) => (Peers::None, Peers::One(root)),
        };
        Call { header, feeds, consumes }
    }

    async fn run(&mut self) -> Result<(), Stop> {
        let view = self.view;
        let seat = Seat { block: self.block, grid: self.step.grid, checked: self.habits.checked };
        let call = self.call();
        let mut gate = Gate::every(self.habits.period);

        let mut arrival = match lane::enter(view, seat, call) {
            Ok(arrival) => arrival,
            Err(Refused::Busy { .. }) => {
                return Err(self.fail(Reason::LaneBusy, None, RankSet::new()).await);
            }
            Err(refused) => {
                let record = control::adopt(view);
                return Err(record.unwrap_or_else(|| panic!("{refused} without a record")).into());
            }
        };
        assert_eq!(arrival.epoch(), self.epoch, "rank {} block {}", view.rank, self.block);
        breathe::<M>().await;
        let clear = match self.habits.flaw {
            Flaw::NoLeave => Clear::forged(),
            _ => self.wait(&mut gate, &mut arrival, Arrival::poll).await?,
        };
        let mut operation = arrival.publish(clear);
        breathe::<M>().await;

        if let Peers::All = call.feeds {
            self.send(&operation).await;
        }
        let mut wrong = None;
        for writer in (0..view.world()).filter(|&writer| writer != view.rank) {
            if call.consumes.contains(writer) {
                wrong = wrong.or(self.receive(&mut gate, &mut operation, writer).await?);
            }
        }
        let agreed = match self.habits.flaw {
            Flaw::NoComparison => Agreed::forged(),
            _ => self.wait(&mut gate, &mut operation, Operation::poll_headers).await?,
        };
        // Only what all agreed on need be right.
        assert_eq!(wrong, None, "read what was not written (got, expected)");
        breathe::<M>().await;
        assert_eq!(operation.exit(agreed), self.epoch.next());
        Ok(())
    }

    async fn send(&self, operation: &Operation<'_, View<M>>) {
        for (count, index) in self.items().enumerate() {
            let value = payload(self.step, self.issue, self.view.rank, index);
            match self.step.via {
                Via::Packets => operation.put(index, value),
                Via::Flags => {
                    self.view.stage(self.epoch.parity(), index, value);
                    operation.raise(count as u32 + 1);
                }
            }
            breathe::<M>().await;
        }
    }

    /// Reads a writer's items; the first that is wrong, and what it should be.
    async fn receive(
        &mut self,
        gate: &mut Gate,
        operation: &mut Operation<'_, View<M>>,
        writer: usize,
    ) -> Result<Option<(u64, u64)>, Stop> {
        let mut wrong = None;
        for (count, index) in self.items().enumerate() {
            let value = match self.step.via {
                Via::Packets => {
                    self.wait(gate, operation, |o| Ok(o.poll_packet(index, writer))).await?
                }
                Via::Flags => {
                    self.wait(gate, operation, |o| Ok(o.poll_flag(writer, count as u32 + 1)))
                        .await?;
                    self.view.staged(self.epoch.parity(), index, writer)
                }
            };
            let expected = payload(self.step, self.issue, writer, index);
            if value != expected {
                wrong = wrong.or(Some((value, expected)));
            }
            breathe::<M>().await;
        }
        Ok(wrong)
    }

    /// Polls until ready, or until the gate ends it.
    async fn wait<P: Phase, T>(
        &self,
        gate: &mut Gate,
        phase: &mut P,
        mut poll: impl FnMut(&mut P) -> Result<Progress<T>, Mismatch>,
    ) -> Result<T, Stop> {
        let mut misses = 0;
        loop {
            let step = match poll(phase) {
                Ok(Progress::Ready(value)) => return Ok(value),
                Ok(Progress::Pending { .. }) if self.habits.once => return Err(Stop::Blocked),
                Ok(Progress::Pending { writer }) => {
                    misses += 1;
                    let look = || self.look(phase, writer, misses);
                    match self.habits.flaw {
                        Flaw::Hasty => look().map(Look::cause),
                        _ => gate.miss(look),
                    }
                }
                Err(mismatch) => Err(mismatch),
            };
            let (reason, culprit) = match step {
                Ok(None) => {
                    tick().await;
                    continue;
                }
                Ok(Some(Cause::Aborted)) => {
                    Entry::fail(self.view.entry());
                    return Err(control::adopt(self.view).expect("an abort has a record").into());
                }
                Ok(Some(Cause::Lost(rank))) => (Reason::PeerLost, Some(rank)),
                Ok(Some(Cause::Overdue | Cause::Cancelled)) => (Reason::TimedOut, None),
                Err(Mismatch { rank, difference, .. }) => {
                    (Reason::CallMismatch(difference), Some(rank))
                }
            };
            return Err(self.fail(reason, culprit, phase.missing()).await);
        }
    }

    fn look(&self, phase: &impl Phase, writer: usize, misses: u32) -> Result<Look, Mismatch> {
        match self.view.control(self.view.rank) {
            Some(page) => phase.look(writer, &page, false, misses > self.habits.patience),
            None => Ok(Look::default()),
        }
    }

    /// Gives up, and returns what the group reports.
    async fn fail(&self, reason: Reason, culprit: Option<usize>, missing: RankSet) -> Stop {
        let record = Record {
            reason,
            reporter: self.view.rank,
            culprit,
            lane: 0,
            operation: self.step.signature() as u32,
            epoch: Some(self.epoch),
            missing,
        };
        assert!(self.view.world.shape.control, "failed in a run without failures: {record:?}");
        let reported = match control::give_up(self.view, &record) {
            Verdict::Failed(reported) => reported,
            // No model of a lane kills a rank between its claim and its record.
            Verdict::Adopting => loop {
                if let Some(adopted) = control::adopt(self.view) {
                    break adopted;
                }
                tick().await;
            },
        };
        while !control::keep(self.view, &reported) {
            tick().await;
        }
        Entry::fail(self.view.entry());
        Stop::Failed(reported)
    }
}
