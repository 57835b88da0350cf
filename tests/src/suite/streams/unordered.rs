//! A graph and a call on one lane, on two streams that nothing orders: launches of graphs are the caller's to
//! order. Whatever comes of it, no result that is wrong is reported as right.

use std::collections::BTreeMap;

use symmem_hal::{Fault as _, Graph, Stream, StreamMode, Wait};
use symmem_mem::{Failure, Group, Options};
use symmem_sync::Lanes as _;

use super::graphs::capture;
use super::kernels::Gather;
use crate::runner::{Context, PATIENT, Test, TestError, Verdict, options};
use crate::{check, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_checked_lane_tells_of_it).at_least(2),
    test!(an_unchecked_lane_never_has_a_wrong_result).at_least(2),
];

/// What is tried again and again, until the group has failed.
struct Scene {
    group: Group,
    streams: [Stream; 2],
    gathers: [Gather; 2],
    graph: Graph,
}

impl Scene {
    fn new(context: &Context, checked: bool) -> Result<Self, TestError> {
        let group = context.group_with(&Options { checked, ..options(context.size()) })?;
        let stream = || context.device().stream(StreamMode::Worker);
        let streams = [stream()?, stream()?];
        let gathers = [Gather::new(&group)?, Gather::new(&group)?];
        let graph = capture(group.lane()?, &gathers[0], &streams[0], &[1])?;
        context.ready()?;
        Ok(Scene { group, streams, gathers, graph })
    }

    /// Both at once; what the group failed of, if it did.
    fn attempt(&self, context: &Context, round: u64) -> Result<Option<Failure>, TestError> {
        // Of a checked lane, nobody waits in vain.
        let checked = self.group.options().checked;
        let wait = if checked { PATIENT } else { Wait::timeout(context.brief()) };
        self.gathers.iter().try_for_each(|gather| gather.offer(round))?;
        context.meet()?;
        // In one order on all ranks, in the other, or in either.
        let graph_first = match round % 3 {
            0 => true,
            1 => false,
            _ => (round / 3 + context.rank() as u64).is_multiple_of(2),
        };
        let [graph, call]: [&dyn Fn() -> bool; 2] =
            [&|| self.graph.launch(&self.streams[0], &wait).is_ok(), &|| {
                let lane = self.group.lane();
                lane.is_ok_and(|l| self.gathers[1].issue(l, &self.streams[1], &wait, 2).is_ok())
            }];
        let mut begun = [false; 2];
        for which in if graph_first { [0, 1] } else { [1, 0] } {
            begun[which] = [graph, call][which]();
        }
        let ends = [0, 1].map(|i| begun[i] && self.streams[i].synchronize(&PATIENT).is_ok());
        for (gather, _) in self.gathers.iter().zip(ends).filter(|(_, ended)| *ended) {
            gather.check(round)?;
        }
        // Whoever found something has told all.
        context.meet()?;
        let failure = self.group.check().err();
        check!(failure.is_some() || ends == [true, true], "an operation failed, and no group");
        Ok(failure)
    }
}

/// How often what came of it.
fn tally(context: &Context, checked: bool) -> Result<BTreeMap<&'static str, u64>, TestError> {
    let tries = if context.soak() { 10_000 } else { 60 };
    let mut tally = BTreeMap::new();
    let mut scene = None;
    for round in 0..tries {
        if round % 1000 == 0 {
            context.step(format_args!("try {round}"));
        }
        let current = match scene.take() {
            Some(scene) => scene,
            None => Scene::new(context, checked)?,
        };
        let failure = current.attempt(context, round)?;
        let what = match &failure {
            None => "right on all ranks",
            Some(Failure::LaneBusy { .. }) => "LaneBusy",
            Some(Failure::CallMismatch { .. }) => "CallMismatch",
            Some(Failure::TimedOut { .. }) => "TimedOut",
            Some(other) => return Err(TestError::failed(format!("{other} ({})", other.kind()))),
        };
        *tally.entry(what).or_default() += 1;
        // Told of alike, so that all go on alike.
        context.same(format_args!("try {round}"), what);
        scene = failure.is_none().then_some(current);
    }
    let counts: Vec<_> = tally.iter().map(|(what, count)| format!("{what}: {count}")).collect();
    context.found(format_args!("no wrong result in {tries} tries: {}", counts.join(", ")));
    Ok(tally)
}

fn a_checked_lane_tells_of_it(context: &Context) -> Verdict {
    let found = tally(context, true)?;
    check!(!found.contains_key("TimedOut"), "{found:?}");
    // In a third of the tries, ranks begin in different orders.
    check!(found.contains_key("LaneBusy") || found.contains_key("CallMismatch"), "{found:?}");
    Ok(())
}

fn an_unchecked_lane_never_has_a_wrong_result(context: &Context) -> Verdict {
    tally(context, false)?;
    Ok(())
}
