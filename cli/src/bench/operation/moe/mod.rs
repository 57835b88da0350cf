//! Dispatch and combine of routed tokens, and both as a round.
//!
//! - *Routes* and gate weights are drawn by a counter from a seed ([`routes`]); that all ranks have the same is
//!   proven before anything is measured.
//! - *Checked*: every row that arrives, where the layout's definition says, and every row that comes back, bit
//!   for bit. What experts make of a row is another for each expert, so that rows that only went to and fro
//!   are wrong. Before and after, on fresh data; and what the timed calls left, over outputs that were wrong.
//! - *Bytes* are those of tokens' rows, counted once: for each copy that goes to a rank in a dispatch, for each
//!   row that comes back in a combine; of the rank that sends or receives the most. Rows that a rank's own
//!   experts get are among them, and not among those that go *across*.

mod exchange;
mod placement;
mod routes;
mod rows;

use serde::Serialize;
use symmem::hal::types::Bytes;
use symmem::moe::Route;

use exchange::Exchange;
use placement::{Placement, Traffic};
pub use routes::{Arrangement, RoutesError, Setting};
use routes::{OtherRanks, Routes};
use rows::Tokens;

use super::Operation;
use crate::bench::limit::{self, Size};
use crate::bench::member::{Member, RankError};
use crate::bench::report::{Report, Routed, Row};
use crate::bench::timing::{Isolated, Iteration, Pace, Ready, Replay, Separation, Timing};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Tokens go to the ranks of their experts.
    Dispatch,
    /// What those made of them comes back, and is summed.
    Combine,
    /// One after the other.
    Round,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Dispatch, Part::Combine, Part::Round];

    pub fn name(self) -> &'static str {
        match self {
            Part::Dispatch => "dispatch",
            Part::Combine => "combine",
            Part::Round => "round",
        }
    }
}

/// Routed tokens, of which each rank has one number after another.
#[derive(Clone, Debug)]
pub struct Moe {
    setting: Setting,
    parts: Vec<Part>,
    cases: Vec<Routes>,
    sizes: Vec<Bytes>,
    /// Whether calls are captured in graphs.
    pub graph: bool,
    /// Whether to measure what the machine could do at best.
    pub limit: bool,
    /// Whether results are checked.
    pub check: bool,
    pub pace: Pace,
}

impl Moe {
    /// # Errors
    ///
    /// [`RoutesError`] for what makes no sense.
    pub fn new(
        setting: Setting,
        align: u64,
        tokens: &[u64],
        parts: &[Part],
    ) -> Result<Self, RoutesError> {
        let Setting { ranks, hidden, experts, dtype, quantised, arrangement, .. } = setting;
        let by_splits = matches!(arrangement, Arrangement::Vdev { .. });
        if by_splits && !experts.is_multiple_of(ranks) {
            return Err(RoutesError::Uneven { experts, ranks });
        }
        if by_splits && quantised {
            return Err(RoutesError::Quantised);
        }
        if by_splits && setting.route != Route::Auto {
            return Err(RoutesError::Route);
        }
        if arrangement.align() != align {
            return Err(RoutesError::Align);
        }
        let mut tokens = tokens.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        let cases = tokens.into_iter().map(|tokens| Routes::new(&setting, tokens));
        let cases = cases.collect::<Result<Vec<_>, _>>()?;
        let parts = Part::ALL.into_iter().filter(|part| parts.contains(part)).collect();
        let mut moe = Moe {
            setting,
            parts,
            cases,
            sizes: Vec::new(),
            graph: false,
            limit: true,
            check: true,
            pace: Pace { isolated: Isolated::Iterations(1), batch: None },
        };
        let row = hidden.checked_mul(dtype.size() as u64).ok_or(RoutesError::Rows { hidden })?;
        for routes in &moe.cases {
            let rows = moe.placement(routes).capacity().max(routes.experts_of(0).len() as u64);
            if rows.checked_mul(row).is_none_or(|bytes| bytes > isize::MAX.cast_unsigned() as u64) {
                return Err(RoutesError::Rows { hidden });
            }
        }
        let sizes = moe.cases.iter().map(|routes| moe.traffic(routes, Part::Round, 0).busiest);
        moe.sizes = sizes.map(Bytes).collect();
        Ok(moe)
    }

    fn placement<'a>(&'a self, routes: &'a Routes) -> Placement<'a> {
        Placement { setting: &self.setting, routes }
    }

    /// Bytes of a part.
    fn traffic(&self, routes: &Routes, part: Part, me: usize) -> Traffic {
        let Setting { hidden, dtype, quantised, .. } = self.setting;
        let placement = self.placement(routes);
        let row = hidden * dtype.size() as u64;
        let sent = if quantised { hidden + 4 * rows::scales(hidden) } else { row };
        let of = |rows: Traffic, bytes: u64| Traffic {
            busiest: rows.busiest * bytes,
            across: rows.across * bytes,
            own: rows.own * bytes,
        };
        let dispatched = of(placement.dispatched(me), sent);
        let combined = of(placement.combined(me), row);
        match part {
            Part::Dispatch => dispatched,
            Part::Combine => combined,
            Part::Round => Traffic {
                busiest: dispatched.busiest + combined.busiest,
                across: dispatched.across + combined.across,
                own: dispatched.own + combined.own,
            },
        }
    }
}

/// What a file of results says of the routes.
#[derive(Serialize)]
struct Told {
    hidden: u64,
    experts: usize,
    top_k: usize,
    skew: f64,
    layout: &'static str,
    align: u64,
    quantised: bool,
}

impl Operation for Moe {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn dtype(&self) -> &'static str {
        self.setting.dtype.name()
    }

    fn describe(&self) -> String {
        let Setting { hidden, experts, top_k, skew, dtype, quantised, arrangement, .. } =
            self.setting;
        let quantised = if quantised { " (f8e4m3 dispatched)" } else { "" };
        let align = match arrangement.align() {
            0 => String::new(),
            align => format!(" aligned to {align}"),
        };
        let graph = if self.graph { ", in graphs" } else { "" };
        let route = match self.setting.route {
            Route::Direct => ", direct",
            Route::Gathered => ", gathered",
            _ => "",
        };
        format!(
            "tokens of {hidden} {dtype}{quantised}, top {top_k} of {experts} experts, skew {skew}, {}{align}{route}{graph}",
            arrangement.name()
        )
    }

    fn isolated(&self) -> &'static str {
        "an untimed barrier, then one dispatch, combine, or one after the other"
    }

    fn counted(&self) -> Option<&'static str> {
        Some(match self.setting.arrangement {
            Arrangement::Vdev { .. } => {
                "tokens' rows, once for each choice either way; the busiest rank's; across: without those that stay"
            }
            Arrangement::RankMajor => {
                "tokens' rows, once for each (token, rank) either way; the busiest rank's; across: without those that stay"
            }
            Arrangement::Compact { .. } | Arrangement::Padded => {
                "tokens' rows, once for each (token, rank) there, (token, choice) back; the busiest rank's; across: without those that stay"
            }
        })
    }

    fn checked(&self) -> &'static str {
        match self.check {
            true => {
                "equal routes on all ranks; every row, before, as timed and after, against an independent model"
            }
            false => "equal routes on all ranks; no results",
        }
    }

    fn sizes(&self) -> &[Bytes] {
        &self.sizes
    }

    fn variants(&self) -> usize {
        self.parts.len()
    }

    /// A row says itself how many of its bytes go between ranks.
    fn bus_factor(&self, _: usize) -> f64 {
        1.0
    }

    fn setting(&self) -> Option<serde_json::Value> {
        let Setting { hidden, experts, top_k, skew, arrangement, quantised, .. } = self.setting;
        let (layout, align) = (arrangement.name(), arrangement.align());
        let told = Told { hidden, experts, top_k, skew, layout, align, quantised };
        serde_json::to_value(told).ok()
    }

    fn measure(
        &self,
        member: &Member<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), RankError> {
        let (asked, found) = (self.setting.ranks, member.ranks());
        if asked != found {
            return Err(OtherRanks { asked, found }.into());
        }
        // Loaded by every rank before one waits for another.
        symmem::collectives::Collectives::prepare(member.group, &[])?;
        symmem::moe::Moe::prepare_moe(member.group)?;
        for routes in &self.cases {
            routes::prove(member, routes.digest())?;
        }
        let capturing = if self.graph { Some(member.capturing()?) } else { None };
        let member = capturing.as_ref().unwrap_or(member);
        let me = member.rank();
        if self.limit {
            let parts = self.cases.iter().flat_map(|routes| {
                let of = move |part: &Part| self.traffic(routes, *part, me);
                self.parts.iter().map(of)
            });
            let sizes: Vec<Size> =
                parts.map(|t| Size { bytes: Bytes(t.busiest), own: Bytes(t.own) }).collect();
            limit::measure(member, &sizes, self.pace, report)?;
        }
        for (index, routes) in self.cases.iter().enumerate() {
            let placement = self.placement(routes);
            let exchange = Exchange::new(member, placement)?;
            let tokens = |n| Tokens::new(placement, self.setting.seed.part(4 * index as u64 + n));
            let tokens = [tokens(1), tokens(2), tokens(3)];
            // Routed once, so that there is something to combine, and memory has been touched.
            exchange.fill(member, &tokens[1])?;
            exchange.issue(member, Part::Round)?;
            member.finish()?;
            for part in &self.parts {
                let issue = || exchange.issue(member, *part);
                let run = Run { moe: self, member, exchange: &exchange, part: *part };
                let timing = match self.graph {
                    false => run.timing(&tokens, &mut Ready(&issue))?,
                    true => run.timing(&tokens, &mut Replay::new(member, &issue))?,
                };
                let Traffic { busiest: bytes, across, .. } = self.traffic(routes, *part, me);
                let routed = Some(Routed {
                    tokens: routes.tokens as u64,
                    across_bytes: across,
                    routes: format!("{:016x}", routes.digest()),
                });
                let (algorithm, checked) = (part.name().to_owned(), self.check);
                report(Report::Row(Row { bytes, algorithm, checked, routed, timing }));
            }
            // Nobody lets go of what a peer still reads.
            member.barrier()?;
        }
        Ok(())
    }
}

/// One part of one size.
struct Run<'a> {
    moe: &'a Moe,
    member: &'a Member<'a>,
    exchange: &'a Exchange<'a>,
    part: Part,
}

impl Run<'_> {
    /// Checks, measures what is then checked, and checks again.
    fn timing(
        &self,
        [before, timed, after]: &[Tokens<'_>; 3],
        calls: &mut dyn Iteration,
    ) -> Result<Timing, RankError> {
        let pace = self.moe.pace;
        if !self.moe.check {
            return Timing::take(self.member, pace, Separation::Barrier, calls);
        }
        self.check(before, calls)?;
        self.exchange.fill(self.member, timed)?;
        let timing = Timing::take(self.member, pace, Separation::Barrier, calls)?;
        self.compare(timed, "timed")?;
        self.check(after, calls)?;
        Ok(timing)
    }

    /// One call, on fresh data.
    fn check(&self, tokens: &Tokens<'_>, calls: &mut dyn Iteration) -> Result<(), RankError> {
        calls.prepare(1)?;
        self.exchange.fill(self.member, tokens)?;
        calls.run(1)?;
        self.member.finish()?;
        self.compare(tokens, "checked")
    }

    fn compare(&self, tokens: &Tokens<'_>, which: &str) -> Result<(), RankError> {
        let what = format!("a {which} {} ({})", self.part.name(), self.moe.describe());
        self.exchange.compare(self.member, tokens, self.part, &what)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::bench::check::Seed;
    use crate::bench::devices::Backend;
    use crate::bench::drive::{self, DriveError, RankFault};
    use crate::bench::show::Progress;

    const RANKS: usize = 3;

    fn moe(arrangement: Arrangement, seed: u64) -> Moe {
        let setting = Setting {
            arrangement,
            hidden: 40,
            seed: Seed::new(seed),
            ..routes::tests::setting(RANKS, 6, 2, 0.5)
        };
        let moe = Moe::new(setting, arrangement.align(), &[5], &Part::ALL).unwrap();
        Moe { limit: false, pace: Pace { isolated: Isolated::Iterations(3), batch: None }, ..moe }
    }

    const ARRANGEMENTS: [Arrangement; 4] = [
        Arrangement::Compact { align: 4 },
        Arrangement::Padded,
        Arrangement::RankMajor,
        Arrangement::Vdev { align: 0 },
    ];

    /// What one rank does that is wrong.
    #[derive(Clone, Copy, Debug)]
    enum Damage {
        /// Its experts return rows as they got them.
        Identity,
        /// Its tokens are of other data.
        Data,
        /// It has other routes.
        Routes,
    }

    /// An operation of which the second rank damages its part.
    struct Damaging(Moe, Damage);

    impl Operation for Damaging {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn dtype(&self) -> &'static str {
            self.0.dtype()
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
        fn isolated(&self) -> &'static str {
            self.0.isolated()
        }
        fn checked(&self) -> &'static str {
            self.0.checked()
        }
        fn sizes(&self) -> &[Bytes] {
            self.0.sizes()
        }
        fn bus_factor(&self, ranks: usize) -> f64 {
            self.0.bus_factor(ranks)
        }

        fn measure(
            &self,
            member: &Member<'_>,
            report: &mut dyn FnMut(Report),
        ) -> Result<(), RankError> {
            let Damaging(moe, damage) = self;
            let is_damaged = member.rank() == 1;
            if let Damage::Routes = damage {
                let other = self::moe(moe.setting.arrangement, 8);
                return if is_damaged { &other } else { moe }.measure(member, report);
            }
            let placement = moe.placement(&moe.cases[0]);
            let exchange = Exchange::new(member, placement)?;
            let tokens = |seed| Tokens::new(placement, Seed::new(seed));
            let data = u64::from(is_damaged && matches!(damage, Damage::Data));
            exchange.fill(member, &tokens(data))?;
            exchange.issue(member, Part::Dispatch)?;
            member.finish()?;
            if is_damaged && matches!(damage, Damage::Identity) {
                exchange.return_as_received()?;
            }
            exchange.issue(member, Part::Combine)?;
            member.finish()?;
            let compared = exchange.compare(member, &tokens(0), Part::Round, "a round");
            member.barrier()?;
            compared
        }
    }

    fn fault(arrangement: Arrangement, backend: Backend, damage: Damage) -> RankFault {
        let damaging = Damaging(moe(arrangement, 7), damage);
        let progress = Progress::new(1);
        match drive::threads(&damaging, backend.into(), RANKS, &progress) {
            Err(DriveError::Rank { fault, .. }) => fault,
            other => panic!("{arrangement:?} on {backend:?}: {other:?}"),
        }
    }

    #[test]
    fn a_round_trip_without_experts_is_wrong() {
        for arrangement in ARRANGEMENTS {
            for backend in [Backend::Host, Backend::Stub] {
                let fault = fault(arrangement, backend, Damage::Identity);
                let RankFault::Wrong { what, wrong } = fault else { panic!("{fault}") };
                assert_eq!(what, "what came back in a round");
                assert!(wrong.wrong > 0 && wrong.expected != wrong.found);
            }
        }
    }

    #[test]
    fn rows_of_other_data_are_wrong() {
        for arrangement in ARRANGEMENTS {
            let fault = fault(arrangement, Backend::Host, Damage::Data);
            let RankFault::Wrong { what, .. } = fault else { panic!("{fault}") };
            assert_eq!(what, "the rows that arrived in a round");
        }
    }

    #[test]
    fn a_rank_with_other_routes_is_named_before_anything_is_measured() {
        for arrangement in ARRANGEMENTS {
            let fault = fault(arrangement, Backend::Host, Damage::Routes);
            let RankFault::Failed(failed) = fault else { panic!("{fault}") };
            assert!(failed.because.starts_with("rank 1 has other routes than most"), "{failed:?}");
        }
    }

    #[test]
    fn every_part_has_results() {
        for arrangement in ARRANGEMENTS {
            let moe = moe(arrangement, 7);
            let progress = Progress::new(1);
            let collected = drive::threads(&moe, Backend::Host.into(), RANKS, &progress).unwrap();
            let parts: Vec<_> =
                collected.lines.iter().map(|line| line.algorithm.as_str()).collect();
            assert_eq!(parts, ["dispatch", "combine", "round"]);
            let [dispatch, combine, round] = &collected.lines[..] else { unreachable!() };
            assert_eq!(dispatch.bytes + combine.bytes, round.bytes);
            assert!(collected.lines.iter().all(|line| line.checked));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let setting = routes::tests::setting(3, 8, 2, 0.0);
        let refused = |setting: Setting, align| {
            Moe::new(setting, align, &[1], &Part::ALL).map(|_| ()).unwrap_err()
        };
        let vdev = Setting { arrangement: Arrangement::Vdev { align: 0 }, ..setting };
        assert_eq!(refused(vdev, 0), RoutesError::Uneven { experts: 8, ranks: 3 });
        let quantised = Setting { ranks: 4, quantised: true, ..vdev };
        assert_eq!(refused(quantised, 0), RoutesError::Quantised);
        let routed = Setting { ranks: 4, route: Route::Direct, ..vdev };
        assert_eq!(refused(routed, 0), RoutesError::Route);
        let padded = Setting { arrangement: Arrangement::Padded, ..setting };
        assert_eq!(refused(padded, 8), RoutesError::Align);
        for hidden in [u64::MAX, u64::MAX / 4] {
            assert_eq!(refused(Setting { hidden, ..setting }, 0), RoutesError::Rows { hidden });
        }
        let choices = Setting { top_k: 9, ..setting };
        assert_eq!(refused(choices, 0), RoutesError::Choices { top_k: 9, experts: 8 });
    }
}
