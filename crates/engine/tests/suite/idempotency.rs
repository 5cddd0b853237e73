//! Idempotency keys: repeating a call creates nothing.

use punctual_core::{Outcome, TaskKey};
use punctual_engine::{
    Command, Condition, EngineError, Receipt, Reply, ScheduleCommand, Scheduled, StartState,
};

use crate::fixture::{OwnerFixture, keyed, once, secs};

#[test]
fn a_bound_idempotency_key_allows_no_other_task_for_a_day() {
    let receipt = |digest: &str| {
        let key = TaskKey::new("idempotency").unwrap();
        Receipt { key, digest: digest.to_owned() }
    };
    let bind = |fixture: &mut OwnerFixture, digest: &str| {
        let command = Command::Bind(once(secs(1)).namespace, receipt(digest));
        let mut pending = fixture.send(command, |reply| (reply == Reply::Bound).then_some(()));
        fixture.run();
        pending.try_recv().unwrap()
    };
    let mut fixture = OwnerFixture::new();
    assert_eq!(bind(&mut fixture, "keyed"), Ok(()));
    assert_eq!(bind(&mut fixture, "keyed"), Ok(()), "again");
    assert_eq!(bind(&mut fixture, "other"), Err(EngineError::IdempotencyConflict));
    fixture.crash();
    assert_eq!(bind(&mut fixture, "keyed"), Ok(()), "after a crash");
    assert_eq!(bind(&mut fixture, "other"), Err(EngineError::IdempotencyConflict));
    // A task without a key has its receipt under the same key.
    let (new_task, condition) = (once(secs(1)).into(), Condition::Always);
    let command = ScheduleCommand {
        new_task,
        condition,
        receipt: Some(receipt("keyless")),
        start: StartState::Scheduled,
    };
    let mut pending = fixture.send(Command::Schedule(command), |reply| match reply {
        Reply::Scheduled(scheduled) => Some(scheduled),
        _ => None,
    });
    fixture.run();
    let refused: Result<Scheduled, _> = pending.try_recv().unwrap();
    assert_eq!(refused, Err(EngineError::IdempotencyConflict));
    assert_eq!(fixture.counts().accepted(), 0, "a binding is not counted as a task");
    fixture.advance(secs(86_400));
    assert!(fixture.in_flight.is_empty(), "nor is it sent");
    assert_eq!(bind(&mut fixture, "other"), Ok(()), "and it is forgotten");
}

#[test]
fn a_task_is_created_once_under_an_idempotency_key_even_after_it_has_fired() {
    for name in [None, Some("order")] {
        let mut fixture = OwnerFixture::new();
        let ask = |fixture: &mut OwnerFixture, digest: &str| {
            let new_task = match name {
                Some(name) => keyed(name, secs(1)),
                None => once(secs(1)),
            };
            let key = TaskKey::new("idempotency").unwrap();
            let receipt = Some(Receipt { key, digest: digest.to_owned() });
            let (new_task, condition) = (new_task.into(), Condition::Always);
            let command =
                ScheduleCommand { new_task, condition, receipt, start: StartState::Scheduled };
            let mut pending = fixture.send(Command::Schedule(command), |reply| match reply {
                Reply::Scheduled(scheduled) => Some(scheduled),
                _ => None,
            });
            fixture.run();
            pending.try_recv().unwrap()
        };
        let Ok(Scheduled::Created(first)) = ask(&mut fixture, "same") else { panic!() };
        assert_eq!(ask(&mut fixture, "same"), Ok(Scheduled::Created(first.clone())));
        assert_eq!(ask(&mut fixture, "other"), Err(EngineError::IdempotencyConflict));
        fixture.advance(secs(1));
        assert_eq!(fixture.in_flight.len(), 1, "created once");
        fixture.report(Outcome::Acked);
        fixture.run();
        fixture.crash();
        assert_eq!(ask(&mut fixture, "same"), Ok(Scheduled::Created(first.clone())));
        fixture.advance(secs(60));
        assert!(fixture.in_flight.is_empty());
        assert_eq!(fixture.counts().accepted(), 1, "a receipt is not counted as a task");
        // A day later it is forgotten, without having been sent.
        fixture.advance(secs(86_400));
        assert!(fixture.in_flight.is_empty());
        let Ok(Scheduled::Created(second)) = ask(&mut fixture, "same") else { panic!() };
        assert_ne!(second.id, first.id);
    }
}
