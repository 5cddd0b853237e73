//! gRPC and the Rust client: pause, resume, fire, fires, explain, dead letters, counts.

use std::time::Duration;

use punctual_client::{
    Client, Error, FireEnd, FireId, Fires, Namespace, OperationFilter, OperationVerb, Retry,
    TaskState,
};
use punctual_test_support::{TestBroker, WAIT_MAX, WebhookReceiver};

const HOUR: Duration = Duration::from_secs(3600);

fn shop(broker: &TestBroker) -> Namespace {
    Client::connect(format!("http://{}", broker.address)).unwrap().namespace("shop")
}

/// Waits until a call returns something.
async fn eventually<T, F: Future<Output = Option<T>>>(mut call: impl FnMut() -> F) -> T {
    let waiting = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        loop {
            ticks.tick().await;
            if let Some(found) = call().await {
                return found;
            }
        }
    };
    tokio::time::timeout(WAIT_MAX, waiting).await.expect("it happens in time")
}

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> u16 {
    match result {
        Err(Error::Problem(problem)) => problem.status,
        other => panic!("expected a problem, got {other:?}"),
    }
}

#[tokio::test]
async fn a_task_is_paused_resumed_fired_and_explained() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    shop.task().key("report").every(HOUR).queue("q").schedule().await.unwrap();
    assert_eq!(shop.pause("report").await.unwrap().state, TaskState::Paused);
    let paused = shop.explain("report").await.unwrap().unwrap();
    assert_eq!((paused.waiting_for.as_str(), paused.next.len()), ("pause", 0));
    assert_eq!(status(shop.fire("report").await), 409, "a paused task does not fire");
    assert_eq!(shop.resume("report").await.unwrap().state, TaskState::Scheduled);
    let waiting = shop.explain("report").await.unwrap().unwrap();
    assert_eq!((waiting.waiting_for.as_str(), waiting.next.len()), ("time", 5));
    assert!(waiting.summary.contains("every 1h"), "{}", waiting.summary);
    assert_eq!((waiting.partition, waiting.task.key.as_deref()), (0, Some("report")));
    shop.fire("report").await.unwrap();
    for missing in [shop.pause("none").await, shop.resume("none").await, shop.fire("none").await] {
        assert_eq!(status(missing), 404);
    }
    assert!(shop.explain("none").await.unwrap().is_none());
    assert!(shop.fires_of("none").await.unwrap().is_none());
    let stats = shop.stats().await.unwrap();
    assert_eq!((stats.accepted, stats.dead), (1, 0));
    let forecast = shop.forecast(5 * HOUR, HOUR).await.unwrap();
    assert_eq!((forecast.fires.len(), forecast.complete_until), (5, None));
    assert!(forecast.fires.iter().sum::<u64>() >= 4, "{forecast:?}");
    assert_eq!(status(shop.forecast(Duration::from_millis(1), HOUR).await), 422);
}

#[tokio::test]
async fn dead_letters_are_listed_redriven_and_deleted() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let shop = shop(&broker);
    for key in ["a", "b", "c"] {
        let task = shop.task().key(key).delay(Duration::ZERO).retry(Retry::attempts_max(1));
        task.http(format!("{}/500", receiver.url)).schedule().await.unwrap();
    }
    let all = eventually(|| async {
        let page = shop.dead_letters(10, None).await.unwrap();
        (page.dead.len() == 3).then_some(page.dead)
    })
    .await;
    assert!(all.iter().all(|letter| letter.reason == "exhausted"), "{all:?}");
    assert_eq!(all[0].attempts[0].outcome, "failed");
    assert_eq!(all[0].task.state, TaskState::Dead);
    let first = shop.dead_letters(2, None).await.unwrap();
    let second = shop.dead_letters(2, first.next).await.unwrap();
    assert_eq!((first.dead.len(), second.dead.len(), second.next), (2, 1, None));

    assert!(shop.delete_dead_letter(&all[0].fire_id).await.unwrap());
    assert!(!shop.delete_dead_letter(&all[0].fire_id).await.unwrap(), "it is gone");
    let redriven = shop.redrive([all[0].fire_id.clone(), all[1].fire_id.clone()]).await.unwrap();
    assert_eq!((redriven.redriven, redriven.problems.len(), redriven.more), (1, 1, false));
    assert_eq!(redriven.problems[0].0, all[0].fire_id);
    let rest = shop.redrive_all().await.unwrap();
    assert!(rest.redriven >= 1, "{rest:?}");
    assert_eq!(status(shop.delete_dead_letter(&FireId::from("no fire id")).await), 422);

    let id = all[1].task.id.clone();
    let fires = eventually(|| async {
        let page = shop.fires_of(id.as_str()).await.unwrap()?;
        page.fires.iter().any(|fire| fire.attempts.len() >= 2).then_some(page.fires)
    })
    .await;
    assert_eq!(fires[0].fire_id, all[1].fire_id);
    assert!(fires[0].attempts.iter().all(|attempt| attempt.outcome == "failed"), "{fires:?}");
}

#[tokio::test]
async fn a_call_of_another_namespace_is_refused() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let address = format!("http://{}", broker.address);
    let client = Client::builder(address).token("aaa").connect().unwrap();
    let (shop, bank) = (client.namespace("shop"), client.namespace("bank"));
    assert!(shop.stats().await.is_ok());
    let refused = [
        bank.pause("a").await.map(drop),
        bank.resume("a").await.map(drop),
        bank.fire("a").await.map(drop),
        bank.fires(Fires::default()).await.map(drop),
        bank.fires_of("a").await.map(drop),
        bank.explain("a").await.map(drop),
        bank.dead_letters(1, None).await.map(drop),
        bank.redrive_all().await.map(drop),
        bank.delete_dead_letter(&FireId::from("a")).await.map(drop),
        bank.stats().await.map(drop),
        bank.forecast(HOUR, HOUR).await.map(drop),
        bank.queues().await.map(drop),
        bank.workers().await.map(drop),
        bank.lanes().await.map(drop),
    ];
    for refused in refused {
        assert_eq!(status(refused), 403);
    }
    let (bad, end) = (Fires::default().cursor("x"), Fires::default().end(FireEnd::Dead));
    assert_eq!(status(shop.fires(bad).await), 422);
    assert!(shop.fires(end).await.unwrap().fires.is_empty());
}

#[tokio::test]
async fn all_tasks_that_match_are_counted_and_changed() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    for key in ["order-1", "order-2", "mail-1"] {
        shop.task().key(key).delay(HOUR).queue("q").schedule().await.unwrap();
    }
    let orders =
        || OperationFilter { key_prefix: Some("order-".to_owned()), ..OperationFilter::default() };
    let counted = shop.count_operation(OperationVerb::Pause, orders()).await.unwrap();
    assert_eq!((counted.matched, counted.exact), (2, true));
    let started = shop.start_operation(OperationVerb::Pause, orders()).await.unwrap();
    let ended = eventually(|| async {
        let now = shop.operation(&started.id).await.unwrap();
        (now.state != "running").then_some(now)
    });
    let ended = ended.await;
    assert_eq!((ended.state.as_str(), ended.matched, ended.changed), ("done", 2, 2), "{ended:?}");
    assert!(ended.ended_at.is_some() && ended.by == "admin", "{ended:?}");
    assert_eq!(shop.operations().await.unwrap(), std::slice::from_ref(&ended));
    assert_eq!(shop.stop_operation(&started.id).await.unwrap(), ended, "it has ended already");
    assert_eq!(status(shop.operation("77").await), 404);
    let no_time = OperationVerb::Shift(Duration::ZERO);
    assert_eq!(status(shop.start_operation(no_time, orders()).await), 422);
    let mails = OperationFilter { key_prefix: Some("mail-".to_owned()), ..Default::default() };
    let before = shop.get("mail-1").await.unwrap().unwrap().fire_at;
    let moved = shop.start_operation(OperationVerb::Shift(HOUR), mails).await.unwrap();
    assert_eq!((moved.verb.as_str(), moved.later), ("shift", Some(HOUR)));
    eventually(|| async {
        let now = shop.get("mail-1").await.unwrap().unwrap().fire_at;
        (now.since(before) == HOUR).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_ended_is_measured_by_steps() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let receiver = WebhookReceiver::start();
    shop.task().delay(Duration::ZERO).http(receiver.url.clone()).schedule().await.unwrap();
    let minute = Duration::from_secs(60);
    let series = eventually(|| async {
        let series = shop.series(5 * minute, minute).await.unwrap();
        (series.points.iter().map(|point| point.done).sum::<u64>() == 1).then_some(series)
    });
    let series = series.await;
    assert_eq!((series.points.len(), series.step), (5, minute));
    assert!(series.since.is_some());
    assert!(series.points.iter().any(|point| point.lag_p99_ms.is_some()), "{series:?}");
    assert_eq!(status(shop.series(minute, 2 * minute).await), 422);
}
