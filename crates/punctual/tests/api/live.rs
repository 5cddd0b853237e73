//! Live streams and the series of a namespace.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use punctual_client::{Client, Error};
use punctual_test_support::{TestBroker, WAIT_MAX, WebhookReceiver, eventually, read_answer};
use serde_json::{Value, json};

use crate::requests::{get, later, post};

/// Opens a stream, and returns its lines after the head.
fn listen(broker: &TestBroker, path: &str, token: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let address = broker.address;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    BufReader::new(stream)
}

/// Reads the next event; `None` at the end of the stream.
fn next_second(stream: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut is_second = false;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        is_second |= line.trim() == "event: second";
        if let Some(data) = line.strip_prefix("data: ") {
            assert!(is_second, "an event without a name");
            return Some(serde_json::from_str(data).unwrap());
        }
    }
}

#[test]
fn a_stream_has_the_counts_rates_and_lags_of_a_namespace() {
    let (broker, receiver) = (TestBroker::start(&["--partitions", "2"]), WebhookReceiver::start());
    let mut stream = listen(&broker, "/v1/shop/live", "");
    let first = next_second(&mut stream).unwrap();
    assert_eq!(first["counts"]["accepted"], 0, "{first}");
    assert_eq!((&first["lag_ms"], &first["oldest_overdue_ms"]), (&json!(null), &json!(null)));
    let soon = |path: &str| {
        let url = format!("{}{path}", receiver.url);
        json!({"in": "0s", "target": {"http": {"url": url}}})
    };
    post(&broker, "/tasks", &json!([soon(""), soon(""), soon("/410"), later("s", 60)]));
    let mut listeners: Vec<_> = (0..3).map(|_| listen(&broker, "/v1/shop/live", "")).collect();
    let second = loop {
        let second = next_second(&mut stream).unwrap();
        if second["counts"]["done"] == 2 && second["counts"]["dead"] == 1 {
            break second;
        }
    };
    let states = ["scheduled", "firing", "paused", "done", "dead", "cancelled"];
    let sum: i64 = states.iter().map(|state| second["counts"][state].as_i64().unwrap()).sum();
    assert_eq!((sum, &second["counts"]["accepted"]), (4, &json!(4)), "{second}");
    assert_eq!((&second["attempts"], &second["counts"]["dead_letters"]), (&json!(3), &json!(1)));
    assert!(second["lag_ms"]["max"].is_number(), "{second}");
    assert!(second.get("brokers").is_none(), "{second}");
    for listener in &mut listeners {
        assert!(next_second(listener).is_some());
    }
    let mut other = listen(&broker, "/v1/bank/live", "");
    assert_eq!(next_second(&mut other).unwrap()["counts"]["accepted"], 0);
    let mut all = listen(&broker, "/v1/live", "");
    let second = next_second(&mut all).unwrap();
    assert_eq!(second["counts"]["accepted"], 4, "{second}");
    assert_eq!(second["leader"], broker.address.to_string());
    assert_eq!(second["brokers"][0]["partitions"], json!([0, 1]));
}

/// The windows of rates begin with the first listener, so a later end is in them.
#[test]
fn rates_count_the_ends_of_the_last_seconds() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let mut stream = listen(&broker, "/v1/shop/live", "");
    next_second(&mut stream).unwrap();
    let task = |path: &str| {
        let url = format!("{}{path}", receiver.url);
        json!({"in": "0s", "target": {"http": {"url": url}}})
    };
    post(&broker, "/tasks", &json!([task(""), task("/410")]));
    let second = loop {
        let second = next_second(&mut stream).unwrap();
        if second["attempts"] == 2 {
            break second;
        }
    };
    assert_eq!(second["rates"], json!({"done": 0.2, "failed": 0.2, "dead": 0.2}));
}

#[test]
fn streams_need_the_right_to_read_are_limited_and_end_when_the_broker_stops() {
    let flags = ["--token", "shop:read=reads", "--token", "bank=bbb", "--admin-token", "root"];
    let broker = TestBroker::start(&flags);
    for (path, token, status) in [
        ("/v1/shop/live", "bbb", "403"),
        ("/v1/shop/live", "", "401"),
        ("/v1/live", "reads", "403"),
        ("/v1/shop/live?x=1", "reads", "400"),
    ] {
        let mut refused = listen(&broker, path, token).into_inner();
        let answer = read_answer(&mut refused);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {token}: {answer}");
    }
    // Half of the streams of a broker.
    let mut open: Vec<_> = (0..256).map(|_| listen(&broker, "/v1/shop/live", "reads")).collect();
    for stream in &mut open {
        assert!(next_second(stream).is_some());
    }
    let mut refused = listen(&broker, "/v1/shop/live", "reads").into_inner();
    let answer = read_answer(&mut refused);
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("the 512 live streams"), "{answer}");
    assert!(next_second(&mut listen(&broker, "/v1/bank/live", "bbb")).is_some());
    // A client that leaves gives its stream back.
    open.truncate(1);
    eventually(|| {
        let mut again = listen(&broker, "/v1/shop/live", "reads");
        let mut line = String::new();
        again.read_line(&mut line).unwrap();
        line.contains(" 200 ").then_some(())
    });
    broker.signal("-TERM");
    while next_second(&mut open[0]).is_some() {}
    assert!(broker.end().success());
}

#[test]
fn a_series_has_what_ended_in_each_step() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let (_, empty) = get(&broker, "/series");
    let points = empty["points"].as_array().unwrap();
    assert_eq!((points.len(), &empty["since"]), (360, &json!(null)));
    let task = |path: &str, guarantee: &str| {
        let url = format!("{}{path}", receiver.url);
        json!({"in": "0s", "target": {"http": {"url": url}}, "guarantee": guarantee})
    };
    let tasks = [("", "at_least_once"), ("", "at_most_once"), ("/410", "at_least_once")];
    let tasks: Vec<Value> = tasks.iter().map(|(path, guarantee)| task(path, guarantee)).collect();
    post(&broker, "/tasks", &json!(tasks));
    let sum = |series: &Value, name: &str| -> u64 {
        let points = series["points"].as_array().unwrap();
        points.iter().map(|point| point[name].as_u64().unwrap()).sum()
    };
    let series = eventually(|| {
        let (_, series) = get(&broker, "/series?for=1h&step=5m");
        (sum(&series, "done") == 2 && sum(&series, "dead") == 1).then_some(series)
    });
    // The claim of a fire that is sent at most once is not its end.
    assert_eq!((sum(&series, "failed"), sum(&series, "dead")), (1, 1), "{series}");
    assert_eq!((&series["step"], series["points"].as_array().unwrap().len()), (&json!("5m"), 12));
    assert!(series["since"].is_string(), "{series}");
    let bounds = series["lag_bounds_ms"].as_array().unwrap().len();
    let busy = series["points"].as_array().unwrap().iter().find(|point| point["done"] != 0);
    let lags = busy.unwrap()["lag"].as_array().unwrap();
    assert_eq!(lags.len(), bounds + 1);
    assert!(busy.unwrap()["lag_ms"]["p99"].is_number(), "{series}");
    for (query, field) in [
        ("for=25h", "for"),
        ("for=1s", "for"),
        ("step=2m", "step"),
        ("step=x", "step"),
        ("since=1h", "since"),
    ] {
        let (status, problem) = get(&broker, &format!("/series?{query}"));
        assert!([400, 422].contains(&status), "{problem}");
        assert_eq!(problem["field"], field, "{query}");
    }
}

/// The same stream over gRPC, with the Rust client.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_listens_to_a_namespace_and_an_admin_to_all() {
    let flags = ["--token", "shop:read=reads", "--token", "shop:operate=operates"];
    let broker = TestBroker::start(&[flags.as_slice(), &["--admin-token", "admin"]].concat());
    let auth = [("authorization", "Bearer admin")];
    for namespace in ["shop", "bank"] {
        let path = format!("/v1/{namespace}/tasks/a");
        broker.call("PUT", &path, &auth, later("a", 60).to_string());
    }
    let client = |token: &str| {
        let address = format!("http://{}", broker.address);
        Client::builder(address).token(token).connect().unwrap()
    };
    let mut shop = client("reads").namespace("shop").live().await.unwrap();
    for _ in 0..2 {
        let second = shop.next().await.unwrap().unwrap();
        assert_eq!((second.counts.accepted, second.counts.scheduled), (1, 1));
        assert_eq!((second.in_flight, second.attempts, second.lag_ms), (0, 0, None));
    }
    let mut all = client("admin").live().await.unwrap();
    assert_eq!(all.next().await.unwrap().unwrap().counts.scheduled, 2);
    let refused = [
        client("reads").live().await.map(drop),
        client("operates").namespace("shop").live().await.map(drop),
        client("reads").namespace("bank").live().await.map(drop),
    ];
    for refusal in refused {
        assert!(matches!(&refusal, Err(Error::Problem(it)) if it.status == 403), "{refusal:?}");
    }
    broker.signal("-TERM");
    while let Ok(Some(_)) = all.next().await {}
}
