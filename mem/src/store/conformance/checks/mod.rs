//! The checks, for every store: those of this crate, and of others' servers (`tests/torch_store`, which
//! includes this folder).

#![allow(clippy::unwrap_used, clippy::panic)]

pub mod gathers;
pub mod queues;
pub mod values;
pub mod waits;

use std::sync::Arc;

use symmem_hal::{Fault as _, Kind, Wait};

use crate::store::{Missing, Store, StoreError};

/// Gives handles of one fresh store, as different ranks hold them.
pub type Ranks = Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>;

/// Gives a macro the names of the checks, by modules.
macro_rules! every_check {
    ($then:ident $($before:tt)*) => {
        $then! {
            $($before)*
            values::{values_come_back, add_counts, compare_set_swaps, lists_of_keys, keys_come_and_go, many_values_at_once, values_grow},
            waits::{missing_keys_are_named, a_cancelled_token_ends_a_wait, a_cancelled_token_prevents_a_call, limits_are_refused_before_any_effect, every_setter_wakes, adds_of_many_threads_add_up, one_of_many_swaps_wins, waits_do_not_hold_up_sets, all_ranks_meet, barriers_let_all_go},
            queues::{queues_are_first_in_first_out, queues_and_values_do_not_touch, a_queue_serves_each_value_once},
            gathers::{leaders_gather, a_gather_names_who_is_missing, a_gather_can_be_repeated, contributions_that_do_not_fit},
        }
    };
}
pub(crate) use every_check;

/// Far beyond what any test needs.
pub fn long() -> Wait {
    Wait::seconds(120)
}

fn missing(error: StoreError) -> Vec<String> {
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    match error {
        StoreError::TimedOut { missing: Missing::Keys(keys), elapsed, allowed, .. } => {
            assert!(elapsed >= allowed, "{elapsed:?} of {allowed:?}");
            keys
        }
        other => panic!("{other}"),
    }
}
