//! gRPC: the Rust client, and a worker that breaks the rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use punctual_client::{
    CancelResult, Client, Delivery, Error, Failure, FireEnd, Gap, List, Misfire, Namespace,
    NewTask, Occasion, Overlap, Retry, Target, TaskState, Timestamp, Touch, Twice, Worker,
};
use punctual_proto::v1;
use punctual_proto::v1::broker_message::Message as FromBroker;
use punctual_proto::v1::tasks_client::TasksClient;
use punctual_proto::v1::worker_message::Message as ToBroker;
use punctual_proto::v1::workers_client::WorkersClient;
use punctual_test_support::{TestBroker, WAIT_MAX, eventually};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

const HOUR: Duration = Duration::from_secs(3600);

fn shop(broker: &TestBroker) -> Namespace {
    Client::connect(format!("http://{}", broker.address)).unwrap().namespace("shop")
}

fn soon(namespace: &Namespace) -> NewTask<Namespace> {
    namespace.task().delay(Duration::from_millis(100)).queue("q")
}

/// Returns a worker that settles by `answer`, and the deliveries that it gets.
fn worker<F>(namespace: &Namespace, answer: F) -> (Worker, mpsc::UnboundedReceiver<Delivery>)
where
    F: Fn(&Delivery) -> Result<(), Failure> + Send + Sync + 'static,
{
    let (received, deliveries) = mpsc::unbounded_channel();
    let worker = namespace.worker("q").handler(move |delivery| {
        let answer = answer(&delivery);
        received.send(delivery).unwrap();
        async move { answer }
    });
    (worker, deliveries)
}

async fn next(deliveries: &mut mpsc::UnboundedReceiver<Delivery>) -> Delivery {
    tokio::time::timeout(WAIT_MAX, deliveries.recv()).await.expect("a delivery arrives").unwrap()
}

/// A worker that sends raw messages and may break every rule.
struct RawWorker {
    outgoing: mpsc::Sender<v1::WorkerMessage>,
    incoming: Streaming<v1::BrokerMessage>,
}

impl RawWorker {
    async fn new(broker: &TestBroker, namespace: &str, credit: u32) -> Self {
        let hello = v1::Hello {
            namespace: namespace.to_owned(),
            queues: vec!["q".to_owned()],
            credit,
            name: "raw".to_owned(),
        };
        let mut raw = Self::open(broker, ToBroker::Hello(hello)).await.unwrap();
        assert!(matches!(raw.next().await, FromBroker::Welcome(_)));
        raw
    }

    async fn open(broker: &TestBroker, first: ToBroker) -> Result<Self, tonic::Status> {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address));
        let channel = channel.unwrap().connect().await.unwrap();
        let (outgoing, messages) = mpsc::channel(16);
        outgoing.send(v1::WorkerMessage { message: Some(first) }).await.unwrap();
        let incoming = WorkersClient::new(channel).work(ReceiverStream::new(messages)).await?;
        Ok(Self { outgoing, incoming: incoming.into_inner() })
    }

    async fn send(&self, message: ToBroker) {
        self.outgoing.send(v1::WorkerMessage { message: Some(message) }).await.unwrap();
    }

    async fn next(&mut self) -> FromBroker {
        let message = tokio::time::timeout(WAIT_MAX, self.incoming.message()).await;
        message.expect("the broker sends a message").unwrap().unwrap().message.unwrap()
    }

    async fn delivery(&mut self) -> v1::Delivery {
        match self.next().await {
            FromBroker::Deliveries(mut deliveries) => deliveries.deliveries.remove(0),
            other => panic!("not a delivery: {other:?}"),
        }
    }
}

/// Bytes of a payload, so that a few fill every buffer between a broker and a worker.
const LARGE: usize = 200_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_its_worker_has_not_read_yet_can_be_cancelled() {
    let broker = TestBroker::start(&[]);
    let mut raw = RawWorker::new(&broker, "shop", 1_000).await;
    let namespace = shop(&broker);
    let payload = "x".repeat(LARGE);
    const TASKS: usize = 100;
    for n in 0..TASKS {
        let new_task = namespace.task().key(format!("k{n}")).delay(Duration::ZERO).queue("q");
        new_task.payload(payload.clone(), "text/plain").schedule().await.unwrap();
    }
    // The worker reads nothing: what does not fit into the buffers waits at the broker.
    let mut cancelled = Vec::new();
    for n in (TASKS / 2..TASKS).rev() {
        let key = format!("k{n}");
        match namespace.cancel(&key).await.unwrap() {
            CancelResult::Cancelled => cancelled.push(key),
            CancelResult::Firing { .. } => {}
            other => panic!("{key}: {other:?}"),
        }
    }
    assert!(!cancelled.is_empty(), "some were not sent yet");
    let mut received = Vec::new();
    while received.len() + cancelled.len() < TASKS {
        if let FromBroker::Deliveries(deliveries) = raw.next().await {
            for delivery in deliveries.deliveries {
                received.push(delivery.key.clone());
                raw.send(ack(delivery.token)).await;
            }
        }
    }
    for key in &cancelled {
        assert!(!received.contains(key), "{key} was sent after its cancel");
    }
}

fn ack(token: u64) -> ToBroker {
    ToBroker::Settle(v1::Settle { ack: vec![token], ..v1::Settle::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_task_is_delivered_and_a_cancelled_one_is_not() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let order = |key: &str| soon(&shop).key(key).payload_json(&serde_json::json!({"order": key}));
    let unpaid = order("unpaid").label("campaign", "7").schedule().await.unwrap();
    let paid = order("paid").delay(Duration::from_millis(400)).schedule().await.unwrap();
    assert_eq!((unpaid.version, unpaid.replaced), (1, false));
    let task = shop.get("unpaid").await.unwrap().unwrap();
    assert_eq!((&task.id, task.state), (&unpaid.id, TaskState::Scheduled));
    assert_eq!(task.labels["campaign"], "7");
    assert_eq!(shop.get(paid.id.as_str()).await.unwrap().unwrap().key.unwrap(), "paid");
    assert_eq!(shop.cancel("paid").await.unwrap(), CancelResult::Cancelled);
    assert_eq!(shop.cancel_id(&paid.id).await.unwrap(), CancelResult::Cancelled);
    assert_eq!(shop.cancel("missing").await.unwrap(), CancelResult::NotFound);

    let (worker, mut deliveries) = worker(&shop, |_| Ok(()));
    let worker = worker.spawn();
    let delivery = next(&mut deliveries).await;
    assert_eq!((delivery.key.as_deref(), delivery.attempt), (Some("unpaid"), 1));
    assert_eq!((&delivery.task, delivery.fire_at), (&unpaid.id, unpaid.fire_at));
    assert!(delivery.fired_at >= delivery.fire_at);
    assert_eq!(delivery.json::<serde_json::Value>().unwrap()["order"], "unpaid");
    let silence = tokio::time::timeout(Duration::from_millis(600), deliveries.recv()).await;
    assert!(silence.is_err(), "{silence:?}");
    assert_eq!(worker.stop().await.unwrap().acked, 1);
    let ended = shop.get("unpaid").await.unwrap().unwrap();
    assert_eq!((ended.state, ended.end), (TaskState::Done, Some(FireEnd::Done)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_repeated_with_its_idempotency_key_creates_nothing_more_whatever_maps_it_has() {
    let broker = TestBroker::start(&[]);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address));
    let mut tasks = TasksClient::new(channel.unwrap().connect().await.unwrap());
    let map = |name: &str| -> BTreeMap<String, String> {
        (0..12).map(|number| (format!("{name}-{number}"), number.to_string())).collect()
    };
    let http = v1::HttpTarget {
        url: "http://127.0.0.1:9/".to_owned(),
        headers: map("x"),
        success: Some(v1::SuccessRule {
            json: (0..8).map(|number| (format!("/{number}"), number.to_string())).collect(),
            ..v1::SuccessRule::default()
        }),
        ..v1::HttpTarget::default()
    };
    let task = v1::NewTask {
        labels: map("label"),
        target: Some(v1::Target { to: Some(v1::target::To::Http(http)) }),
        when: Some(v1::new_task::When::InMs(3_600_000)),
        ..v1::NewTask::default()
    };
    let request = v1::ScheduleRequest {
        namespace: "shop".to_owned(),
        task: Some(task.clone()),
        idempotency_key: "1".to_owned(),
        ..v1::ScheduleRequest::default()
    };
    let mut ids = Vec::new();
    for _ in 0..4 {
        let answer = tasks.schedule(request.clone()).await.unwrap().into_inner();
        ids.push(answer.task.unwrap().id);
    }
    let batch = v1::ScheduleBatch {
        namespace: "shop".to_owned(),
        tasks: vec![task],
        idempotency_key: "1".to_owned(),
        ..v1::ScheduleBatch::default()
    };
    let mut answers =
        tasks.schedule_many(tokio_stream::iter(vec![batch; 4])).await.unwrap().into_inner();
    while let Some(answer) = answers.message().await.unwrap() {
        match answer.results.into_iter().next().and_then(|result| result.result) {
            Some(v1::schedule_result::Result::Scheduled(scheduled)) => ids.push(scheduled.id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ids, vec![ids[0].clone(); 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tasks_among_many_fail_alone() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let good = |number: u64| {
        NewTask::new().key(format!("k-{number:05}")).delay(HOUR + Duration::from_secs(number))
    };
    let tasks = (0..12_000).map(|number| match number {
        3 => good(3).queue("q").timeout(Duration::from_millis(1)),
        4 => good(4).queue("q").payload("{", "application/json"),
        5 => NewTask::new().key("no target").delay(HOUR),
        6 => NewTask::new().key("no time").queue("q"),
        _ => good(number).queue("q"),
    });
    let results = shop.schedule_many(tasks).await;
    assert_eq!(results.len(), 12_000);
    let bad = results.iter().enumerate().filter_map(|(number, result)| match result {
        Ok(_) => None,
        Err(Error::Problem(problem)) => Some((number, problem.field.clone().unwrap())),
        Err(error) => panic!("{number}: {error}"),
    });
    let bad: Vec<_> = bad.collect();
    let fields = ["timeout", "payload", "target", "in"].map(str::to_owned);
    assert_eq!(bad, (3..7).zip(fields).collect::<Vec<_>>());

    let mut listed = Vec::new();
    let mut list = List::default().key_prefix("k-").limit(999);
    loop {
        let page = shop.list(list.clone()).await.unwrap();
        listed.extend(page.tasks.into_iter().map(|task| task.key.unwrap()));
        let Some(next) = page.next else { break };
        list = list.cursor(next);
    }
    assert_eq!(listed.len(), 12_000 - 4);
    assert!(listed.is_sorted(), "in the order of their due times");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_an_unknown_state_is_refused() {
    let broker = TestBroker::start(&[]);
    shop(&broker).task().delay(HOUR).queue("q").schedule().await.unwrap();
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address));
    let mut raw = TasksClient::new(channel.unwrap().connect().await.unwrap());
    let refused = Err(Code::InvalidArgument);
    for (state, want) in [(0, Ok(1)), (2, Ok(0)), (3, Ok(0)), (6, refused), (99, refused)] {
        let request =
            v1::ListRequest { namespace: "shop".to_owned(), state, ..v1::ListRequest::default() };
        let listed = raw.list(request).await.map(|page| page.into_inner().tasks.len());
        assert_eq!(listed.map_err(|status| status.code()), want, "{state}");
    }
}

/// The store does not know which tasks are firing. The list does, as over HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_which_tasks_are_firing() {
    let broker = TestBroker::start(&["--partitions", "3"]);
    let shop = shop(&broker);
    for key in ["waiting", "also-waiting"] {
        shop.task().key(key).delay(HOUR).queue("q").schedule().await.unwrap();
    }
    soon(&shop).key("firing").schedule().await.unwrap();
    let mut worker = RawWorker::new(&broker, "shop", 10).await;
    let delivery = worker.delivery().await;
    let listed = async |state: Option<TaskState>| {
        let list = state.into_iter().fold(List::default(), List::state);
        let page = shop.list(list).await.unwrap();
        let tasks = page.tasks.into_iter();
        tasks.map(|task| (task.key.unwrap(), task.state)).collect::<Vec<_>>()
    };
    let firing = [("firing".to_owned(), TaskState::Firing)];
    assert_eq!(listed(Some(TaskState::Firing)).await, firing);
    assert_eq!(listed(None).await[..1], firing);
    let scheduled = listed(Some(TaskState::Scheduled)).await;
    assert_eq!(scheduled.len(), 2, "{scheduled:?}");
    assert!(scheduled.iter().all(|(_, state)| *state == TaskState::Scheduled), "{scheduled:?}");
    worker.send(ack(delivery.token)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_many_tasks_with_one_key_wins() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    // Several batches are in flight at once, each with the same key a few times.
    let task = |number: u64| {
        let key = if number.is_multiple_of(500) { "same".to_owned() } else { number.to_string() };
        let fire_at = Timestamp::from_millis(4_000_000_000_000 + number);
        NewTask::new().key(key).at(fire_at).queue("q")
    };
    let results = shop.schedule_many((0..10_000).map(task)).await;
    assert!(results.iter().all(Result::is_ok));
    let task = shop.get("same").await.unwrap().unwrap();
    assert_eq!((task.version, task.fire_at.as_millis()), (20, 4_000_000_009_500));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_with_an_idempotency_key_is_scheduled_once() {
    let broker = TestBroker::start(&["--partitions", "8"]);
    let shop = shop(&broker);
    // Several batches. Each second task has a key, which begins with `letter`.
    let task = |letter: char, number: u64| {
        let task = NewTask::new().delay(HOUR).queue("q");
        if number.is_multiple_of(2) { task } else { task.key(format!("{letter}-{number}")) }
    };
    let send = async |letter: char| {
        let results =
            shop.schedule_many_once("once", (0..4_000).map(|number| task(letter, number))).await;
        let id = |result: Result<punctual_client::Scheduled, Error>| match result {
            Ok(scheduled) => Ok(scheduled.id),
            Err(Error::Problem(problem)) => Err(problem.status),
            Err(error) => panic!("{error}"),
        };
        results.into_iter().map(id).collect::<Vec<_>>()
    };
    let first = send('a').await;
    assert!(first.iter().all(Result::is_ok), "{first:?}");
    assert_eq!(send('a').await, first);
    let other = send('b').await;
    for (number, (one, first)) in other.iter().zip(&first).enumerate() {
        let expected = if number % 2 == 0 { first } else { &Err(409) };
        assert_eq!(one, expected, "{number}");
    }
    assert_eq!(shop.get("b-1").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_checked_and_touches_move_tasks() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let task = || shop.task().key("a").delay(HOUR).queue("q");
    assert_eq!(task().if_absent().schedule().await.unwrap().version, 1);
    let status = |result: Result<_, Error>| match result {
        Err(Error::Problem(problem)) => problem.status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(task().if_absent().schedule().await), 409);
    assert_eq!(status(task().if_version(7).schedule().await), 412);
    assert!(task().if_version(1).schedule().await.unwrap().replaced);

    let before = shop.get("a").await.unwrap().unwrap();
    let later = || Touch::default().delay(2 * HOUR);
    shop.touch_many(["a"], later()).await.unwrap();
    let after = shop.get("a").await.unwrap().unwrap();
    assert!(after.version > before.version && after.fire_at >= before.fire_at);
    assert!(matches!(shop.touch("b").await, Err(Error::Problem(problem)) if problem.status == 404));
    let untimed = shop.touch("a").await;
    assert!(
        matches!(untimed, Err(Error::Problem(problem)) if problem.status == 422),
        "not a watch"
    );
    shop.task().key("w").within(HOUR).queue("q").schedule().await.unwrap();
    shop.touch("w").await.unwrap();
    assert_eq!(shop.get("w").await.unwrap().unwrap().version, 2);
    let model = NewTask::new().delay(HOUR).queue("q");
    let touched = shop.touch_many(["a", "b", "c"], later().create(model)).await.unwrap();
    assert_eq!((touched.touched, touched.created, touched.missing.len()), (1, 2, 0));
    let namespace = shop.task().key("x").delay(HOUR).queue("no spaces").schedule().await;
    let Err(Error::Problem(problem)) = namespace else { panic!("{namespace:?}") };
    assert_eq!((problem.status, problem.field.as_deref()), (422, Some("target.queue")));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_every_schedule_is_stored() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let (start, end) =
        (Timestamp::from_millis(1_893_456_000_000), Timestamp::from_millis(1_900_000_000_000));
    let cron = shop.task().key("cron").timezone("Europe/Berlin").cron("0 9 * * MON-FRI").queue("q");
    let cron = cron.dst_gap(Gap::Skip).dst_overlap(Twice::Both).starts_at(start).ends_at(end);
    let cron = cron.count(7).misfire(Misfire::FireAll).overlap(Overlap::QueueOne);
    cron.jitter(Duration::from_secs(60)).schedule().await.unwrap();
    shop.task().key("every").every(HOUR).queue("q").schedule().await.unwrap();
    let watch = shop.task().key("watch").within(HOUR).postpone_max(2 * HOUR).on_return().queue("q");
    watch.schedule().await.unwrap();
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address));
    let mut raw = TasksClient::new(channel.unwrap().connect().await.unwrap());
    let mut sent = async |key: &str| {
        let (namespace, key_or_id) = ("shop".to_owned(), key.to_owned());
        let task = raw.get(v1::GetRequest { namespace, key_or_id }).await.unwrap().into_inner();
        assert!(task.nominal_at_ms > 0 && task.nominal_at_ms <= task.fire_at_ms);
        task.sent.unwrap()
    };
    let cron = sent("cron").await;
    let expression = v1::Cron {
        expression: "0 9 * * MON-FRI".to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        dst_gap: v1::Gap::Skip.into(),
        dst_overlap: v1::Twice::Both.into(),
    };
    assert_eq!(cron.when, Some(v1::new_task::When::Cron(expression)));
    let series = v1::Series {
        starts_at_ms: Some(start.as_millis()),
        ends_at_ms: Some(end.as_millis()),
        count: Some(7),
        misfire: v1::Misfire::FireAll.into(),
        overlap: v1::Overlap::QueueOne.into(),
        jitter_ms: 60_000,
    };
    assert_eq!(cron.series, Some(series));
    let every = sent("every").await;
    assert_eq!(every.when, Some(v1::new_task::When::EveryMs(3_600_000)));
    assert_eq!(every.series.unwrap().misfire(), v1::Misfire::FireOnce, "defaults are filled in");
    let watch = sent("watch").await;
    assert_eq!(watch.when, Some(v1::new_task::When::WithinMs(3_600_000)));
    assert_eq!((watch.postpone_max_ms, watch.on_return), (7_200_000, true));
    for (task, field) in [
        (shop.task().cron("0 25 * * *"), "cron"),
        (shop.task().cron("@daily").timezone("Mars"), "timezone"),
        (shop.task().every(HOUR).timezone("UTC"), "timezone"),
        (shop.task().every(HOUR).count(0), "count"),
        (shop.task().every(HOUR).on_return(), "on_return"),
        (shop.task().delay(HOUR).jitter(HOUR), "jitter"),
        (shop.task().every(HOUR).ends_at(Timestamp::from_millis(5)), "ends_at"),
        (shop.task().within(HOUR).postpone_max(HOUR / 2), "postpone_max"),
    ] {
        let refused = task.queue("q").schedule().await;
        let Err(Error::Problem(problem)) = refused else { panic!("{field}: {refused:?}") };
        assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_gets_the_due_fire_and_the_return_fire_of_a_watch() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let (worker, mut deliveries) = worker(&shop, |_| Ok(()));
    let worker = worker.spawn();
    let watch = NewTask::new().within(Duration::from_millis(200)).on_return().queue("q");
    let touched = shop.touch_many(["d"], Touch::default().create(watch)).await.unwrap();
    assert_eq!(touched.created, 1);
    let silent = next(&mut deliveries).await;
    assert_eq!((silent.key.as_deref(), silent.occasion), (Some("d"), Occasion::Due));
    while shop.get("d").await.unwrap().unwrap().state != TaskState::Done {
        tokio::task::yield_now().await;
    }
    let listed = shop.list(List::default().state(TaskState::Done)).await.unwrap();
    assert_eq!(listed.tasks.len(), 1);
    shop.touch_many(["d"], Touch::default().within(HOUR)).await.unwrap();
    let back = next(&mut deliveries).await;
    assert_eq!((back.key.as_deref(), back.occasion), (Some("d"), Occasion::Return));
    assert_ne!(back.fire_id, silent.fire_id);
    let beat = shop.task().key("beat").every(Duration::from_millis(100)).count(3).queue("q");
    beat.schedule().await.unwrap();
    let mut fires = std::collections::BTreeSet::new();
    for _ in 0..3 {
        assert!(fires.insert(next(&mut deliveries).await.fire_id));
    }
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_delivery_is_retried_and_a_refused_one_is_not() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let retry = || Retry::attempts_max(3).fixed(Duration::from_millis(50));
    soon(&shop).key("fails").retry(retry()).schedule().await.unwrap();
    soon(&shop).key("refused").retry(retry()).schedule().await.unwrap();
    let (worker, mut deliveries) = worker(&shop, |delivery| match delivery.key.as_deref() {
        Some("refused") => Err(Failure::refuse("never")),
        _ if delivery.attempt < 3 => Err(Failure::fail("not yet")),
        _ => Ok(()),
    });
    let worker = worker.spawn();
    let mut received = Vec::new();
    for _ in 0..4 {
        let delivery = next(&mut deliveries).await;
        received.push((delivery.key.unwrap(), delivery.attempt));
    }
    received.sort();
    let fails = (1..=3).map(|attempt| ("fails".to_owned(), attempt));
    assert_eq!(received, fails.chain([("refused".to_owned(), 1)]).collect::<Vec<_>>());
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.failed, worked.refused, worked.stale), (1, 2, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_of_a_vanished_worker_is_retried_after_its_lease() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let retry = Retry::attempts_max(3).fixed(Duration::from_millis(10));
    let lease = Duration::from_millis(500);
    soon(&shop).key("k").timeout(lease).retry(retry).schedule().await.unwrap();
    let mut raw = RawWorker::new(&broker, "shop", 10).await;
    let first = raw.delivery().await;
    assert_eq!((first.attempt, first.lease_ms), (1, 500));
    drop(raw);
    let (worker, mut deliveries) = worker(&shop, |_| Ok(()));
    let worker = worker.spawn();
    let second = next(&mut deliveries).await;
    assert_eq!((second.attempt, second.fire_id.as_str()), (2, first.fire_id.as_str()));
    assert!(second.fired_at.since(Timestamp::from_millis(first.fired_at_ms)) >= lease);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn late_and_forged_acks_change_nothing() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let retry = Retry::attempts_max(3).fixed(Duration::from_millis(10));
    let task = soon(&shop).key("k").timeout(Duration::from_millis(300)).retry(retry);
    task.schedule().await.unwrap();
    let mut raw = RawWorker::new(&broker, "shop", 10).await;
    let mut other = RawWorker::new(&broker, "other", 10).await;
    let first = raw.delivery().await;
    let second = raw.delivery().await;
    assert_eq!((first.attempt, second.attempt), (1, 2));
    let more = v1::Extend { token: second.token, lease_ms: 30_000 };
    let extend = v1::Settle { extend: vec![more], ..v1::Settle::default() };
    raw.send(ToBroker::Settle(extend)).await;
    for token in [first.token, second.token ^ (1 << 40), 0, u64::MAX] {
        raw.send(ack(token)).await;
        let FromBroker::Stale(stale) = raw.next().await else { panic!("{token} was accepted") };
        assert_eq!(stale.tokens, [token]);
    }
    other.send(ack(second.token)).await;
    assert!(matches!(other.next().await, FromBroker::Stale(_)), "a token of another namespace");
    // The second attempt is still unsettled.
    raw.send(ack(second.token)).await;
    raw.send(ack(second.token)).await;
    let FromBroker::Stale(stale) = raw.next().await else { panic!("acked twice") };
    assert_eq!(stale.tokens, [second.token]);
    raw.send(ToBroker::Credit(0)).await;
    assert!(matches!(raw.next().await, FromBroker::Credit(0)), "and no message before it");
    assert_eq!(shop.get("k").await.unwrap().unwrap().end, Some(FireEnd::Done));

    let no_hello = RawWorker::open(&broker, ack(1)).await.err().unwrap();
    assert_eq!(
        (no_hello.code(), no_hello.message()),
        (Code::InvalidArgument, "hello: must come first")
    );
    let bad_namespace = v1::Hello { namespace: "a b".to_owned(), ..v1::Hello::default() };
    let bad_namespace =
        RawWorker::open(&broker, ToBroker::Hello(bad_namespace)).await.err().unwrap();
    assert!(bad_namespace.message().starts_with("namespace: "), "{bad_namespace}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_broker_waits_for_a_running_handler() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    soon(&shop).schedule().await.unwrap();
    let done = Arc::new(AtomicU32::new(0));
    let (begun, mut begins) = mpsc::unbounded_channel();
    let counted = Arc::clone(&done);
    let worker = shop.worker("q").handler(move |_| {
        let done = Arc::clone(&counted);
        begun.send(()).unwrap();
        async move {
            _ = tokio::time::timeout(Duration::from_millis(500), std::future::pending::<()>())
                .await;
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    });
    let worker = worker.spawn();
    tokio::time::timeout(WAIT_MAX, begins.recv()).await.unwrap().unwrap();
    broker.signal("-TERM");
    let ended = tokio::task::spawn_blocking(move || broker.end()).await.unwrap();
    assert!(ended.success());
    assert_eq!(done.load(Ordering::Relaxed), 1, "the broker waited for the handler");
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.unsettled), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_port_serves_http_health_and_grpc() {
    let broker = TestBroker::start(&[]);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address));
    let channel = channel.unwrap().connect().await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    for service in ["", "punctual.v1.Tasks", "punctual.v1.Workers"] {
        let service = service.to_owned();
        let request = tonic_health::pb::HealthCheckRequest { service };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::Serving);
    }
    assert_eq!(broker.call("GET", "/nowhere", &[], "").0, 404);
    shop(&broker).task().key("both").delay(HOUR).queue("q").schedule().await.unwrap();
    assert_eq!(broker.get("both").1["target"]["queue"], "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_callbacks_over_grpc_are_those_of_http() {
    let broker = TestBroker::start(&[]);
    let robot = Target::http("http://127.0.0.1:9/robot")
        .header("x-a", "b")
        .success_statuses([200, 204])
        .success_json("/errcode", &0)
        .success_json("/data/0", &["x"])
        .refuse_statuses([400]);
    let task = shop(&broker).task().key("a").delay(HOUR).target(robot);
    let on_dead = Target::http("http://127.0.0.1:9/dead").method("PUT");
    task.on_done(Target::queue("ends")).on_dead(on_dead).schedule().await.unwrap();
    let (_, task) = broker.get("a");
    let http = json!({
        "url": "http://127.0.0.1:9/robot", "method": "POST", "headers": {"x-a": "b"},
        "success": {"statuses": [200, 204], "json": {"/data/0": ["x"], "/errcode": 0}},
        "refuse": {"statuses": [400]},
    });
    assert_eq!(task["target"]["http"], http, "{task}");
    assert_eq!(task["on_done"], json!({"queue": "ends"}));
    let dead = json!({"http": {"url": "http://127.0.0.1:9/dead", "method": "PUT"}});
    assert_eq!(task["on_dead"], dead);
    let found = shop(&broker).get("a").await.unwrap().unwrap();
    assert_eq!((found.updated_at, found.callback_of), (found.created_at, None));

    for (target, field) in [
        (Target::http("http://x/").success_statuses([99]), "target.http.success.statuses"),
        (Target::http("http://x/").success_json("errcode", &0), "target.http.success.json"),
        (Target::http("http://x/").refuse_statuses([600]), "target.http.refuse.statuses"),
        (Target::queue("a b"), "target.queue"),
    ] {
        let refused = shop(&broker).task().key("b").delay(HOUR).target(target).schedule().await;
        let Err(Error::Problem(problem)) = refused else { panic!("{field}: {refused:?}") };
        assert_eq!(problem.field.as_deref(), Some(field));
    }
    let refused = soon(&shop(&broker)).on_done(Target::http("ftp://x/")).schedule().await;
    let Err(Error::Problem(problem)) = refused else { panic!("{refused:?}") };
    assert_eq!(problem.field.as_deref(), Some("on_done.http.url"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_value_of_a_handler_is_the_result_of_the_fire() {
    let broker = TestBroker::start(&[]);
    let shop = shop(&broker);
    let scheduled = soon(&shop).schedule().await.unwrap();
    let worker = shop
        .worker("q")
        .handler(|delivery| async move { Ok::<_, Failure>(json!({"attempt": delivery.attempt})) });
    let worker = worker.spawn();
    let path = format!("/v1/shop/tasks/{}/fires", scheduled.id);
    let fire = eventually(|| {
        let (_, page) = broker.call("GET", &path, &[], "");
        page["fires"].get(0).filter(|fire| fire["end"] == "done").cloned()
    });
    assert_eq!(fire["result"], json!({"attempt": 1}), "{fire}");
    assert_eq!(worker.stop().await.unwrap().acked, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_whose_result_is_not_allowed_is_rejected_and_the_lease_continues() {
    let broker = TestBroker::start(&[]);
    let mut raw = RawWorker::new(&broker, "shop", 10).await;
    soon(&shop(&broker)).key("a").schedule().await.unwrap();
    let token = raw.delivery().await.token;
    let ack_with = |result: Vec<u8>| {
        let ack_with_result = vec![v1::AckWithResult { token, result: result.into() }];
        ToBroker::Settle(v1::Settle { ack_with_result, ..v1::Settle::default() })
    };
    for result in [vec![b' '; 16_385], b"{".to_vec(), vec![0xff]] {
        raw.send(ack_with(result)).await;
        let FromBroker::Rejected(rejected) = raw.next().await else { panic!("not rejected") };
        let problem = rejected.acks[0].problem.clone().unwrap();
        assert_eq!((rejected.acks[0].token, problem.status), (token, 422), "{problem:?}");
        assert_eq!(problem.field, "ack_with_result[0].result");
    }
    assert_eq!(broker.get("a").1["state"], "firing");
    raw.send(ack_with(b"[42]".to_vec())).await;
    eventually(|| (broker.get("a").1["state"] != "firing").then_some(()));
    raw.send(ack_with(Vec::new())).await;
    assert!(matches!(raw.next().await, FromBroker::Stale(stale) if stale.tokens == [token]));
}
