//! Leases: past the end of its lease an owner starts nothing and decides nothing.

use std::time::Duration;

use punctual_core::{Due, Guarantee, NewTask};
use punctual_engine::{Command, Condition, EngineError, TouchTo};
use punctual_store::TaskStore;

use crate::fixture::{OwnerFixture, PARTITION, StoreFault, key, keyed, millis, once, ready, secs};

const LEASE: Duration = secs(5);

fn at_most_once(new_task: NewTask) -> NewTask {
    NewTask { guarantee: Guarantee::AtMostOnce, ..new_task }
}

#[test]
fn past_its_lease_an_owner_starts_nothing_until_the_lease_is_extended() {
    let mut fixture = OwnerFixture::new();
    fixture.set_lease(LEASE);
    fixture.schedule(keyed("order", secs(7)));
    fixture.schedule(at_most_once(once(secs(7))));
    assert_eq!(fixture.owner.wakes_at().map(|at| at > fixture.now), Some(true));
    // `advance` fails in a busy loop, and `turn` if something is sent.
    fixture.advance(secs(10));
    assert_eq!((fixture.sent.len(), fixture.actions.len()), (0, 0));
    assert_eq!(fixture.get(key("order")), Err(EngineError::Stopped));
    assert_eq!(fixture.owner.wakes_at(), None);
    fixture.extend_lease();
    fixture.run();
    assert_eq!(fixture.sent.len(), 2);
    assert!(
        fixture.sent.iter().all(|delivery| delivery.permit.lease_end() == fixture.ownership.until)
    );
    assert!(fixture.get(key("order")).is_ok());
}

#[test]
fn a_refused_command_takes_the_later_ones_about_its_task_with_it() {
    let mut fixture = OwnerFixture::new();
    fixture.set_lease(LEASE);
    fixture.schedule(keyed("order", secs(60)));
    let mut touched = fixture.send_touch(key("order"), TouchTo::To(Due::In(secs(90))));
    let mut shown = fixture.send_for_task(Command::Get(key("order")));
    fixture.act();
    // The lookup is answered when the lease is over.
    fixture.now = fixture.ownership.until;
    fixture.perform(0);
    fixture.extend_lease();
    fixture.run();
    assert_eq!(touched.try_recv(), Ok(Err(EngineError::Stopped)));
    // It would show the task before the touch, which its caller is about to send again.
    assert_eq!(shown.try_recv(), Ok(Err(EngineError::Stopped)));
    assert!(fixture.get(key("order")).is_ok());
}

#[test]
fn decisions_within_the_lease_are_written_after_it_and_the_rest_is_refused() {
    let mut fixture = OwnerFixture::new();
    fixture.set_lease(LEASE);
    fixture.run();
    let mut decided = fixture.send_schedule(once(secs(9)), Condition::Always);
    let mut undecided = fixture.send_schedule(keyed("order", secs(9)), Condition::Always);
    fixture.now = fixture.now.after(LEASE);
    fixture.run();
    assert!(decided.try_recv().unwrap().is_ok());
    assert_eq!(undecided.try_recv().unwrap(), Err(EngineError::Stopped));
}

#[test]
fn commands_that_wait_for_an_unavailable_store_are_refused_when_the_lease_ends() {
    let mut fixture = OwnerFixture::new();
    fixture.set_lease(LEASE);
    fixture.run();
    fixture.fault = StoreFault::Unavailable;
    let mut replies = [fixture.send_cancel(key("order")), fixture.send_cancel(key("order"))];
    fixture.advance(LEASE - millis(1));
    assert!(replies.iter_mut().all(|answer| answer.try_recv().is_err()));
    fixture.advance(millis(200));
    for answer in &mut replies {
        assert_eq!(answer.try_recv().unwrap(), Err(EngineError::Stopped));
    }
}

#[test]
fn a_claim_that_becomes_durable_after_the_lease_is_not_sent_and_is_taken_back() {
    let mut fixture = OwnerFixture::new();
    fixture.set_lease(LEASE);
    let task = fixture.schedule(at_most_once(once(secs(4))));
    fixture.now = fixture.now.after(secs(4));
    fixture.act();
    assert_eq!(fixture.actions.len(), 1, "the claim");
    fixture.now = fixture.now.after(secs(2));
    fixture.run();
    assert_eq!(fixture.sent.len(), 0);
    assert!(ready(fixture.store.get(PARTITION, &[task.id])).unwrap()[0].is_some());
    fixture.extend_lease();
    fixture.run();
    assert_eq!(fixture.sent.len(), 1);
}
