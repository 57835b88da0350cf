//! A rank ends, or stops for a while, at a point of its work: each way to end by each point. What every
//! other rank is told, and how soon; that the others go on as a new group; what is left.
//!
//! Any rank is the victim, by the seed. What each finds is in the file of `--findings`, of which
//! `cargo xtask failures` makes the tables of `docs/failure.md`.

mod scene;
mod strike;

use scene::struck;
use strike::Strike;

use crate::runner::{Context, Mode, Test, Verdict};

/// Where in its work the victim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    BeforeRendezvous,
    DuringRendezvous,
    AfterRendezvous,
    InsideCollective,
    InsideReplay,
}

/// A module for each way to end, a test in it for each point.
macro_rules! faults {
    ($($fault:ident: $strike:expr;)+) => {
        $(mod $fault {
            use super::{Context, Mode, Point, Strike, Test, Verdict, struck};

            faults! { @points $strike;
                before_a_rendezvous: Point::BeforeRendezvous;
                during_a_rendezvous: Point::DuringRendezvous;
                after_a_rendezvous: Point::AfterRendezvous;
                inside_a_collective: Point::InsideCollective;
                inside_a_replay: Point::InsideReplay;
            }
        })+

        /// The tests of the module.
        pub(super) fn tests() -> Vec<Test> {
            [$($fault::TESTS),+].concat()
        }
    };
    (@points $strike:expr; $($name:ident: $point:expr;)+) => {
        $(fn $name(context: &Context) -> Verdict {
            struck(context, $strike, $point)
        })+

        pub(super) const TESTS: &[Test] = &[
            $($crate::test!($name).ranks(2, 3).only_as(&[Mode::Processes]).isolated()),+
        ];
    };
}

faults! {
    killed: Strike::Kill;
    exits: Strike::Exit;
    panics: Strike::Panic;
    leaks_its_handles_and_exits: Strike::Leak;
    killed_while_a_forked_child_lives: Strike::KillWithChild;
    killed_in_namespaces_of_its_own: Strike::KillInNamespaces;
    stopped_for_two_seconds: Strike::Stop;
}
