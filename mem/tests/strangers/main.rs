//! Strangers: another user, processes of this user that do not know a run's token, and whoever reaches
//! the store's port. A run goes on beside them, and its token shows nowhere.
//!
//! Tests of another user need root, and a program that other users may read: else they are skipped and
//! say so.
#![allow(missing_docs)]

mod door;
mod flood;
mod port;
mod run;
mod secret;
#[path = "../rig/users.rs"]
mod users;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

type Failed = libtest_mimic::Failed;

fn main() -> ExitCode {
    if users::is_probe() {
        return ExitCode::SUCCESS;
    }
    if let Some(role) = run::role() {
        return match run::play(&role) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{role}: {}", e.message().unwrap_or("failed"));
                ExitCode::FAILURE
            }
        };
    }
    let trial = |name: &str, refused: Option<String>, runner: fn() -> Result<(), Failed>| {
        if let Some(reason) = &refused {
            println!("skipped: {name}: {reason}");
        }
        Trial::test(name, runner).with_ignored_flag(refused.is_some())
    };
    let trials = vec![
        trial("another_user_cannot_connect_map_or_signal", users::as_another(), door::another_user),
        trial("without_the_token_nobody_comes_in", None, door::without_the_token),
        trial("floods_at_the_meeting_point_change_nothing", None, flood::at_the_door),
        trial("ranks_meet_whatever_comes_to_the_stores_port", None, port::ranks_meet),
        trial("what_a_store_refuses_its_log_tells", None, port::refusals_are_told),
        trial("a_token_shows_nowhere", None, secret::nowhere),
    ];
    let mut arguments = Arguments::from_args();
    // Each takes as many descriptors as it gets.
    arguments.test_threads = Some(1);
    let most = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: most.maximum, ..most }) {
        println!("the limit on descriptors stays: {e}");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
