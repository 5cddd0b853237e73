//! `punctual dev`: the virtual clock, and what an advance delivers and waits for.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use punctual_core::Partitions;
use punctual_server::{MeteredStore, run_virtual};
use punctual_store_any::{PartitionCount, StoreLocation};
use punctual_store_redis::RedisOptions;
use punctual_test_support::redis::RedisServer;
use punctual_test_support::{
    BrokerClient, DEV_START, DevBroker, HangingReceiver, TestBroker, WAIT_MAX, WebhookReceiver,
    eventually, punctual_binary,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

fn webhook(when: (&str, &str), url: &str) -> Value {
    json!({when.0: when.1, "target": {"http": {"url": url}}})
}

/// The times of all attempts of a fire.
fn attempt_times(fire: &Value) -> Vec<&str> {
    fire["attempts"].as_array().unwrap().iter().map(|one| one["at"].as_str().unwrap()).collect()
}

fn lease(client: &BrokerClient, queue: &str, wait: &str) -> Vec<Value> {
    let body = json!({"max": 100, "wait": wait, "lease": "1m"});
    let (status, answer) = client.post(&format!("/queues/{queue}/lease"), &body);
    assert_eq!(status, 200, "{answer}");
    answer["deliveries"].as_array().unwrap().clone()
}

fn settle(client: &BrokerClient, queue: &str, verb: &str, body: &Value) {
    let (status, answer) = client.post(&format!("/queues/{queue}/{verb}"), body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn the_clock_stands_still_until_it_is_moved() {
    let broker = DevBroker::start(&[]);
    assert_eq!(broker.printed.lines().count(), 1, "{}", broker.printed);
    let frozen = json!({"now": DEV_START, "running": false, "speed": 0.0});
    assert_eq!(broker.clock("GET", "", &Value::Null), (200, frozen));
    broker.put("a", &json!({"in": "1ms", "target": {"queue": "mail"}}));
    assert_eq!(lease(&broker.client, "mail", "300ms"), Vec::<Value>::new());
    let moved = broker.advance(&json!({"to": "2027-01-05T00:00:00Z"}));
    let want = json!({"now": "2027-01-05T00:00:00.000Z", "fires": 1, "unsettled": 0});
    assert_eq!(moved, want);
    assert_eq!(broker.advance(&json!({"to": "2027-01-05T00:00:00Z"}))["fires"], 0);
    assert_eq!(lease(&broker.client, "mail", "0s").len(), 1);
}

#[test]
fn a_watch_of_48_hours_fires_at_the_end_of_its_silence() {
    let broker = DevBroker::start(&[]);
    let watch = json!({"within": "48h", "on_return": true, "target": {"queue": "silent"}});
    broker.put("lamp", &watch);
    assert_eq!(broker.advance_by("47h"), 0);
    let (status, _) = broker.client.post("/tasks/lamp/touch", &Value::Null);
    assert_eq!(status, 200);
    assert_eq!(broker.advance_by("47h59m59s999ms"), 0);
    assert_eq!(broker.advance_by("1ms"), 1);
    let got = lease(&broker.client, "silent", "0s");
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!((&got[0]["key"], &got[0]["occasion"]), (&json!("lamp"), &json!("due")));
    assert_eq!(got[0]["fire_at"], "2027-01-08T07:00:00.000Z");
    settle(&broker.client, "silent", "ack", &json!({"tokens": [got[0]["token"]]}));
    assert_eq!(broker.advance_by("30d"), 0, "it fires once");
}

#[test]
fn all_retries_of_a_webhook_come_at_their_instants_in_one_advance() {
    let (broker, receiver) = (DevBroker::start(&[]), WebhookReceiver::start());
    let backoff = json!({"exponential": {"first": "1m", "factor": 3, "max": "2h"}});
    let mut task = webhook(("in", "1h"), &format!("{}/500/x", receiver.url));
    task["retry"] = json!({"attempts_max": 6, "backoff": backoff, "jitter": 0});
    task["on_dead"] = json!({"queue": "dead"});
    broker.put("order", &task);
    let moved = broker.advance(&json!({"by": "48h"}));
    assert_eq!(moved["unsettled"], 0);
    let fires = broker.fires("order");
    assert_eq!(fires.len(), 1, "{fires:?}");
    let want = ["09:00:00", "09:01:00", "09:04:00", "09:13:00", "09:40:00", "11:01:00"];
    let want = want.map(|time| format!("2027-01-04T{time}.000Z"));
    assert_eq!(attempt_times(&fires[0]), want);
    assert_eq!(fires[0]["ended_at"], want[5]);
    assert_eq!((&fires[0]["end"], &fires[0]["lag_ms"]), (&json!("dead"), &json!(0)));
    assert_eq!(receiver.received().len(), 6, "delivered before the advance has returned");
    let reported = lease(&broker.client, "dead", "0s");
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0]["fire_at"], want[5]);
}

#[test]
fn fires_of_all_partitions_come_in_the_order_of_time() {
    let (broker, receiver) = (DevBroker::start(&["--partitions", "4"]), WebhookReceiver::start());
    // The order of creation is not the order of time: 37 and 60 have no common factor.
    for number in 0..60 {
        let minute = 1 + (number * 37) % 60;
        let url = format!("{}/200/{minute}", receiver.url);
        broker.put(&format!("task-{number}"), &webhook(("in", &format!("{minute}m")), &url));
    }
    assert_eq!(broker.advance_by("2h"), 60);
    let received = receiver.received();
    let minutes: Vec<u64> =
        received.iter().map(|one| one.path.rsplit('/').next().unwrap().parse().unwrap()).collect();
    assert_eq!(minutes, (1..=60).collect::<Vec<_>>());
    for one in &received {
        let due = punctual_test_support::millis(one.header("punctual-fire-at"));
        let stamp: u64 = one.header("webhook-timestamp").parse().unwrap();
        assert_eq!(stamp, due / 1000, "signed at the virtual time at which it was due");
    }
}

#[test]
fn a_year_of_cron_tasks_equals_its_preview() {
    let broker = DevBroker::start(&["--history-age", "400d"]);
    let receiver = WebhookReceiver::start();
    let crons = [
        ("hourly", "30 */6 * * *", "Europe/Berlin"),
        ("nightly", "30 2 * * *", "Europe/Berlin"),
        ("monthly", "0 9 L * *", "America/New_York"),
        ("weekdays", "15 17 * * MON-FRI", "Asia/Kathmandu"),
    ];
    for (key, cron, zone) in crons {
        let url = format!("{}/200/{key}", receiver.url);
        let mut task = webhook(("cron", cron), &url);
        task["timezone"] = json!(zone);
        broker.put(key, &task);
    }
    let end = "2028-01-04T08:00:00.000Z";
    let fires = broker.advance(&json!({"to": end}))["fires"].as_u64().unwrap();
    let received = receiver.received();
    assert_eq!(fires, received.len() as u64);
    for (key, cron, zone) in crons {
        let want = preview_until(&broker, cron, zone, end);
        let of_task = received.iter().filter(|one| one.header("punctual-key") == key);
        let got: Vec<&str> = of_task.map(|one| one.header("punctual-fire-at")).collect();
        let difference = got.iter().zip(&want).find(|(got, want)| *got != want);
        assert_eq!((difference, got.len()), (None, want.len()), "{key}");
        let last = broker.fires(key).pop().unwrap();
        assert_eq!(last["fired_at"].as_str(), want.last().map(String::as_str), "{last}");
        assert_eq!((&last["end"], &last["lag_ms"]), (&json!("done"), &json!(0)));
    }
}

/// All fire times of a cron expression after [`DEV_START`], up to `end`.
fn preview_until(broker: &DevBroker, cron: &str, zone: &str, end: &str) -> Vec<String> {
    let (mut times, mut from) = (Vec::new(), DEV_START.to_owned());
    loop {
        let cron = cron.replace(' ', "%20");
        let path = format!("/v1/preview?cron={cron}&timezone={zone}&count=100&from={from}");
        let (status, page) = broker.client.request("GET", &path, "").unwrap();
        assert_eq!(status, 200, "{page}");
        for fire in page["fires"].as_array().unwrap() {
            let at = fire["fire_at"].as_str().unwrap();
            if at > end {
                return times;
            }
            times.push(at.to_owned());
        }
        from.clone_from(times.last().unwrap());
    }
}

#[test]
fn a_delivery_that_its_worker_holds_is_waited_for_and_then_counted() {
    let broker = DevBroker::start(&[]);
    for (key, within) in [("a", "1m"), ("b", "2m")] {
        broker.put(key, &json!({"in": within, "target": {"queue": "mail"}}));
    }
    broker.advance_by("1m");
    let held = lease(&broker.client, "mail", "0s");
    assert_eq!(held.len(), 1, "{held:?}");
    let moved = broker.advance(&json!({"by": "1m", "wait": "0s"}));
    assert_eq!((&moved["fires"], &moved["unsettled"]), (&json!(1), &json!(1)));
    // The lease of the first ends at 2m: the attempt expires and is repeated.
    assert_eq!(broker.advance(&json!({"by": "1m", "wait": "50ms"}))["unsettled"], 0);
    let again = lease(&broker.client, "mail", "0s");
    let attempts: Vec<_> = again.iter().map(|one| (&one["key"], &one["attempt"])).collect();
    assert_eq!(attempts, [(&json!("b"), &json!(1)), (&json!("a"), &json!(2))]);
}

#[test]
fn a_worker_that_polls_settles_every_retry_within_one_advance() {
    let broker = DevBroker::start(&[]);
    let retry = json!({"attempts_max": 20, "backoff": {"fixed": "1h"}, "jitter": 0});
    broker.put("a", &json!({"in": "1h", "target": {"queue": "mail"}, "retry": retry}));
    let client = broker.client.with_timeout(WAIT_MAX);
    let worker = thread::spawn(move || {
        let mut times = Vec::new();
        // A poll that finds nothing means that the clock has passed by: the test fails below.
        for _ in 0..20 {
            for one in lease(&client, "mail", "5s") {
                times.push(one["fired_at"].as_str().unwrap().to_owned());
                let fail = json!({"token": one["token"], "reason": "not yet"});
                settle(&client, "mail", "fail", &fail);
            }
        }
        times
    });
    // The worker must poll before the clock moves.
    eventually(|| {
        let (_, workers) = broker.client.get("/workers");
        workers["workers"].as_array().filter(|all| !all.is_empty()).map(|_| ())
    });
    let moved = broker.advance(&json!({"by": "2d", "wait": "20s"}));
    assert_eq!(moved["unsettled"], 0);
    let times = worker.join().unwrap();
    assert_eq!(times.len(), 20, "{times:?}");
    let fires = broker.fires("a");
    assert_eq!(attempt_times(&fires[0]), times);
    assert_eq!(times[0], "2027-01-04T09:00:00.000Z");
    assert_eq!(times[19], "2027-01-05T04:00:00.000Z");
}

#[test]
fn a_webhook_that_hangs_is_waited_for_in_real_time() {
    let (broker, receiver) = (DevBroker::start(&[]), HangingReceiver::start());
    let mut task = webhook(("in", "1h"), &receiver.url);
    task["timeout"] = json!("1s");
    task["retry"] = json!({"attempts_max": 1});
    broker.put("a", &task);
    assert_eq!(broker.advance_by("1h"), 1);
    let fires = broker.fires("a");
    assert_eq!(fires[0]["end"], "dead", "{fires:?}");
    assert_eq!(fires[0]["ended_at"], "2027-01-04T09:00:00.000Z", "no virtual time has passed");
}

#[test]
fn history_is_swept_by_virtual_time() {
    let (broker, receiver) = (DevBroker::start(&["--history-age", "7d"]), WebhookReceiver::start());
    broker.put("a", &webhook(("every", "1d"), &receiver.url));
    assert_eq!(broker.advance_by("30d"), 30);
    let kept = broker.fires("a");
    assert!((7..=9).contains(&kept.len()), "{} of 30 are kept", kept.len());
    assert_eq!(kept.last().unwrap()["fire_at"], "2027-02-03T08:00:00.000Z");
}

#[test]
fn a_clock_that_runs_fires_by_itself_and_can_be_frozen() {
    let broker = DevBroker::start(&[]);
    broker.put("a", &json!({"in": "1h", "target": {"queue": "mail"}}));
    let (status, running) = broker.clock("POST", "/run", &json!({"speed": 36000}));
    assert_eq!(
        (status, &running["running"], &running["speed"]),
        (200, &json!(true), &json!(36000.0))
    );
    assert_eq!(lease(&broker.client, "mail", "15s").len(), 1, "an hour passes in 100 ms");
    let (_, frozen) = broker.clock("POST", "/freeze", &Value::Null);
    assert_eq!((&frozen["running"], &frozen["speed"]), (&json!(false), &json!(0.0)));
    assert!(frozen["now"].as_str().unwrap() >= "2027-01-04T09:00:00.000Z", "{frozen}");
    assert_eq!(broker.clock("GET", "", &Value::Null).1, frozen);
    broker.clock("POST", "/run", &json!({"speed": 1}));
    broker.advance(&json!({"by": "1d", "wait": "0s"}));
    let (_, after) = broker.clock("GET", "", &Value::Null);
    assert_eq!(after["running"], true, "an advance does not stop a clock that runs");
}

#[test]
fn bad_input_is_refused_with_the_name_of_the_field() {
    let broker = DevBroker::start(&[]);
    for (path, body, status, field) in [
        ("/advance", json!({}), 422, Some("by")),
        ("/advance", json!({"by": "1h", "to": "2028-01-01T00:00:00Z"}), 422, Some("to")),
        ("/advance", json!({"to": "2027-01-04T07:59:59.999Z"}), 422, Some("to")),
        ("/advance", json!({"to": "tomorrow"}), 422, Some("to")),
        ("/advance", json!({"to": "9999-12-31T23:00:00Z"}), 422, Some("to")),
        ("/advance", json!({"by": "-1h"}), 422, Some("by")),
        ("/advance", json!({"by": "soon"}), 422, Some("by")),
        ("/advance", json!({"by": 5}), 400, Some("by")),
        ("/advance", json!({"by": "3000000d"}), 422, Some("by")),
        ("/advance", json!({"by": "1h", "wait": "601s"}), 422, Some("wait")),
        ("/advance", json!({"by": "1h", "wait": "-1s"}), 422, Some("wait")),
        ("/advance", json!({"by": "1h", "until": 1}), 400, Some("until")),
        ("/advance", json!([]), 400, None),
        ("/advance", Value::Null, 400, None),
        ("/run", json!({}), 422, Some("speed")),
        ("/run", json!({"speed": 0}), 422, Some("speed")),
        ("/run", json!({"speed": -1}), 422, Some("speed")),
        ("/run", json!({"speed": 86401}), 422, Some("speed")),
        ("/run", json!({"speed": "fast"}), 400, Some("speed")),
        ("/run", json!({"speed": 1, "by": "1h"}), 400, Some("by")),
        ("/freeze", json!({"at": 1}), 400, Some("at")),
    ] {
        let (got, problem) = broker.clock("POST", path, &body);
        assert_eq!((got, problem["field"].as_str()), (status, field), "{path} {body}: {problem}");
        assert!(problem["type"].as_str().unwrap().starts_with("urn:punctual:"), "{problem}");
    }
    let frozen = json!({"now": DEV_START, "running": false, "speed": 0.0});
    assert_eq!(broker.clock("GET", "", &Value::Null).1, frozen, "nothing has moved");
}

#[test]
fn a_namespace_may_be_called_clock() {
    let broker = DevBroker::start(&[]);
    let body = json!({"in": "1h", "target": {"queue": "q"}}).to_string();
    let made = broker.client.request("PUT", "/v1/clock/tasks/a", &body).unwrap();
    assert_eq!(made.0, 201, "{}", made.1);
    assert_eq!(broker.advance_by("1h"), 1);
}

#[test]
fn with_tokens_the_clock_needs_one() {
    let broker = DevBroker::start(&["--token", "shop=aaa"]);
    for (method, path) in [("GET", ""), ("POST", "/advance"), ("POST", "/run"), ("POST", "/freeze")]
    {
        let (status, problem) = broker.clock(method, path, &Value::Null);
        assert_eq!(status, 401, "{method} {path}: {problem}");
    }
}

#[test]
fn serve_has_no_clock_to_move() {
    let broker = TestBroker::start(&[]);
    for (method, path) in [
        ("GET", "/v1/clock"),
        ("POST", "/v1/clock/advance"),
        ("POST", "/v1/clock/run"),
        ("POST", "/v1/clock/freeze"),
    ] {
        let (status, problem) = broker.call(method, path, &[], "");
        assert_eq!(status, 404, "{method} {path}: {problem}");
        assert_eq!(problem["type"], "urn:punctual:not-found");
    }
    let document = &broker.document(&[]).unwrap().0;
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.keys().all(|path| !path.starts_with("/v1/clock")));
}

#[test]
fn flags_of_a_broker_that_keeps_or_shares_tasks_are_refused() {
    for (flags, want) in [
        (&["--data-dir", "/tmp/x"][..], "--data-dir cannot be used with punctual dev"),
        (&["--redis", "redis://127.0.0.1:1"], "--redis cannot be used with punctual dev"),
        (&["--cluster", "shop"], "--cluster cannot be used with punctual dev"),
        (&["--insecure"], "--insecure cannot be used with punctual dev"),
        (&["--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0 is not a loopback address"),
        (&["--listen", "0.0.0.0:0", "--token", "a=b"], "is not a loopback address"),
        (&["--clock", "tomorrow"], "must be RFC 3339"),
    ] {
        let run = Command::new(punctual_binary())
            .arg("dev")
            .args(flags)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8(run.stderr).unwrap();
        assert!(!run.status.success() && run.stdout.is_empty(), "{flags:?}: {errors}");
        assert!(errors.contains(want), "{flags:?}: {errors}");
    }
}

#[test]
fn it_ends_with_its_standard_input_or_at_a_signal_although_a_worker_holds_a_delivery() {
    for signal in [false, true] {
        let broker = DevBroker::start(&[]);
        broker.put("a", &json!({"in": "1ms", "target": {"queue": "mail"}}));
        broker.advance_by("1ms");
        assert_eq!(lease(&broker.client, "mail", "0s").len(), 1);
        let status = match signal {
            false => broker.close_stdin(),
            true => {
                let pid = broker.pid().to_string();
                assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
                broker.end()
            }
        };
        assert!(status.success(), "{status}");
    }
}

/// The virtual clock does not depend on the store: an in-process broker runs it on each.
#[tokio::test(flavor = "multi_thread")]
async fn the_virtual_clock_runs_on_every_store() {
    let (dir, redis) = (tempfile::tempdir().unwrap(), RedisServer::start(&[]));
    let options = RedisOptions::new(vec![redis.url()], "virtual", Partitions::ONE);
    for location in [
        StoreLocation::Memory,
        StoreLocation::Embedded(dir.path().to_owned()),
        StoreLocation::Redis(options),
    ] {
        let shown = format!("{location:?}");
        let count = PartitionCount::ExistingOr(Partitions::ONE);
        let opened = punctual_store_any::open(location, count).await.unwrap();
        let store = Arc::new(MeteredStore::new(opened.store));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = config(address);
        let start = punctual_core::Timestamp::parse_rfc3339(DEV_START).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let broker = tokio::spawn(async move {
            let stop = async { _ = stopped.await };
            run_virtual(listener, config, store, opened.partitions, Some(start), stop).await
        });
        let played = tokio::task::spawn_blocking(move || {
            let client = BrokerClient::new(address, WAIT_MAX);
            let retry = json!({"attempts_max": 3, "backoff": {"fixed": "1h"}, "jitter": 0});
            let dead_end = json!({"http": {"url": "http://127.0.0.1:9/x"}});
            let task = json!({"in": "40d", "target": dead_end, "retry": retry});
            assert_eq!(client.put("a", &task).0, 201);
            let body = json!({"by": "45d"}).to_string();
            let moved = client.request("POST", "/v1/clock/advance", &body).unwrap();
            let fires = client.get("/tasks/a/fires").1;
            (moved, fires)
        });
        let ((status, moved), fires) = played.await.unwrap();
        let want = json!({"now": "2027-02-18T08:00:00.000Z", "fires": 1, "unsettled": 0});
        assert_eq!((status, moved), (200, want), "{shown}");
        let times = ["08:00:00", "09:00:00", "10:00:00"];
        let times = times.map(|time| format!("2027-02-13T{time}.000Z"));
        assert_eq!(attempt_times(&fires["fires"][0]), times, "{shown}: {fires}");
        stop.send(()).unwrap();
        broker.await.unwrap().unwrap();
    }
}

fn config(listen: std::net::SocketAddr) -> punctual_server::Config {
    punctual_server::Config {
        listen,
        insecure: false,
        tokens: Vec::new(),
        signing_secrets: Vec::new(),
        allow_private_targets: false,
        webhook_authorities: punctual_server::Authorities::default(),
        webhook_connections_max: 8,
        answer_bytes: 0,
        mail_server: None,
        connectors: punctual_connectors::ConnectorConfig::default(),
        tls: None,
        retention: punctual_store::Retention::default(),
        grace: Duration::from_secs(1),
        sharing: None,
    }
}

#[test]
fn an_alarm_is_raised_and_over_by_virtual_time() {
    let (broker, receiver) = (DevBroker::start(&[]), WebhookReceiver::start());
    let alarm = json!({
        "when": {"failures": {"count": 1, "window": "5m"}},
        "to": {"http": {"url": format!("{}/200/alarm", receiver.url)}},
    });
    let (status, answer) = broker.client.shop("PUT", "/alarms/errors", &alarm);
    assert_eq!(status, 201, "{answer}");
    let mut task = webhook(("in", "1h"), &format!("{}/500/x", receiver.url));
    task["retry"] = json!({"attempts_max": 1});
    broker.put("a", &task);
    broker.advance_by("2h");
    let received = receiver.received();
    let paths: Vec<&str> = received.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(paths, ["/500/x", "/200/alarm", "/200/alarm"], "raised, and over");
    let due: Vec<&str> = received.iter().map(|one| one.header("punctual-fire-at")).collect();
    assert!(due[1] < "2027-01-04T09:01:00Z" && due[2] > "2027-01-04T09:05:00Z", "{due:?}");
}
