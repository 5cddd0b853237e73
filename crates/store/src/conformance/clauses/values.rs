//! Values and sizes: every field is read back unchanged, including large values and the limits of
//! time.

use std::time::Duration;

use punctual_core::{
    ATTEMPTS_KEPT_MAX, Backoff, DELAY_MAX, DeadReason, Due, FireEnd, FireRecord, Guarantee,
    HttpTarget, Jitter, KEY_BYTES_MAX, Labels, Method, NAMESPACE_BYTES_MAX, NewTask, Outcome,
    PAYLOAD_BYTES_MAX, Payload, RetryPolicy, Schedule, Target, Task, Timestamp, Version,
};

use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    NOW, at, die, letter, namespace, postpone, rich_task, settle, shop,
};
use crate::conformance::owner::{TestOwner, ids};
use crate::query::{Filter, Head, Position};

pub async fn a_task_with_every_field_set_is_read_back_unchanged<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = rich_task(owner.id(at(1)));
    assert_eq!(task.definition.check(), Ok(()), "a caller may send it");
    owner.put([&task]).await;
    assert_eq!(owner.get(task.id).await, Some(task.clone()));
    assert_eq!(owner.load().await, [task.clone()]);
    assert_eq!(owner.list().await, [task.clone()]);
    let head = owner.find("geräte/halle 3/Ω").await;
    assert_eq!(head, Some(Head::of(&task)));
    owner.apply(vec![die(&task, NOW, None)]).await;
    assert_eq!(owner.dead().await, [letter(&task, NOW)]);
}

/// A fire that was redriven often has lost its first attempts; the numbers of the others stay.
pub async fn a_redriven_task_is_read_back_unchanged<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut task = owner.task(at(1)).key("a").build();
    for _ in 0..=ATTEMPTS_KEPT_MAX {
        task.add_attempt(at(1), at(2), Outcome::Expired);
    }
    let often = task.clone().redriven(at(3));
    let apart = task.redriven_apart(owner.id(at(4)), at(4));
    assert_eq!(often.attempts[0].number.get(), 2);
    owner.put([&often, &apart]).await;
    assert_eq!(owner.load().await, [often.clone(), apart.clone()]);
    assert_eq!(owner.get(apart.id).await, Some(apart.clone()));
    owner.apply(vec![die(&often, NOW, None)]).await;
    assert_eq!(owner.dead().await, [letter(&often, NOW)]);
    let record = FireRecord::of(&often, FireEnd::Dead(DeadReason::Exhausted), NOW);
    assert_eq!(owner.history(often.id).await, [record]);
}

/// Databases have collations that treat some of these alike, and columns that are too short.
pub async fn names_are_compared_by_their_bytes_up_to_their_longest<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let longest = "ä".repeat(KEY_BYTES_MAX / 2);
    let nearly = format!("{}ö", "ä".repeat(KEY_BYTES_MAX / 2 - 1));
    let keys = ["a", "A", "a ", "ä", "a%", "a_", "'", "\\", "\"", &longest, &nearly];
    let own = namespace(&"n".repeat(NAMESPACE_BYTES_MAX));
    let namespaces = [own.clone(), namespace("Shop"), own.of_notices().of_receipts()];
    let mut tasks = Vec::new();
    for namespace in &namespaces {
        for key in keys {
            let task = owner.task(at(1)).key(key);
            tasks.push(task.define(|task| task.namespace = namespace.clone()).build());
        }
    }
    owner.put(&tasks).await;
    let mut wanted = tasks.iter();
    for namespace in &namespaces {
        for key in keys {
            let found = owner.find_in(namespace, key).await;
            assert_eq!(found.as_ref(), wanted.next().map(Head::of).as_ref(), "{namespace} {key}");
        }
        for key in ["a  ", "AA", "a\u{308}"] {
            assert_eq!(owner.find_in(namespace, key).await, None, "{key:?}");
        }
    }
    assert_eq!(owner.find("a").await, None, "`shop` is another namespace than `Shop`");
    let by_prefix = |prefix: &str| Filter { key_prefix: prefix.into(), ..Filter::all(own.clone()) };
    for (prefix, count) in [("a", 4), ("A", 1), ("a%", 1), ("ä", 3), (&*longest, 1), ("\\", 1)] {
        let listed = owner.list_by(&by_prefix(prefix), 100).await;
        assert_eq!(listed.len(), count, "{prefix}");
    }
    owner.apply(tasks.iter().map(|task| settle(task, FireEnd::Done, NOW)).collect()).await;
    for namespace in &namespaces {
        assert_eq!(owner.counts_of(namespace).await.done, keys.len() as i64);
    }
}

/// Returns one definition for every value of every field that has several.
fn definitions(base: &NewTask) -> Vec<NewTask> {
    let ms = Duration::from_millis;
    let mut all = [with_payloads(base), with_schedules(base), with_retries(base)].concat();
    for guarantee in [Guarantee::AtMostOnce, Guarantee::AtLeastOnce, Guarantee::ExactlyOnce] {
        all.push(NewTask { guarantee, ..base.clone() });
    }
    for method in Method::ALL {
        let url = "http://127.0.0.1:8080/a?b=%20";
        let target = HttpTarget::new(url, method, Vec::new()).expect("a valid webhook");
        all.push(NewTask { target: Target::Http(target), ..base.clone() });
    }
    for expires_after in [None, Some(ms(1)), Some(DELAY_MAX)] {
        all.push(NewTask { expires_after, timeout: ms(10), ..base.clone() });
    }
    let labels = (0..16).map(|number| (format!("l{number}"), "ä".repeat(128)));
    all.push(NewTask {
        labels: Labels::new(labels.collect()).expect("as many as are allowed"),
        ..base.clone()
    });
    all
}

fn with_payloads(base: &NewTask) -> Vec<NewTask> {
    let binary = |bytes: &'static [u8], content_type: &str| Payload::Binary {
        bytes: bytes.into(),
        content_type: content_type.into(),
    };
    let payloads = [
        Payload::Empty,
        Payload::Json("null".into()),
        Payload::Json("".into()),
        Payload::Json("{\"zähler\": [1, 2.5e9, \"\\u0000\"]}".into()),
        binary(b"", ""),
        binary(&[0, 255, 10, 13, 0], "text/plain"),
    ];
    let with = |payload| NewTask { payload, ..base.clone() };
    payloads.map(with).into()
}

fn with_schedules(base: &NewTask) -> Vec<NewTask> {
    let ms = Duration::from_millis;
    let schedules = [
        Schedule::Once(Due::At(Timestamp::EPOCH)),
        Schedule::Once(Due::At(Timestamp::MAX)),
        Schedule::Once(Due::In(Duration::ZERO)),
        Schedule::Once(Due::In(ms(1))),
        Schedule::every(ms(100)),
        Schedule::watch(ms(90_000)),
    ];
    let with = |schedule| NewTask { schedule, ..base.clone() };
    schedules.map(with).into()
}

fn with_retries(base: &NewTask) -> Vec<NewTask> {
    let ms = Duration::from_millis;
    let exponential = Backoff::Exponential { first: ms(1), factor_thousandths: 1500, max: ms(99) };
    let policies = [
        (1, Backoff::Fixed(ms(7)), 0),
        (2, exponential, 1),
        (100, Backoff::List(vec![ms(1); 99]), 1000),
        (100, Backoff::List(vec![Duration::ZERO]), 999),
    ];
    let with = |(attempts_max, backoff, thousandths)| NewTask {
        retry: RetryPolicy {
            attempts_max,
            backoff,
            jitter: Jitter::from_thousandths(thousandths).expect("a share"),
        },
        ..base.clone()
    };
    policies.map(with).into()
}

pub async fn every_kind_of_definition_is_read_back_unchanged<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut tasks = Vec::new();
    let base = owner.task(at(1)).build().definition;
    for definition in definitions(&base) {
        assert_eq!(definition.check(), Ok(()), "a caller may send it");
        let built = owner.task(at(1));
        tasks.push(built.define(|given| *given = definition).build());
    }
    owner.put(&tasks).await;
    assert_eq!(owner.load().await, tasks);
    let mut watched = Vec::new();
    for task in &tasks {
        let (late, change) = postpone(task, at(9));
        owner.apply(vec![change]).await;
        watched.push(late);
    }
    assert_eq!(owner.list().await, watched);
}

pub async fn a_large_payload_is_read_back_unchanged<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    // The bytes differ, so that a lost or repeated piece shows.
    let bytes: Vec<u8> = (0..PAYLOAD_BYTES_MAX as u64)
        .map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).to_le_bytes()[0])
        .collect();
    let payload =
        Payload::Binary { bytes: bytes.into(), content_type: "application/octet-stream".into() };
    let mut tasks = Vec::new();
    for second in 0..12 {
        tasks.push(owner.task(at(second)).payload(payload.clone()).build());
    }
    owner.put(&tasks).await;
    assert_eq!(owner.load().await, tasks);
    assert_eq!(owner.get(tasks[7].id).await.as_ref(), Some(&tasks[7]));
    owner.apply(vec![die(&tasks[7], NOW, None)]).await;
    assert_eq!(owner.dead().await, [letter(&tasks[7], NOW)]);
}

pub async fn a_batch_of_many_small_tasks_is_stored_completely<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut tasks = Vec::new();
    for number in 0..5000u64 {
        let built = owner.task(at(number / 10));
        tasks.push(built.key(&format!("order-{number}")).build());
    }
    owner.put(&tasks).await;
    assert_eq!(owner.loaded_ids().await, ids(&tasks));
    let listed = owner.list_by(&Filter::all(shop()), 999).await;
    assert_eq!(ids(&listed), ids(&tasks));
    assert_eq!(owner.counts().await.scheduled, 5000);
    let head = owner.find("order-4321").await;
    assert_eq!(head, Some(Head::of(&tasks[4321])));
    let done = |task| settle(task, FireEnd::Done, NOW);
    owner.apply(tasks.iter().map(done).collect()).await;
    assert_eq!(owner.load().await, []);
    assert_eq!(owner.find("order-4321").await, None);
    assert_eq!(owner.counts().await.done, 5000);
}

pub async fn the_first_and_last_instants_are_valid_times<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut tasks = Vec::new();
    let last_but_one = Timestamp::from_millis(Timestamp::MAX.as_millis() - 1);
    for due in [Timestamp::EPOCH, NOW, last_but_one, Timestamp::MAX] {
        let task = owner.task(due).key(&due.to_string()).build();
        tasks.push(Task { created_at: due, version: Version::new(0), ..task });
    }
    owner.put(&tasks).await;
    // No task is before the first instant. `until` is exclusive, also for the last instant.
    let none = owner.load_between(Position::START, Timestamp::EPOCH, 9);
    assert_eq!(none.await, []);
    assert_eq!(owner.load().await, tasks[..3]);
    assert_eq!(owner.list().await, tasks);
    for task in &tasks {
        let due = task.fire_at;
        assert_eq!(owner.get(task.id).await.as_ref(), Some(task), "{due}");
        let head = owner.find(&due.to_string()).await;
        assert_eq!(head, Some(Head::of(task)), "{due}");
    }
    let (last, change) = postpone(&tasks[0], Timestamp::MAX);
    owner.apply(vec![change]).await;
    assert_eq!(owner.get(last.id).await, Some(last.clone()));
    owner.apply(vec![settle(&last, FireEnd::Done, Timestamp::MAX)]).await;
    owner.apply(vec![die(&tasks[3], Timestamp::MAX, None)]).await;
    assert_eq!(owner.history(last.id).await.len(), 1);
    assert_eq!(owner.history(tasks[3].id).await.len(), 1);
    assert_eq!(owner.dead().await, [letter(&tasks[3], Timestamp::MAX)]);
    assert_eq!(owner.list().await, tasks[1..3]);
}
