//! Scheduling: each call gets its own answer, and what a broken connection means for it.

use std::time::Duration;

use punctual_client::{CancelResult, Client, Error, Namespace, NewTask};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;

use crate::fake_broker::{BrokerRecord, FakeBroker};

fn task(namespace: &Namespace) -> NewTask<Namespace> {
    namespace.task().delay(Duration::from_secs(1)).queue("q")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_travel_together_and_each_gets_its_own_answer() {
    let broker = FakeBroker::start().await;
    let client = broker.client();
    let mut calls = JoinSet::new();
    for number in 0..5_000 {
        let namespace = client.namespace(if number % 3 == 0 { "a" } else { "b" });
        let key = if number % 10 == 0 { format!("bad-{number}") } else { format!("k-{number}") };
        calls.spawn(async move { (key.clone(), task(&namespace).key(key).schedule().await) });
    }
    while let Some(call) = calls.join_next().await {
        match call.unwrap() {
            (key, Ok(scheduled)) => assert_eq!(scheduled.id.as_str(), format!("id-{key}")),
            (key, Err(Error::Problem(problem))) => {
                assert_eq!(problem.detail, format!("{key} is bad"));
                assert_eq!(problem.field.as_deref(), Some("key"));
            }
            (key, Err(error)) => panic!("{key}: {error}"),
        }
    }
    let record = broker.record();
    assert!(record.batches.len() < 1_000, "{} batches of 5,000 calls", record.batches.len());
    assert_eq!(record.batches.iter().map(|batch| batch.tasks.len()).sum::<usize>(), 5_000);
}

#[tokio::test]
async fn many_tasks_are_answered_in_order_and_bad_ones_fail_alone() {
    let broker = FakeBroker::start().await;
    let namespace = broker.client().namespace("a");
    let unwritable = std::collections::HashMap::from([((1, 2), 3)]);
    let tasks = (0..10_000).map(|number| match number {
        7 => NewTask::new().key("never sent").payload_json(&unwritable),
        5_000 => NewTask::new().key("bad"),
        _ => NewTask::new().key(number.to_string()).payload(vec![0; 1_000], ""),
    });
    let results = namespace.schedule_many(tasks).await;
    assert_eq!(results.len(), 10_000);
    for (number, result) in results.into_iter().enumerate() {
        match (number, result) {
            (7, Err(Error::Payload(_))) => {}
            (5_000, Err(Error::Problem(problem))) => assert_eq!(problem.detail, "bad is bad"),
            (_, Ok(scheduled)) => assert_eq!(scheduled.id.as_str(), format!("id-{number}")),
            (_, Err(error)) => panic!("{number}: {error}"),
        }
    }
    assert!(namespace.schedule_many([]).await.is_empty());
}

#[tokio::test]
async fn after_a_broken_connection_tasks_with_a_key_are_sent_again_and_others_are_lost() {
    let broker = FakeBroker::start().await;
    let namespace = broker.client().namespace("a");
    broker.hold_answers(true);
    let calls = tokio::spawn({
        let namespace = namespace.clone();
        async move {
            tokio::join!(
                task(&namespace).key("named").schedule(),
                task(&namespace).schedule(),
                namespace.schedule_many_once("once", [NewTask::new(), NewTask::new()]),
            )
        }
    });
    let tasks =
        |record: &BrokerRecord| record.batches.iter().map(|it| it.tasks.len()).sum::<usize>();
    broker.until(|record| tasks(record) == 4).await;
    broker.hold_answers(false);
    broker.cut();

    let (named, unnamed, many) = calls.await.unwrap();
    assert_eq!(named.unwrap().id.as_str(), "id-named");
    let lost = unnamed.unwrap_err();
    assert!(matches!(lost, Error::Lost(_)) && lost.outcome_is_open(), "{lost}");
    assert!(many.iter().all(Result::is_ok), "{many:?}");
    let record = broker.record();
    assert_eq!(tasks(&record), 4 + 3, "the task without a key was sent once");
    let keys = record.batches.iter().filter(|batch| !batch.idempotency_key.is_empty());
    assert!(keys.map(|batch| &batch.idempotency_key).all(|key| key == "once/0"));
}

#[tokio::test]
async fn an_unreachable_broker_is_an_error_and_is_found_when_it_is_back() {
    let broker = FakeBroker::start().await;
    let client = Client::builder(broker.url()).token("secret").connect().unwrap();
    let nowhere = Client::builder("http://127.0.0.1:1").timeout(Duration::from_secs(2));
    let nowhere = nowhere.connect().unwrap().namespace("a");
    let error = task(&nowhere).schedule().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    let error = nowhere.cancel("k").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");

    let namespace = client.namespace("a");
    for _ in 0..3 {
        task(&namespace).key("k").schedule().await.unwrap();
        assert_eq!(namespace.cancel("k").await.unwrap(), CancelResult::Cancelled);
        broker.cut();
    }
    let record = broker.record();
    assert!(record.tokens.len() >= 2, "the stream was opened again");
    assert!(record.tokens.iter().all(|token| token.as_deref() == Some("Bearer secret")));
}

#[tokio::test]
async fn an_error_without_an_answer_tells_whether_the_call_may_have_been_done() {
    // The kernel accepts these connections, and nothing ever answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let cancel = async |scheme: &str, timeout| {
        let client = Client::builder(format!("{scheme}://{address}")).timeout(timeout);
        client.connect().unwrap().namespace("a").cancel("k").await.unwrap_err()
    };
    let sent = cancel("http", Duration::from_secs(2)).await;
    assert!(matches!(sent, Error::TimedOut) && sent.outcome_is_open(), "{sent}");
    let waited_for_tls = cancel("https", Duration::from_millis(300)).await;
    assert!(matches!(waited_for_tls, Error::Unreachable(_)), "{waited_for_tls}");
}

#[tokio::test]
async fn the_outcome_of_a_broken_call_stays_open_while_no_broker_is_reachable() {
    let broker = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = broker.local_addr().unwrap();
    let vanishing = async move {
        let (mut connection, _) = broker.accept().await.unwrap();
        connection.read_exact(&mut [0; 24]).await.unwrap();
    };
    let client = Client::builder(format!("http://{address}")).timeout(Duration::from_secs(2));
    let namespace = client.connect().unwrap().namespace("a");
    let (touched, ()) = tokio::join!(namespace.touch("k"), vanishing);
    let error = touched.unwrap_err();
    assert!(error.outcome_is_open(), "{error}");
}

#[tokio::test]
async fn unsuccessful_answers_keep_their_meaning() {
    let broker = FakeBroker::start().await;
    let namespace = broker.client().namespace("a");
    let results = namespace.cancel_many(["firing", "missing", "k"]).await.unwrap();
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    let firing = CancelResult::Firing { attempt: 2 };
    assert_eq!(results, [firing, CancelResult::NotFound, CancelResult::Cancelled]);
    assert_eq!(namespace.get("k").await.unwrap(), None);
    let missing = namespace.touch("k").await;
    assert!(matches!(missing, Err(Error::Problem(problem)) if problem.status == 404));
    let conflict = task(&namespace).key("k").if_absent().schedule().await;
    assert!(matches!(conflict, Err(Error::Problem(problem)) if problem.status == 409));
}
