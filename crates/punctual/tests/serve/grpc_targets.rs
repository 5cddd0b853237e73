//! gRPC methods as targets, on the real binary, with a real server at the other side.

mod server;

use std::collections::HashSet;
use std::io::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use punctual_test_support::{HangingReceiver, TestBroker, WAIT_MAX, eventually, task};
use serde_json::{Value, json};

use self::server::{CallManner, GrpcServer, METHOD, misbehaving};
use crate::metrics::until_metric;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A task that calls the method of the server at once, with this payload.
fn calling(url: &str, payload: &Value) -> Value {
    json!({
        "in": "0s",
        "target": {"grpc": {"url": url, "method": METHOD}},
        "payload": payload,
        "retry": {"attempts_max": 3, "backoff": {"fixed": "20ms"}, "jitter": 0},
    })
}

fn schedule(broker: &TestBroker, key: &str, task: &Value) {
    let (status, answer) = broker.put(key, task.to_string());
    assert_eq!(status, 201, "{answer}");
}

/// Waits for the end of the fire of a task.
fn fire(broker: &TestBroker, key: &str) -> Value {
    eventually(|| {
        let (_, page) = broker.get(&format!("{key}/fires"));
        let fire = page["fires"].as_array()?.first()?.clone();
        // At most once, a fire in flight is shown as one whose outcome is unknown.
        let ended = fire["end"].is_string() && !attempts(&fire).is_empty();
        ended.then_some(fire)
    })
}

fn attempts(fire: &Value) -> &[Value] {
    fire["attempts"].as_array().unwrap()
}

#[test]
fn a_call_has_the_payload_as_its_message_and_says_what_it_is_about() {
    let broker = TestBroker::start(&["--signing-secret", &format!("shop={SECRET}")]);
    let server = GrpcServer::start();
    let mut order = calling(&server.url, &json!({"order": 42}));
    order["timeout"] = json!("7s");
    schedule(&broker, "order-42", &order);
    let call = server.next();
    assert_eq!(&call.message[..], br#"{"order":42}"#);
    let (_, page) = broker.get("order-42/fires");
    let fire_at = page["fires"][0]["fire_at"].as_str().map(str::to_owned);
    for (name, expected) in [
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("punctual-namespace", "shop"),
        ("punctual-key", "order-42"),
        ("punctual-attempt", "1"),
        ("punctual-occasion", "due"),
        ("punctual-version", "1"),
    ] {
        assert_eq!(call.text(name), expected, "{name}");
    }
    assert!(call.text("user-agent").starts_with("punctual/"));
    assert!(call.text("punctual-lag-ms").parse::<u64>().unwrap() < 30_000);
    let timeout: u64 = call.text("grpc-timeout").strip_suffix('m').unwrap().parse().unwrap();
    assert!((1..=7_000).contains(&timeout), "{timeout}");
    let verifier = standardwebhooks::Webhook::new(SECRET).unwrap();
    verifier.verify(&call.message, &call.metadata).unwrap();
    let fire = fire(&broker, "order-42");
    assert_eq!((&fire["end"], &fire["fire_id"]), (&json!("done"), &json!(call.text("webhook-id"))));
    assert_eq!(call.text("punctual-fire-at"), fire["fire_at"].as_str().unwrap());
    assert!(fire_at.is_none_or(|at| at == fire["fire_at"]));
    let attempt = &attempts(&fire)[0];
    let (status, answer) = (&attempt["status"], &attempt["answer"]);
    assert_eq!((status, &answer["text"]), (&json!(0), &json!("cancelled")), "{attempt}");
    assert_eq!(answer["content_type"], "application/grpc", "{attempt}");
    // A message of bytes, an empty one, and a key that metadata cannot have as it is.
    let bytes: Vec<u8> = (0..=255).collect();
    let mut binary = calling(&server.url, &Value::Null);
    binary.as_object_mut().unwrap().remove("payload");
    binary["key"] = json!("größe/7");
    schedule_post(&broker, &binary);
    let call = server.next();
    assert!(call.message.is_empty(), "{call:?}");
    assert_eq!(call.text("punctual-key-bin"), STANDARD_NO_PAD.encode("größe/7"));
    assert_eq!(call.text("punctual-key"), "");
    binary["payload_base64"] = json!(STANDARD.encode(&bytes));
    binary["key"] = json!("bytes");
    schedule_post(&broker, &binary);
    assert_eq!(server.next().message, bytes);
}

fn schedule_post(broker: &TestBroker, task: &Value) {
    let (status, answer) = broker.call("POST", "/v1/shop/tasks", &[], task.to_string());
    assert_eq!(status, 201, "{answer}");
}

#[test]
fn calls_that_follow_each_other_use_one_connection() {
    let broker = TestBroker::start(&[]);
    let server = GrpcServer::start();
    let mut from = HashSet::new();
    for n in 0..5 {
        // More than what a server takes before it reads, and than one frame.
        let payload = json!({"order": n, "note": "x".repeat(200_000)});
        schedule(&broker, &format!("k{n}"), &calling(&server.url, &payload));
        assert_eq!(fire(&broker, &format!("k{n}"))["end"], "done");
        let call = server.next();
        assert!(call.message.len() > 200_000);
        from.insert(call.from);
    }
    assert_eq!(from.len(), 1, "{from:?}");
}

#[test]
fn each_status_decides_what_follows() {
    let broker = TestBroker::start(&[]);
    let server = GrpcServer::start();
    let names = [
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    for (code, _) in (1..).zip(names) {
        let order = json!({"code": code, "text": format!("Nr. {code}: größer")});
        schedule(&broker, &format!("code{code}"), &calling(&server.url, &order));
    }
    for (code, name) in (1..).zip(names) {
        let fire = fire(&broker, &format!("code{code}"));
        let (outcome, count) = match name {
            "INVALID_ARGUMENT" => ("refused", 1),
            "DEADLINE_EXCEEDED" => ("expired", 3),
            _ => ("failed", 3),
        };
        assert_eq!((&fire["end"], attempts(&fire).len()), (&json!("dead"), count), "{fire}");
        for attempt in attempts(&fire) {
            assert_eq!(attempt["outcome"], outcome, "{attempt}");
            assert_eq!(attempt["status"], code, "{attempt}");
            assert_eq!(attempt["answer"]["text"], format!("Nr. {code}: größer"), "{attempt}");
            if outcome != "expired" {
                assert_eq!(attempt["reason"], format!("gRPC {name}"), "{attempt}");
            }
        }
    }
    let groups = broker.call("GET", "/v1/shop/dead/groups", &[], "").1;
    let groups = groups["groups"].as_array().unwrap();
    let has = |reason: &str| {
        let is_it = |group: &&Value| group["reason"] == reason && group["target"] == server.url;
        groups.iter().any(|group| is_it(&group))
    };
    for reason in ["status UNAVAILABLE", "status INVALID_ARGUMENT", "timeout"] {
        assert!(has(reason), "{reason}: {groups:?}");
    }
    // A method that the server does not have may be there at the next attempt.
    let mut unknown = calling(&server.url, &json!({}));
    unknown["target"]["grpc"]["method"] = json!("/shop.v1.Orders/Nothing");
    schedule(&broker, "unknown", &unknown);
    let fire = fire(&broker, "unknown");
    assert_eq!(attempts(&fire).len(), 3, "{fire}");
    assert_eq!(attempts(&fire)[0]["reason"], "gRPC UNIMPLEMENTED", "{fire}");
}

#[test]
fn a_server_says_when_it_wants_to_be_called_again_or_that_it_does_not() {
    let broker = TestBroker::start(&[]);
    let server = GrpcServer::start();
    for (key, code) in [("unavailable", 14), ("exhausted", 8)] {
        let order = json!([{"code": code, "pushback": "600"}, {}]);
        schedule(&broker, key, &calling(&server.url, &order));
        let fire = fire(&broker, key);
        assert_eq!((&fire["end"], attempts(&fire).len()), (&json!("done"), 2), "{fire}");
        let [first, second] = [0, 1].map(|n| {
            let at = attempts(&fire)[n]["at"].as_str().unwrap();
            punctual_test_support::millis(at)
        });
        assert!(second - first >= 600, "{fire}");
    }
    let never = json!([{"code": 14, "pushback": "-1"}, {}]);
    schedule(&broker, "never", &calling(&server.url, &never));
    let fire = fire(&broker, "never");
    assert_eq!((&fire["end"], attempts(&fire).len()), (&json!("dead"), 1), "{fire}");
    assert_eq!(attempts(&fire)[0]["outcome"], "refused", "{fire}");
}

#[test]
fn a_call_without_an_answer_in_time_is_expired_and_the_server_knows_the_time() {
    let broker = TestBroker::start(&[]);
    let server = GrpcServer::start();
    let mut slow = calling(&server.url, &json!([{"wait_ms": 20_000}, {}]));
    slow["timeout"] = json!("300ms");
    schedule(&broker, "slow", &slow);
    let timeout = server.next().text("grpc-timeout").to_owned();
    let timeout: u64 = timeout.strip_suffix('m').unwrap().parse().unwrap();
    assert!((1..=300).contains(&timeout), "{timeout}");
    let retried = fire(&broker, "slow");
    assert_eq!((&retried["end"], attempts(&retried).len()), (&json!("done"), 2), "{retried}");
    assert_eq!(attempts(&retried)[0]["outcome"], "expired", "{retried}");
    assert_eq!(server.next().attempt(), 2);
    slow["guarantee"] = json!("at_most_once");
    schedule(&broker, "once", &slow);
    let once = fire(&broker, "once");
    assert_eq!((&once["end"], attempts(&once).len()), (&json!("dead"), 1), "{once}");
    server.next();
    server.stays_silent(Duration::from_millis(300));
}

#[test]
fn a_call_that_breaks_off_has_an_unknown_outcome() {
    let broker = TestBroker::start(&[]);
    for (name, manner, reason) in [
        ("closed", CallManner::Closes, "no answer: "),
        ("reset", CallManner::Resets(h2::Reason::INTERNAL_ERROR), "no answer: "),
        ("cancelled", CallManner::Resets(h2::Reason::CANCEL), "no answer: "),
        ("no-status", CallManner::AnswersHttp(200), "answer has no grpc-status"),
        ("endless", CallManner::Endless, "answer has more than 4194304 bytes"),
    ] {
        let (url, calls, _runtime) = misbehaving(manner);
        schedule(&broker, name, &calling(&url, &json!({})));
        let fire_of = |key: &str| fire(&broker, key);
        let fire = fire_of(name);
        assert_eq!((&fire["end"], attempts(&fire).len()), (&json!("dead"), 3), "{name}: {fire}");
        let found = attempts(&fire)[2]["reason"].as_str().unwrap_or_default();
        assert!(found.starts_with(reason), "{name}: {fire}");
        let ids: HashSet<String> = calls.try_iter().collect();
        assert_eq!(ids, HashSet::from([fire["fire_id"].as_str().unwrap().to_owned()]), "{name}");
        // At most once it is not sent again, and its outcome is unknown.
        let once = format!("{name}-once");
        let mut at_most_once = calling(&url, &json!({}));
        at_most_once["guarantee"] = json!("at_most_once");
        schedule(&broker, &once, &at_most_once);
        let fire = fire_of(&once);
        assert_eq!((&fire["end"], attempts(&fire).len()), (&json!("dead"), 1), "{name}: {fire}");
        assert_eq!(attempts(&fire)[0]["outcome"], "expired", "{name}: {fire}");
        assert_eq!(calls.try_iter().count(), 1, "{name}");
    }
}

#[test]
fn a_call_that_a_server_has_not_begun_is_a_failed_attempt() {
    let broker = TestBroker::start(&[]);
    let (refusing, calls, _refusing) = misbehaving(CallManner::Resets(h2::Reason::REFUSED_STREAM));
    let mut once = calling(&refusing, &json!({}));
    once["guarantee"] = json!("at_most_once");
    schedule(&broker, "refused", &once);
    let fire_of = |key: &str| fire(&broker, key);
    let fire = fire_of("refused");
    assert_eq!(attempts(&fire)[0]["outcome"], "failed", "{fire}");
    assert_eq!(calls.try_iter().count(), 1);
    // An answer of a proxy, and a receiver that does not know HTTP/2.
    let (proxy, _calls, _proxy) = misbehaving(CallManner::AnswersHttp(503));
    schedule(&broker, "proxy", &calling(&proxy, &json!({})));
    let fire = fire_of("proxy");
    assert_eq!(attempts(&fire)[0]["reason"], "HTTP 503, not a gRPC answer", "{fire}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-length: 0\r\n\r\n";
            stream.unwrap().write_all(answer).unwrap();
        }
    });
    schedule(&broker, "http1", &calling(&url, &json!({})));
    let fire = fire_of("http1");
    assert_eq!((&fire["end"], &attempts(&fire)[0]["outcome"]), (&json!("dead"), &json!("failed")));
}

#[test]
fn a_connection_that_its_server_leaves_is_replaced_without_a_failed_attempt() {
    let broker = TestBroker::start(&[]);
    let (url, calls, _runtime) = misbehaving(CallManner::AnswersAndLeaves);
    for n in 0..5 {
        schedule(&broker, &format!("k{n}"), &calling(&url, &json!({})));
        let fire = fire(&broker, &format!("k{n}"));
        assert_eq!((&fire["end"], attempts(&fire).len()), (&json!("done"), 1), "{fire}");
    }
    assert_eq!(calls.try_iter().count(), 5);
    // A server that was replaced while its connection was idle.
    let server = GrpcServer::start();
    let address: std::net::SocketAddr = server.url["http://".len()..].parse().unwrap();
    schedule(&broker, "before", &calling(&server.url, &json!({})));
    assert_eq!(fire(&broker, "before")["end"], "done");
    let url = server.url.clone();
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err());
    schedule(&broker, "gone", &calling(&url, &json!({})));
    let reason = attempts(&fire(&broker, "gone"))[0]["reason"].to_string();
    assert!(reason.contains("refused"), "{reason}");
}

#[test]
fn a_large_answer_is_read_to_its_status_and_its_beginning_is_kept() {
    let broker = TestBroker::start(&[]);
    let server = GrpcServer::start();
    schedule(&broker, "large", &calling(&server.url, &json!({"answer_bytes": 3_000_000})));
    let large = fire(&broker, "large");
    assert_eq!((&large["end"], attempts(&large).len()), (&json!("done"), 1), "{large}");
    let answer = &attempts(&large)[0]["answer"];
    assert_eq!(answer["text"].as_str().map(str::len), Some(1024), "{answer}");
    assert_eq!(answer["truncated"], true, "{answer}");
    schedule(&broker, "huge", &calling(&server.url, &json!({"answer_bytes": 6_000_000})));
    let huge = fire(&broker, "huge");
    assert_eq!(huge["end"], "dead", "{huge}");
    let reason = "answer has more than 4194304 bytes";
    assert_eq!(attempts(&huge)[0]["reason"], reason, "{huge}");
}

#[test]
fn a_server_with_tls_is_called_if_its_certificate_is_trusted_and_it_offers_http2() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, &certificate).unwrap();
    let trusting = TestBroker::start(&["--webhook-ca", file.path().to_str().unwrap()]);
    let server = GrpcServer::start_tls(&certificate, &key);
    for n in 0..2 {
        schedule(&trusting, &format!("k{n}"), &calling(&server.url, &json!({})));
        assert_eq!(fire(&trusting, &format!("k{n}"))["end"], "done");
    }
    let broker = TestBroker::start(&[]);
    schedule(&broker, "stranger", &calling(&server.url, &json!({})));
    let reason = attempts(&fire(&broker, "stranger"))[0]["reason"].to_string();
    assert!(reason.contains("not signed by a trusted authority"), "{reason}");
    // The port of a broker offers both; this one only HTTP/1.1.
    let port = http1_over_tls(&certificate, &key);
    schedule(&trusting, "http1", &calling(&format!("https://localhost:{port}"), &json!({})));
    let reason = attempts(&fire(&trusting, "http1"))[0]["reason"].to_string();
    assert!(reason.contains("does not offer HTTP/2"), "{reason}");
}

/// Starts a server with TLS that knows no HTTP/2.
fn http1_over_tls(certificate: &str, key: &str) -> u16 {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let config = std::sync::Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut connection = rustls::ServerConnection::new(config.clone()).unwrap();
            while connection.is_handshaking() {
                if connection.complete_io(&mut stream.as_ref().unwrap()).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[test]
fn a_task_that_waits_for_a_connection_is_cancelled_or_replaced_and_not_called() {
    let broker = TestBroker::start(&["--webhook-connections", "1"]);
    let hanging = HangingReceiver::start();
    let once = r#""in": "0s", "timeout": "1m", "retry": {"attempts_max": 1}"#;
    broker.put("hangs", task(once, &hanging.url));
    let stream = hanging.streams.recv_timeout(WAIT_MAX).expect("the first delivery is sent");
    let server = GrpcServer::start();
    schedule(&broker, "cancelled", &calling(&server.url, &json!({"order": 1})));
    schedule(&broker, "replaced", &calling(&server.url, &json!({"order": 2})));
    until_metric(&broker, "punctual_webhook_connection_waits", 2.0);
    let explained = broker.get("replaced/explain").1;
    let summary = explained["summary"].as_str().unwrap();
    assert!(summary.contains(&server.url) && summary.contains("for a connection"), "{summary}");
    assert_eq!(broker.delete("cancelled").1, json!({"result": "cancelled"}));
    let new = calling(&server.url, &json!({"order": 3}));
    assert_eq!(broker.put("replaced", new.to_string()).0, 200);
    until_metric(&broker, "punctual_webhook_connection_waits", 1.0);
    drop(stream);
    let call = server.next();
    assert_eq!(&call.message[..], br#"{"order":3}"#);
    assert_eq!(call.text("punctual-version"), "2");
    server.stays_silent(Duration::from_millis(300));
}

#[test]
fn a_broker_that_is_killed_in_a_call_does_not_repeat_it_at_most_once() {
    let server = GrpcServer::start();
    let broker = TestBroker::start(&[]);
    let mut hangs = calling(&server.url, &json!([{"wait_ms": 60_000}, {}, {}]));
    hangs["timeout"] = json!("1m");
    schedule(&broker, "again", &hangs);
    hangs["guarantee"] = json!("at_most_once");
    schedule(&broker, "once", &hangs);
    let [first, second] = [server.next(), server.next()];
    let again = [&first, &second].into_iter().find(|call| call.text("punctual-key") == "again");
    let id = again.unwrap().text("webhook-id").to_owned();
    let explained = broker.get("again/explain").1;
    let summary = explained["summary"].as_str().unwrap();
    assert!(summary.contains(&format!("attempt 1 was sent to {}", server.url)), "{summary}");
    broker.signal("-KILL");
    let dir = broker.dir.clone();
    drop(broker);
    let broker = TestBroker::start_on(dir, &[]);
    let call = server.next();
    assert_eq!((call.text("punctual-key"), call.text("webhook-id")), ("again", id.as_str()));
    server.stays_silent(Duration::from_millis(500));
    let letters = broker.call("GET", "/v1/shop/dead", &[], "").1;
    assert_eq!(letters["dead"][0]["task"]["key"], "once", "{letters}");
    assert_eq!(letters["dead"][0]["reason"], "unknown", "{letters}");
}

#[test]
fn a_forbidden_address_is_not_called() {
    let broker = TestBroker::start(&[]);
    let own = format!("http://{}", broker.address);
    for url in [own.as_str(), "http://169.254.169.254", "http://10.0.0.1:50051"] {
        let (status, problem) = broker.put("a", calling(url, &json!({})).to_string());
        assert_eq!((status, &problem["field"]), (422, &json!("target.grpc.url")), "{problem}");
    }
    let named = format!("http://localhost:{}", broker.address.port());
    schedule(&broker, "named", &calling(&named, &json!({})));
    let fire = fire(&broker, "named");
    assert_eq!((&fire["end"], attempts(&fire).len()), (&json!("dead"), 1), "{fire}");
    assert_eq!(attempts(&fire)[0]["outcome"], "refused", "{fire}");
}
