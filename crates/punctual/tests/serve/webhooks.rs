//! Webhooks: signatures, and how the answer of a receiver decides about the next attempt.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver as Channel, channel};
use std::thread;
use std::time::Duration;

use punctual_test_support::{TestBroker, WAIT_MAX, WebhookReceiver, now_millis, task};

use crate::metrics::{metric, until_metric};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEXT_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

/// Starts a receiver that answers with fixed bytes. Returns its URL and the times of its calls.
fn answering(answer: &'static str) -> (String, Channel<u128>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, called) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = vec![0; 65_536];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
            if send.send(now_millis()).is_err() {
                return;
            }
        }
    });
    (url, called)
}

#[test]
fn a_receiver_can_verify_the_signature_of_a_delivery() {
    let own = format!("shop={SECRET}");
    let next = format!("shop={NEXT_SECRET}");
    let flags = ["--signing-secret", &own, "--signing-secret", &next];
    let (broker, receiver) = (TestBroker::start(&flags), WebhookReceiver::start());
    broker.put("a", task(r#""in": "0s""#, &receiver.url));
    let got = receiver.next();
    let mut headers = http::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, got.header(name).parse().unwrap());
    }
    for secret in [SECRET, NEXT_SECRET] {
        let verifier = standardwebhooks::Webhook::new(secret).unwrap();
        verifier.verify(&got.body, &headers).unwrap();
        assert!(verifier.verify(b"forged", &headers).is_err());
    }
    // Another namespace has no secret, and so no signature.
    broker.call("PUT", "/v1/bank/tasks/a", &[], task(r#""in": "0s""#, &receiver.url));
    assert_eq!(receiver.next().header("webhook-signature"), "");
}

#[test]
fn retry_after_sets_the_time_of_the_next_attempt() {
    let broker = TestBroker::start(&[]);
    let retry =
        r#""in": "0s", "retry": {"attempts_max": 2, "backoff": {"fixed": "1ms"}, "jitter": 0}"#;
    // The receiver's clock is years behind: only the difference to its date counts.
    let (url, called) = answering(
        "HTTP/1.1 503 Later\r\nDate: Wed, 21 Oct 2015 07:28:00 GMT\r\n\
         Retry-After: Wed, 21 Oct 2015 07:28:01 GMT\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n",
    );
    broker.put("date", task(retry, &url));
    let (first, second) = (called.recv_timeout(WAIT_MAX), called.recv_timeout(WAIT_MAX));
    assert!(second.unwrap() >= first.unwrap() + 1000, "a date in Retry-After");
    let (url, called) = answering(
        "HTTP/1.1 429 Later\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    broker.put("seconds", task(retry, &url));
    let (first, second) = (called.recv_timeout(WAIT_MAX), called.recv_timeout(WAIT_MAX));
    assert!(second.unwrap() >= first.unwrap() + 1000, "seconds in Retry-After");
}

#[test]
fn the_status_of_an_answer_decides_whatever_its_body_does() {
    let broker = TestBroker::start(&[]);
    for (answer, outcome) in [
        // A body that never comes, one that breaks off, a redirect, and bytes that are not HTTP.
        ("HTTP/1.1 200 Fine\r\nContent-Length: 100000\r\n\r\nbeginning", "acked"),
        ("HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\nx", "acked"),
        (
            "HTTP/1.1 302 There\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
            "failed",
        ),
        ("SSH-2.0-surprise\r\n", "failed"),
    ] {
        let (url, _called) = answering(answer);
        let line = format!("punctual_attempts_total{{outcome=\"{outcome}\"}}");
        let before = metric(&broker, &line);
        let once = r#""in": "0s", "retry": {"attempts_max": 1}"#;
        let (status, answer) = broker.call("POST", "/v1/shop/tasks", &[], task(once, &url));
        assert_eq!(status, 201, "{answer}");
        until_metric(&broker, &line, before + 1.0);
    }
}

#[test]
fn a_failed_attempt_is_retried_and_a_status_410_is_not() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let retry =
        r#""in": "0s", "retry": {"attempts_max": 3, "backoff": {"fixed": "50ms"}, "jitter": 0}"#;
    broker.put("fails", task(retry, &format!("{}/500", receiver.url)));
    let attempts = [receiver.next(), receiver.next(), receiver.next()];
    for (attempt, number) in attempts.iter().zip(["1", "2", "3"]) {
        assert_eq!(attempt.header("punctual-attempt"), number);
        assert_eq!(attempt.header("webhook-id"), attempts[0].header("webhook-id"));
    }
    assert!(attempts[1].at_millis >= attempts[0].at_millis + 50);
    receiver.stays_silent(Duration::from_millis(200));
    broker.put("gone", task(retry, &format!("{}/410", receiver.url)));
    receiver.next();
    receiver.stays_silent(Duration::from_millis(200));
    broker.put("busy", task(retry, &format!("{}/503", receiver.url)));
    let (first, second) = (receiver.next(), receiver.next());
    assert!(second.at_millis >= first.at_millis + 1000, "seconds in Retry-After");
}
