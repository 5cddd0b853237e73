//! Every variant that is broken on purpose is caught, by the promise that it breaks.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

use punctual_sim::{Variant, check};

/// Seeds to try until the error must have been caught.
const SEEDS: u64 = 150;

/// Asserts that some run breaks one of these promises. The error may also break other promises in
/// other runs.
fn is_caught(variant: Variant, promises: &[&str]) {
    let mut others = Vec::new();
    for seed in 1..=SEEDS {
        let Err(broken) = check(seed, variant) else { continue };
        if promises.iter().any(|promise| broken.promise.starts_with(promise)) {
            return;
        }
        others.push((seed, broken));
    }
    panic!("{variant:?} is not caught in {SEEDS} runs; others: {others:?}");
}

#[test]
fn a_task_that_the_store_forgets_is_caught() {
    is_caught(Variant::StoreForgetsTasks, &["G1 "]);
}

#[test]
fn an_owner_with_a_clock_that_is_ahead_is_caught() {
    is_caught(Variant::OwnersAreEarly, &["G2 "]);
}

#[test]
fn a_broker_that_ignores_its_clock_skew_is_caught() {
    is_caught(Variant::SkewIsIgnored, &["G2 "]);
}

#[test]
fn a_send_without_a_claim_is_caught() {
    is_caught(Variant::NothingIsClaimed, &["G4 "]);
}

#[test]
fn a_courier_that_reports_failures_as_acked_is_caught() {
    is_caught(Variant::CouriersLie, &["G5 "]);
}

#[test]
fn a_courier_that_stamps_deliveries_before_they_wait_is_caught() {
    is_caught(Variant::CouriersStampEarly, &["G16 "]);
}

#[test]
fn a_courier_that_sends_what_was_recalled_is_caught() {
    is_caught(Variant::CouriersIgnoreRecalls, &["G7 ", "G8 "]);
}

#[test]
fn a_courier_that_sends_after_the_lease_is_caught() {
    is_caught(Variant::CouriersIgnoreLeases, &["G11 one owner"]);
}

#[test]
fn a_cancellation_that_the_store_forgets_is_caught() {
    is_caught(Variant::StoreForgetsCancels, &["G7 "]);
}

#[test]
fn a_postponement_that_the_store_forgets_is_caught() {
    is_caught(Variant::StoreForgetsPostponements, &["G8 "]);
}

#[test]
fn an_owner_that_ignores_its_lease_is_caught() {
    is_caught(Variant::OwnersIgnoreTheirLease, &["G11 one owner"]);
}

#[test]
fn a_store_that_does_not_fence_is_caught() {
    is_caught(Variant::StoreDoesNotFence, &["G11 epochs"]);
}

#[test]
fn a_receipt_that_the_store_forgets_is_caught() {
    is_caught(Variant::StoreForgetsReceipts, &["G12 "]);
}

#[test]
fn a_batch_that_is_applied_although_it_was_refused_is_caught() {
    is_caught(Variant::StoreAppliesWhatItRefuses, &["not done is not done"]);
}

#[test]
fn counts_that_do_not_add_up_are_caught() {
    is_caught(Variant::StoreAppliesTwice, &["G15 "]);
}

#[test]
fn a_callback_that_the_store_forgets_is_caught() {
    is_caught(Variant::StoreForgetsCallbacks, &["every end is reported once"]);
}

#[test]
fn an_answer_that_a_courier_forgets_is_caught() {
    is_caught(Variant::CouriersForgetAnswers, &["a record has the answers"]);
}

#[test]
fn a_task_that_fires_although_it_was_to_start_paused_is_caught() {
    is_caught(Variant::NothingStartsPaused, &["a task that starts paused"]);
}

#[test]
fn a_hand_over_that_forgets_deliveries_in_flight_is_caught() {
    is_caught(Variant::HandOverForgetsInFlight, &["a graceful move"]);
}

#[test]
fn an_owner_that_does_not_start_is_caught() {
    is_caught(Variant::OwnersDoNotStart, &["every partition", "G3 "]);
}
