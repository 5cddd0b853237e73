//! Damaged values of the store: a command that needs one is refused, and everything else continues.

use punctual_core::{FireEnd, Guarantee, NewTask, Outcome};
use punctual_engine::{Action, Command, EngineError, Event, LookupResult, Subject};
use punctual_store::{Damage, StoreError, TaskStore};

use crate::fixture::{OwnerFixture, PARTITION, id, key, keyed, ready, secs};

fn damage() -> StoreError {
    let (place, why) = ("key tasks".to_owned(), "it is too short".to_owned());
    StoreError::Damaged(Box::new(Damage { what: "the task", place, why }))
}

/// Answers the pending lookups, and those about some subjects with an error.
fn look_up(fixture: &mut OwnerFixture, damaged: &[Subject]) {
    let lookup = fixture.actions.iter().position(|action| matches!(action, Action::Lookup(_)));
    let action = fixture.actions.remove(lookup.expect("a lookup is pending"));
    let Event::LookupResult(mut results) = fixture.answer(action) else { unreachable!() };
    for LookupResult { look, result } in &mut results {
        if damaged.contains(&look.subject) {
            *result = Err(damage());
        }
    }
    fixture.owner.on(Event::LookupResult(results), fixture.now);
    fixture.run();
}

#[test]
fn a_command_that_needs_a_damaged_value_is_refused_and_no_other() {
    let mut fixture = OwnerFixture::new();
    let [whole, damaged] = ["whole", "damaged"].map(|name| fixture.schedule(keyed(name, secs(9))));
    let mut replies =
        [&damaged, &whole, &damaged].map(|task| fixture.send_for_task(Command::Get(id(task))));
    look_up(&mut fixture, &[id(&damaged)]);
    let refused = replies[0].try_recv().unwrap();
    let Err(EngineError::Damaged(text)) = refused else { panic!("{refused:?}") };
    assert_eq!(&*text, "the task is damaged: it is too short; repair or remove key tasks");
    assert_eq!(replies[1].try_recv().unwrap(), Ok(whole));
    assert!(replies[2].try_recv().unwrap().is_ok(), "looked up again, and repaired by then");
    assert!(fixture.stopped.is_none());
    fixture.advance(secs(9));
    assert_eq!(fixture.sent.len(), 2);
}

#[test]
fn a_claimed_fire_that_was_not_sent_is_a_dead_letter_if_its_key_is_damaged() {
    let mut fixture = OwnerFixture::new();
    let guarantee = Guarantee::AtMostOnce;
    let task = fixture.schedule(NewTask { guarantee, ..keyed("order", secs(1)) });
    fixture.advance(secs(1));
    fixture.report_unsent();
    look_up(&mut fixture, &[key("order")]);
    let letters = ready(fixture.store.dead_letters(PARTITION, &[task.fire().id])).unwrap();
    let letter = letters[0].as_ref().unwrap();
    assert!(matches!(letter.task.attempts[0].outcome, Outcome::Failed { .. }), "{letter:?}");
    let counts = fixture.counts();
    assert_eq!((counts.dead, counts.dead_letters, counts.accepted()), (1, 1, 1));
    fixture.advance(secs(60));
    assert_eq!(fixture.sent.len(), 0, "it may have been replaced, so it is not sent");
    assert_eq!(fixture.gauges().claimed, 0);
}

#[test]
fn an_inherited_delivery_of_a_damaged_task_holds_up_no_other() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    fixture.start_hand_over();
    while !fixture.actions.iter().any(|action| matches!(action, Action::Lookup(_))) {
        fixture.step();
    }
    look_up(&mut fixture, &[id(&task)]);
    let other = fixture.schedule(keyed("other", secs(1)));
    fixture.advance(secs(1));
    assert_eq!(fixture.sent.last().unwrap().fire_id, other.fire().id);
    let ended = ready(fixture.store.history(PARTITION, task.id, 1)).unwrap();
    assert!(ended.iter().all(|record| record.end != FireEnd::Done));
}
