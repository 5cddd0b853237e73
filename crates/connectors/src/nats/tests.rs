use std::time::Duration;

use punctual_core::{Guarantee, MessageSystem};
use punctual_test_support::nats::NATS_MESSAGE_BYTES_MAX;
use punctual_test_support::{NatsServer, wait_for};
use serde_json::json;

use super::*;
use crate::sink_fixtures::{Wanted, connection_of, shown};

async fn open(toml: &str) -> Result<Box<dyn SinkSession>, String> {
    let connection = connection_of(toml);
    sink(&connection.name, connection.system.link().unwrap(), 1000).connect().await
}

async fn session(url: &str) -> Box<dyn SinkSession> {
    open(&format!("kind = \"nats\"\nurl = {url:?}")).await.unwrap()
}

fn to(subject: &str) -> Wanted {
    Wanted::to(MessageSystem::Nats, subject)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_confirms_a_message_and_recognises_it_when_it_comes_again() {
    let server = NatsServer::start();
    server.make_stream("ORDERS", &["orders.>"], &json!({}));
    let mut session = session(&server.url()).await;
    let batch = [
        to("orders.paid").key("order-1").delivery(1),
        to("orders.late").delivery(2),
        to("orders.paid").delivery(1),
    ];
    let sent = session.send(&batch).await;
    assert_eq!(
        shown(&sent.results),
        [
            "acked: stream ORDERS, sequence 1",
            "acked: stream ORDERS, sequence 2",
            "acked: stream ORDERS, sequence 1, had it before",
        ]
    );
    assert_eq!(sent.lost, None);
    let messages = server.messages("ORDERS");
    let subjects: Vec<&str> = messages.iter().map(|message| message.subject.as_str()).collect();
    assert_eq!(subjects, ["orders.paid", "orders.late"]);
    let first = &messages[0];
    assert_eq!(first.payload, "{\"order\":42}");
    let id = batch[0].fire_id.to_string();
    for (name, value) in [
        ("Nats-Msg-Id", id.as_str()),
        ("webhook-id", id.as_str()),
        ("punctual-namespace", "shop"),
        ("punctual-key", "order-1"),
        ("punctual-attempt", "1"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(first.header(name), Some(value), "{name}: {first:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_stream_takes_says_why_and_harms_no_other_message() {
    let server = NatsServer::start();
    server.make_stream("ALL", &["small.>", "denied.>"], &json!({ "max_msg_size": 1000 }));
    let url = format!("nats://limited:limited@127.0.0.1:{}", server.port);
    let mut session = session(&url).await;
    let large = |bytes: usize| "x".repeat(bytes);
    let batch = [
        to("small.a").delivery(1),
        to("nowhere").delivery(2),
        to("denied.x").delivery(3),
        to("small.b").payload(&large(2000)).delivery(4),
        to("small.c").payload(&large(NATS_MESSAGE_BYTES_MAX + 1)).delivery(5),
        to("small.d").delivery(6),
    ];
    let sent = session.send(&batch).await;
    let results = shown(&sent.results);
    for (result, expected) in results.iter().zip([
        "acked: stream ALL, sequence 1",
        "failed: no stream of JetStream has the subject",
        "failed: Permissions Violation for Publish to \"denied.x\"",
        "refused: message size exceeds maximum allowed",
        "refused: max payload size exceeded",
        "acked: stream ALL, sequence 2",
    ]) {
        assert!(result.to_lowercase().starts_with(&expected.to_lowercase()), "{results:?}");
    }
    assert_eq!(sent.lost, None);
    // The next batch is not affected.
    let sent = session.send(&[to("small.a").delivery(7)]).await;
    assert_eq!(shown(&sent.results), ["acked: stream ALL, sequence 3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_leaves_the_outcome_unknown() {
    let server = NatsServer::start();
    server.make_stream("ORDERS", &["orders"], &json!({}));
    let mut session = session(&server.url()).await;
    let wanted = to("orders").timeout(Duration::from_millis(500));
    let batch = [wanted.delivery(1), wanted.guarantee(Guarantee::AtMostOnce).delivery(2)];
    server.suspend();
    let sent = session.send(&batch).await;
    assert_eq!(shown(&sent.results), ["failed: no confirmation in time", "expired"]);
    server.resume();
    // What was sent at most once may have arrived, and is not sent again.
    let sent = session.send(&[to("orders").delivery(3)]).await;
    assert_eq!(shown(&sent.results), ["acked: stream ORDERS, sequence 3"]);
    assert_eq!(server.messages("ORDERS").len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_its_connection() {
    let mut server = NatsServer::start();
    server.make_stream("ORDERS", &["orders"], &json!({}));
    let mut session = session(&server.url()).await;
    let mut other = open(&format!("kind = \"nats\"\nurl = {:?}", server.url())).await.unwrap();
    assert_eq!(other.check().await, Ok(()));
    server.suspend();
    let batch = [to("orders").delivery(1)];
    let (sent, ()) = tokio::join!(session.send(&batch), async { server.kill() });
    // Which of both depends on what the client notices first.
    let expected = ["the server has closed the connection", "the connection was lost"];
    let results = shown(&sent.results);
    assert!(expected.iter().any(|text| results == [format!("failed: {text}")]), "{results:?}");
    wait_for("the idle session to notice", || {
        other.check().now_or_never().is_some_and(|checked| checked.is_err())
    });
    let error = open(&format!("kind = \"nats\"\nurl = {:?}", server.url())).await.err().unwrap();
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn the_server_names_the_subject_that_a_user_may_not_publish_to() {
    for (text, subject) in [
        ("Permissions Violation for Publish to \"orders.paid\"", Some("orders.paid")),
        ("Permissions Violation for Subscription to \"orders\"", None),
        ("Authorization Violation", None),
    ] {
        assert_eq!(denied_subject(text), subject, "{text}");
    }
}

#[test]
fn the_reason_of_a_loss_is_what_the_server_said_before() {
    let mut state = NatsState::default();
    let error = |text: &str| Event::ServerError(ServerError::Other(text.to_owned()));
    state.note(&error("maximum connections exceeded"));
    state.note(&Event::Disconnected);
    state.note(&error("later"));
    assert_eq!(state.lost.as_deref(), Some("maximum connections exceeded"));
    let mut state = NatsState::default();
    state.note(&Event::Disconnected);
    assert_eq!(state.lost.as_deref(), Some("the server has closed the connection"));
}
