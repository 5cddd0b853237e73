//! The conformance suite: the contracts in code, which every store runs.
//!
//! In: a [`StoreUnderTest`], which opens the store under test. Out: one test per clause, named after it, so that a
//! failure says which promise is broken. The whole adapter of a store is its `StoreUnderTest` and
//!
//! ```ignore
//! punctual_store::conformance!(MySubject::new());
//! punctual_store::conformance_durable!(MySubject::new()); // A store that outlives the process.
//! punctual_store::conformance_membership!(MySubject::new()); // A store that several brokers share.
//! ```
//!
//! The expression is evaluated once per test, and each must lead to an empty store. The suite brings its own
//! runtime, moves `now` by hand and never sleeps.
//! Next door: `fixtures` and [`owner`] are what the clauses are written in; [`model`] compares a store with
//! [`MemoryStore`](crate::MemoryStore) over random operations.

#![allow(
    clippy::cloned_ref_to_slice_refs,
    reason = "`[task.clone()]` reads as what it is: a list of one"
)]

pub mod fixtures;
pub mod golden;
pub mod model;
pub mod owner;

pub mod durable;
pub mod ending;
pub mod filing;
pub mod leases;
pub mod listing;
pub mod membership;
pub mod order;
pub mod ownership;
pub mod retention;
pub mod shape;

use std::future::Future;
use std::time::Duration;

use crate::lease_store::LeaseStore;
use crate::task_store::TaskStore;

/// Partitions that the store under test has, at least.
pub const PARTITIONS: u16 = 4;

/// How the suite comes by a store. Support for tests: not a seam of the product, where nothing is opened twice.
pub trait StoreUnderTest {
    /// What is tested.
    type Store: TaskStore + LeaseStore;

    /// Whether what was stored is there when the store is opened again.
    const DURABLE: bool;

    /// How far the model walks with it. A store behind a network takes a round trip for each of its many looks.
    const STEPS: u64 = 600;

    /// Opens the store, with at least [`PARTITIONS`] partitions. The first time it is empty; later it has what the
    /// one before it left. Never called while one is open.
    fn open(&self) -> impl Future<Output = Self::Store>;

    /// Ends a store in an orderly way; returns when it may be opened again.
    fn close(&self, store: Self::Store) -> impl Future<Output = ()> {
        async { drop(store) }
    }

    /// Ends a store as a crash would: what was answered must still be there, what was under way may be.
    /// `entropy` decides where it strikes, for a under_test that can crash in several places.
    fn crash(&self, store: Self::Store, _entropy: u64) -> impl Future<Output = ()> {
        async { drop(store) }
    }

    /// Lets time pass for a store with a clock of its own. Others go by the `now` that they are given.
    fn pass(&self, _store: &Self::Store, _time: Duration) -> impl Future<Output = ()> {
        async {}
    }
}

/// Runs one clause on a runtime of its own.
///
/// # Panics
///
/// When the clause does not hold.
pub fn run(clause: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
        .block_on(clause);
}

/// The clauses that every store keeps, each as a test. See [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($under_test:expr) => {
        $crate::conformance_clauses! { $under_test;
            ownership:
                a_partition_that_nobody_took_takes_no_writes,
                an_older_epoch_is_fenced_and_changes_nothing,
                an_epoch_that_was_never_given_is_fenced,
                a_fenced_batch_changes_none_of_what_it_names,
                a_lease_that_ran_out_or_was_released_still_writes_until_another_takes_the_seat,
                the_leader_seat_gives_no_right_to_a_partition,
                partitions_are_apart,
                changes_of_a_batch_are_made_in_their_order,
                all_of_a_refused_batch_is_refused,
                no_reader_sees_a_part_of_a_batch,
                the_last_batch_sent_again_is_answered_ok_and_changes_nothing,
                any_other_number_than_the_next_is_a_gap,
                numbers_begin_again_with_each_epoch,
                a_batch_without_changes_is_made;
            order:
                an_empty_partition_loads_nothing,
                tasks_load_by_time_then_by_id,
                order_does_not_depend_on_the_batches,
                loading_goes_on_after_the_last_task_that_was_loaded,
                a_position_is_exclusive_and_need_not_be_a_task,
                until_is_exclusive,
                a_limit_bounds_what_is_loaded,
                fewer_than_the_limit_means_no_more_also_among_tasks_that_are_left_out,
                a_paused_task_is_never_loaded,
                a_read_sees_the_writes_before_it,
                anybody_may_read;
            filing:
                a_task_that_was_put_stands_as_it_was_given,
                a_refiled_task_is_due_earlier_or_later_in_every_read,
                a_refiled_task_keeps_its_attempts_and_version,
                a_refiled_task_may_have_an_edited_definition,
                a_task_is_paused_and_resumed,
                a_postponed_task_moves_in_every_read_and_nothing_else_of_it_changes,
                a_task_can_be_postponed_many_times,
                a_postponed_task_settles_once,
                a_postponed_task_can_be_refiled_earlier_and_postponed_again,
                a_postponed_task_can_be_paused_and_resumed,
                a_task_put_and_postponed_in_one_batch_is_due_later,
                a_change_about_an_unknown_task_changes_no_task,
                a_late_postponement_does_not_bring_a_task_back,
                ids_answer_in_the_order_asked;
            ending:
                a_settled_task_is_gone_and_its_key_is_free,
                a_task_that_settles_with_a_next_goes_on_under_its_id_and_key,
                a_task_may_go_on_paused,
                a_task_may_go_on_done_or_dead_and_come_back,
                a_fire_aside_of_its_task_leaves_the_task_alone,
                history_is_newest_first_and_bounded,
                a_record_keeps_every_end_and_outcome,
                a_replaced_task_is_gone_and_its_key_names_the_new_one,
                a_cancelled_task_may_be_put_anew_in_the_same_batch,
                a_dead_task_leaves_a_letter_and_a_record,
                a_task_whose_fire_is_dead_may_go_on,
                dead_letters_are_listed_in_pages_by_fire_id,
                dead_letters_are_listed_after_a_fire_of_any_partition,
                a_redriven_letter_is_gone_and_its_task_is_back_under_its_key,
                the_record_of_a_redriven_fire_takes_the_place_of_the_earlier,
                a_forgotten_letter_is_gone_and_nothing_else;
            listing:
                keys_answer_in_the_order_asked,
                a_key_is_taken_as_a_whole,
                a_key_names_within_its_namespace_only,
                namespaces_are_apart,
                a_list_has_what_passes_the_filter_in_order_whatever_the_page,
                a_list_begins_after_a_position,
                changes_between_two_pages_do_not_hide_what_stays;
            retention:
                a_namespace_that_nobody_used_counts_nothing,
                counts_add_up_after_a_mixture_of_changes,
                a_sweep_never_deletes_what_is_young,
                a_sweep_deletes_what_is_long_past,
                a_sweep_says_what_it_deleted_and_counts_follow,
                history_and_dead_letters_have_ages_of_their_own,
                a_sweep_never_touches_living_tasks,
                little_history_is_not_swept_for_its_size;
            shape:
                a_rich_task_comes_back_as_it_was,
                every_kind_of_definition_comes_back_as_it_was,
                a_large_payload_comes_back_as_it_was,
                many_small_tasks_in_one_batch_are_all_there,
                the_edges_of_time_are_times;
            leases:
                a_seat_that_nobody_took_has_no_holder,
                a_free_seat_is_taken_from_now_for_its_ttl,
                a_seat_has_one_holder_until_its_lease_is_over,
                epochs_grow_also_for_the_same_broker,
                renewing_extends_the_lease_and_keeps_its_epoch,
                a_lease_that_ran_out_can_be_renewed_while_nobody_took_the_seat,
                renewing_is_refused_after_another_took_the_seat,
                renewing_an_earlier_epoch_of_ones_own_is_refused,
                a_lease_that_was_never_given_cannot_be_renewed,
                a_released_seat_lets_others_in,
                a_late_release_does_not_free_the_seat_of_another,
                seats_are_independent;
            model:
                a_store_answers_like_the_memory_store;
        }
    };
}

/// The clauses that a durable store keeps besides, each as a test. See
/// [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance_durable {
    ($under_test:expr) => {
        $crate::conformance_clauses! { $under_test;
            durable:
                all_that_was_answered_is_there_after_opening_again,
                an_owner_goes_on_after_opening_again,
                numbers_of_batches_are_remembered,
                epochs_grow_over_restarts_and_fences_stay,
                leases_are_remembered,
                dead_letters_of_all_partitions_are_remembered,
                many_postponements_are_remembered,
                what_was_swept_stays_counted_and_the_living_stay,
                large_batches_are_remembered;
        }
    };
}

/// The clauses that a store with a membership keeps besides, each as a test. See [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance_membership {
    ($under_test:expr) => {
        $crate::conformance_clauses! { $under_test;
            membership:
                nobody_is_there_but_who_says_so,
                all_who_said_so_are_there_in_the_order_of_their_ids,
                the_last_heartbeat_of_a_broker_counts,
                a_heartbeat_lasts_for_its_ttl_and_grows_older,
                a_broker_that_leaves_is_gone_until_it_says_something_again,
                the_roll_says_who_leads_and_whether_that_lasts,
                only_the_present_leader_proposes,
                the_last_proposal_counts_and_outlives_its_leader,
                all_that_a_broker_can_hold_comes_back_as_it_was;
        }
    };
}

/// One module per room, one test per clause.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_clauses {
    ($under_test:expr; $($module:ident: $($clause:ident),+;)+) => {
        $(mod $module {
            #[allow(unused_imports, reason = "the under_test may be named by a full path")]
            use super::*;

            $(#[test]
            fn $clause() {
                let under_test = $under_test;
                $crate::conformance::run($crate::conformance::$module::$clause(&under_test));
            })+
        })+
    };
}
