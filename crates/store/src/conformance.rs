//! The conformance suite: the contracts as tests, which every store runs.
//!
//! A store implements [`StoreUnderTest`], which opens it, and expands the macros. Each clause
//! becomes a test with the name of the clause, so that a failure names the rule that is broken:
//!
//! ```ignore
//! punctual_store::conformance!(MyStore::new());
//! punctual_store::conformance_durable!(MyStore::new()); // A store that outlives the process.
//! punctual_store::conformance_membership!(MyStore::new()); // A store that several brokers share.
//! ```
//!
//! The expression is evaluated once per test and must lead to an empty store. The suite brings its
//! own runtime, moves `now` itself and never sleeps. Clauses are written with [`fixtures`] and
//! [`owner`]. [`model`] compares a store with [`MemoryStore`](crate::MemoryStore) over random
//! operations. [`golden`] compares encoded bytes with files.

#![allow(
    clippy::cloned_ref_to_slice_refs,
    reason = "`[task.clone()]` reads as what it is: a list of one"
)]

mod clauses;
pub mod fixtures;
pub mod golden;
pub mod model;
pub mod owner;

use std::future::Future;
use std::time::Duration;

pub use self::clauses::{
    due_counts, durability, fires, leases, lists, membership, namespaces, order, ownership,
    redrive, retention, settlement, values, writes,
};
use crate::lease_store::LeaseStore;
use crate::task_store::TaskStore;

/// The smallest number of partitions of the store under test. It has fewer than the largest number.
pub const PARTITIONS: u16 = 4;

/// Opens and closes a store for the suite. Support for tests, not an interface of the product.
pub trait StoreUnderTest {
    /// The store that is tested.
    type Store: TaskStore + LeaseStore;

    /// Whether the store keeps its contents when it is closed and opened again.
    const DURABLE: bool;

    /// The number of steps of the model comparison. A store behind a network needs a round trip for
    /// each of its many reads.
    const STEPS: u64 = 600;

    /// Opens the store, with at least [`PARTITIONS`] partitions. The first time it is empty; later
    /// it has what the previous one left. Never called while a store is open.
    fn open(&self) -> impl Future<Output = Self::Store>;

    /// Closes a store. Returns when it may be opened again.
    fn close(&self, store: Self::Store) -> impl Future<Output = ()> {
        async { drop(store) }
    }

    /// Ends a store as a crash would: acknowledged changes must survive, changes in flight may.
    /// `entropy` selects the point of the crash where several are possible.
    fn crash(&self, store: Self::Store, _entropy: u64) -> impl Future<Output = ()> {
        async { drop(store) }
    }

    /// Moves the clock of a store that has its own. Other stores use the `now` that they are given.
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

/// Expands the clauses that every store passes. See [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($under_test:expr) => {
        $crate::conformance_clauses! { $under_test;
            ownership:
                a_partition_without_an_owner_accepts_no_writes,
                an_older_epoch_is_fenced_and_changes_nothing,
                an_epoch_that_was_never_granted_is_fenced,
                a_fenced_batch_changes_no_task_no_letter_and_no_count,
                an_expired_or_released_lease_still_writes_until_another_broker_acquires_the_seat,
                the_epoch_of_the_leader_seat_does_not_allow_writes,
                partitions_do_not_see_each_other,
                a_partition_that_the_store_does_not_have_is_refused,
                changes_of_a_batch_are_made_in_their_order,
                a_refused_batch_changes_nothing,
                no_reader_sees_a_part_of_a_batch,
                the_last_batch_sent_again_returns_ok_and_changes_nothing,
                any_other_number_than_the_next_is_a_gap,
                a_repair_fences_batches_that_were_sent_before_it,
                batch_numbers_start_at_one_in_each_epoch,
                an_empty_batch_is_accepted;
            order:
                an_empty_partition_loads_nothing,
                tasks_load_by_time_then_by_id,
                the_order_of_tasks_does_not_depend_on_batches,
                loading_continues_after_the_last_loaded_task,
                a_position_is_exclusive_and_need_not_be_that_of_a_task,
                until_is_exclusive,
                a_load_returns_at_most_limit_tasks,
                fewer_tasks_than_the_limit_means_no_more_even_if_others_were_skipped,
                a_paused_task_is_never_loaded,
                a_read_sees_all_earlier_writes,
                reads_need_no_lease;
            writes:
                a_new_task_is_read_back_unchanged,
                every_read_returns_a_refiled_task_at_its_new_time,
                a_refiled_task_has_its_new_attempts_and_version,
                a_refiled_task_may_have_an_edited_definition,
                a_task_can_be_paused_and_resumed,
                postponing_a_task_changes_its_time_in_every_read_and_nothing_else,
                a_task_can_be_postponed_many_times,
                a_postponed_task_settles_once,
                a_postponed_task_can_be_refiled_earlier_and_postponed_again,
                a_postponed_task_can_be_paused_and_resumed,
                a_task_put_and_postponed_in_one_batch_is_due_later,
                a_change_of_an_unknown_task_changes_no_task,
                postponing_an_ended_task_does_not_restore_it,
                get_returns_tasks_in_the_order_of_the_ids;
            settlement:
                a_settled_task_is_removed_and_its_key_is_free,
                a_task_settled_with_a_next_fire_continues_under_its_id_and_key,
                a_task_may_continue_paused,
                a_watch_may_stay_done_or_dead_and_be_scheduled_again,
                settling_a_fire_that_left_its_task_does_not_change_the_task,
                history_is_newest_first_and_limited,
                a_record_keeps_every_end_and_outcome,
                a_replaced_task_is_removed_and_its_key_names_the_new_one,
                a_key_can_be_cancelled_and_reused_in_one_batch,
                a_dead_task_leaves_a_letter_and_a_record,
                a_task_may_continue_after_a_dead_fire,
                dead_letters_are_listed_in_pages_by_fire_id,
                dead_letters_are_listed_after_a_fire_of_any_partition,
                redriving_removes_the_letter_and_restores_the_task_under_its_key,
                the_record_of_a_redriven_fire_replaces_the_earlier_one,
                forgetting_a_letter_removes_nothing_else;
            redrive:
                a_redriven_fire_of_a_series_is_a_task_of_its_own,
                a_redriven_fire_of_a_series_ends_in_the_history_of_the_series,
                a_redriven_fire_of_a_series_that_dies_again_is_a_letter_of_the_series,
                a_redriven_fire_of_a_series_that_has_ended_has_one_record;
            lists:
                find_returns_heads_in_the_order_of_the_keys,
                keys_are_compared_as_a_whole,
                a_key_names_a_task_only_within_its_namespace,
                namespaces_do_not_see_each_other,
                a_list_returns_all_matching_tasks_in_order_for_any_page_size,
                a_list_starts_after_a_position,
                changes_between_two_pages_do_not_hide_unchanged_tasks;
            fires:
                fires_are_listed_newest_first_for_any_page_size,
                fires_are_selected_by_end_key_label_and_time,
                a_record_with_answers_is_read_back_unchanged,
                a_fire_that_ends_again_is_listed_once,
                the_last_fire_of_a_key_is_that_of_its_last_task,
                a_swept_fire_is_listed_no_longer,
                fires_start_after_a_position_of_any_partition;
            namespaces:
                namespaces_are_listed_by_name_with_their_counts_for_any_page_size,
                namespaces_start_after_a_name_that_need_not_exist,
                a_namespace_stays_listed_when_all_of_its_tasks_have_ended,
                a_namespace_without_a_count_is_not_listed,
                a_namespace_that_appears_between_two_pages_hides_no_other;
            due_counts:
                due_counts_have_the_tasks_of_each_step,
                due_counts_follow_a_task_through_its_life,
                series_are_listed_among_many_other_tasks,
                dead_letters_count_in_their_group_until_they_are_gone,
                groups_of_dead_letters_are_bounded,
                counts_stay_right_through_many_small_batches;
            retention:
                an_unused_namespace_has_zero_counts,
                counts_add_up_after_a_mixture_of_changes,
                a_sweep_never_deletes_before_the_retention_ends,
                a_sweep_deletes_what_is_past_its_retention,
                a_sweep_returns_how_much_it_deleted_and_updates_the_counts,
                history_and_dead_letters_have_separate_retention_ages,
                a_sweep_never_changes_living_tasks,
                history_below_its_size_limit_is_kept;
            values:
                a_task_with_every_field_set_is_read_back_unchanged,
                a_redriven_task_is_read_back_unchanged,
                every_kind_of_definition_is_read_back_unchanged,
                a_large_payload_is_read_back_unchanged,
                a_batch_of_many_small_tasks_is_stored_completely,
                the_first_and_last_instants_are_valid_times,
                names_are_compared_by_their_bytes_up_to_their_longest;
            leases:
                an_unused_seat_has_no_holder,
                a_free_seat_is_acquired_from_now_for_its_ttl,
                a_seat_has_one_holder_until_its_lease_expires,
                epochs_grow_even_for_the_same_broker,
                renewing_extends_the_lease_and_keeps_its_epoch,
                an_expired_lease_can_be_renewed_until_another_broker_acquires_the_seat,
                renewing_is_refused_after_another_broker_acquired_the_seat,
                renewing_an_earlier_epoch_is_refused_even_for_the_same_broker,
                a_lease_that_was_never_granted_cannot_be_renewed,
                a_released_seat_can_be_acquired_by_others,
                releasing_an_old_lease_does_not_free_the_seat,
                seats_are_independent;
            model:
                a_store_returns_the_same_as_the_memory_store;
        }
    };
}

/// Expands the additional clauses of a durable store. See [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance_durable {
    ($under_test:expr) => {
        $crate::conformance_clauses! { $under_test;
            durability:
                every_acknowledged_change_is_there_after_a_restart,
                an_owner_continues_after_a_restart,
                batch_numbers_survive_a_restart,
                epochs_keep_growing_and_fencing_after_a_restart,
                leases_survive_a_restart,
                dead_letters_of_all_partitions_survive_a_restart,
                fires_of_all_partitions_survive_a_restart,
                namespaces_of_all_partitions_survive_a_restart,
                many_postponements_survive_a_restart,
                counts_and_living_tasks_survive_a_sweep_and_a_restart,
                large_batches_survive_a_restart;
        }
    };
}

/// Expands the additional clauses of a store with membership. See
/// [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance_membership {
    ($under_test:expr) => {
        $crate::conformance_clauses! { $under_test;
            membership:
                only_brokers_that_sent_a_heartbeat_are_members,
                members_are_ordered_by_broker_id,
                the_latest_heartbeat_of_a_broker_replaces_the_earlier_one,
                a_member_ages_and_expires_after_its_ttl,
                a_broker_that_left_is_no_member_until_its_next_heartbeat,
                members_name_the_leader_and_whether_its_lease_is_valid,
                only_the_current_leader_can_propose,
                the_latest_proposal_counts_and_outlives_its_leader,
                the_largest_heartbeat_and_assignment_are_read_back_unchanged;
        }
    };
}

/// One module per file of the suite, one test per clause.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_clauses {
    ($under_test:expr; $($module:ident: $($clause:ident),+;)+) => {
        $(mod $module {
            #[allow(unused_imports, reason = "the store under test may be named by a full path")]
            use super::*;

            $(#[test]
            fn $clause() {
                let under_test = $under_test;
                $crate::conformance::run($crate::conformance::$module::$clause(&under_test));
            })+
        })+
    };
}
