//! Counts of a namespace, the forecast, and the topology of a single broker.

use punctual_test_support::{TestBroker, WebhookReceiver, eventually};
use serde_json::{Value, json};

use crate::requests::{get, later, post};

#[test]
fn counts_add_up_at_every_moment_of_a_busy_namespace() {
    const TASKS: usize = 2000;
    let broker = TestBroker::start(&["--partitions", "4"]);
    let one =
        |guarantee: &str| json!({"in": "0s", "target": {"queue": "q"}, "guarantee": guarantee});
    let guarantees = ["at_least_once", "at_most_once"].into_iter().cycle();
    let tasks: Vec<Value> = guarantees.take(TASKS).map(one).collect();
    assert_eq!(post(&broker, "/tasks", &json!(tasks)).0, 200);
    let adds_up = || {
        let (_, stats) = get(&broker, "/stats");
        let of = |name: &str| stats[name].as_i64().unwrap();
        let states = ["scheduled", "firing", "paused", "done", "dead", "cancelled"];
        assert_eq!(states.map(of).iter().sum::<i64>(), of("accepted"), "{stats}");
        assert_eq!(stats["accepted"], TASKS, "{stats}");
        assert!(states.map(of).iter().all(|count| *count >= 0), "{stats}");
        stats["done"] == TASKS
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            while done < TASKS {
                let (_, leased) =
                    post(&broker, "/queues/q/lease", &json!({"max": 100, "wait": "1s"}));
                let tokens: Vec<&Value> = leased["deliveries"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|delivery| &delivery["token"])
                    .collect();
                done += tokens.len();
                post(&broker, "/queues/q/ack", &json!({"tokens": tokens}));
            }
        });
        eventually(|| adds_up().then_some(()));
    });
}

#[test]
fn counts_add_up_and_the_forecast_counts_fires_per_step() {
    let (broker, receiver) = (TestBroker::start(&["--partitions", "2"]), WebhookReceiver::start());
    let soon = |key: &str, path: &str| {
        let url = format!("{}{path}", receiver.url);
        json!({"key": key, "in": "0s", "target": {"http": {"url": url}}})
    };
    let tasks = json!([
        later("s1", 30),
        later("s2", 90),
        later("s3", 91),
        later("p", 9),
        later("c", 9),
        soon("done", ""),
        soon("dead", "/410"),
    ]);
    post(&broker, "/tasks", &tasks);
    post(&broker, "/tasks/p/pause", &json!({}));
    broker.delete("c");
    let stats = eventually(|| {
        let (_, stats) = get(&broker, "/stats");
        (stats["done"] == 1 && stats["dead"] == 1).then_some(stats)
    });
    let number = |name: &str| stats[name].as_i64().unwrap();
    assert_eq!((number("scheduled"), number("paused"), number("cancelled")), (3, 1, 1), "{stats}");
    let states = ["scheduled", "firing", "paused", "done", "dead", "cancelled"];
    assert_eq!(number("accepted"), 7);
    assert_eq!(states.map(number).iter().sum::<i64>(), 7, "{stats}");
    assert_eq!((number("dead_letters"), number("oldest_overdue_ms")), (1, 0));
    assert_eq!(stats["oldest_overdue"], json!(null));
    assert_eq!(broker.call("GET", "/v1/other/stats", &[], "").1["accepted"], 0);
    let (status, forecast) = get(&broker, "/forecast?for=3h&step=1h");
    assert_eq!((status, &forecast["complete"]), (200, &json!(true)), "{forecast}");
    let fires: Vec<_> =
        forecast["steps"].as_array().unwrap().iter().map(|step| step["fires"].clone()).collect();
    assert_eq!(fires, [1, 2, 0]);
    assert_eq!(get(&broker, "/forecast").1["steps"].as_array().unwrap().len(), 24);
    for (query, field) in [
        ("for=1ms", "for"),
        ("for=1000d", "for"),
        ("step=0s", "step"),
        ("for=366d&step=1m", "step"),
        ("step=90s", "step"),
        ("at=2500-01-01T00:00:00Z", "at"),
    ] {
        let (status, problem) = get(&broker, &format!("/forecast?{query}"));
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{query}");
    }
    assert_eq!(get(&broker, "/forecast?til=1h").1["field"], "til");
    assert_eq!(get(&broker, "/stats?all=1").1["field"], "all");
}

#[test]
fn a_single_broker_is_its_own_leader_and_reports_that_it_is_ready() {
    let broker = TestBroker::start(&["--partitions", "3"]);
    let (status, topology) = broker.call("GET", "/v1/topology", &[], "");
    assert_eq!(status, 200);
    assert_eq!(topology["leader"], broker.address.to_string());
    assert_eq!(topology["brokers"][0]["address"], broker.address.to_string());
    assert_eq!(topology["brokers"][0]["partitions"], json!([0, 1, 2]));
    assert!(topology["brokers"][0]["last_heartbeat"].is_string());
    let ready = broker.call("GET", "/readyz", &[], "");
    assert_eq!(ready, (200, json!({"ready": true, "reasons": [], "warnings": []})));
    assert_eq!(broker.call("GET", "/livez", &[], "").0, 200);
}

/// The forecast of a namespace by target: sums of all tasks, and the fires of the largest targets.
#[test]
fn a_forecast_is_divided_by_target() {
    let broker = TestBroker::start(&["--partitions", "2"]);
    let webhook = json!({"http": {"url": "http://127.0.0.1:9/mail?to=a"}});
    let tasks: Vec<Value> = (0..5)
        .map(|number| {
            let target = if number < 3 { json!({"queue": "mails"}) } else { webhook.clone() };
            json!({"key": format!("k{number}"), "in": "90m", "target": target})
        })
        .chain([json!({"key": "each", "every": "1h", "target": webhook})])
        .collect();
    assert_eq!(post(&broker, "/tasks", &json!(tasks)).0, 200);
    let (status, forecast) = get(&broker, "/forecast?for=3h&step=1h&by=target");
    assert_eq!((status, &forecast["complete"]), (200, &json!(true)), "{forecast}");
    let sum =
        |fires: &Value| fires.as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
    let targets = forecast["targets"].as_array().unwrap().iter();
    let targets: Vec<_> =
        targets.map(|it| (it["target"].as_str().unwrap(), sum(&it["fires"]))).collect();
    let webhooks = targets.iter().find(|(name, _)| *name == "http://127.0.0.1:9").unwrap().1;
    assert!((4..=5).contains(&webhooks), "two tasks, and an interval of an hour: {forecast}");
    assert!(targets.contains(&("queue mails", 3)), "{forecast}");
    let steps = forecast["steps"].as_array().unwrap().iter();
    let fires: u64 = steps.filter_map(|step| step["fires"].as_u64()).sum();
    assert_eq!(fires, webhooks + 3);
    let (_, plain) = get(&broker, "/forecast?for=3h&step=1h");
    assert!(plain["targets"].is_null(), "{plain}");
    assert_eq!(get(&broker, "/forecast?by=label").1["field"], "by");
}
