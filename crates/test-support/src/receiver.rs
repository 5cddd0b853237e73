//! Receivers of webhooks.
//!
//! [`WebhookReceiver`] gives whole requests to the test, one by one. [`HangingReceiver`] answers
//! none. [`RecordingReceiver`] writes into a [`DeliveryLog`] what came when for which task; workers
//! write into the same log ([`crate::workers`]).

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::wait::{WAIT_MAX, millis, now_millis, pause};

/// How long a delivery to `/slow/…` waits for its answer: long enough to be in flight when the
/// broker is killed.
pub const SLOW: Duration = Duration::from_millis(60);

/// The answer with status 500 to a delivery to `/failing/…`.
pub const FAILURE: &str = "boom: db locked";

/// Returns the JSON of a task that calls a receiver. `when` is a member such as `"in": "1s"`.
pub fn task(when: &str, url: &str) -> String {
    format!(r#"{{{when}, "target": {{"http": {{"url": "{url}"}}}}, "payload": {{"order": 1}}}}"#)
}

/// A request that a [`WebhookReceiver`] got.
#[derive(Debug, Clone)]
pub struct ReceivedWebhook {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// By the receiver's clock.
    pub at_millis: u128,
}

impl ReceivedWebhook {
    /// Returns the value of a header, or an empty text.
    pub fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        header.map_or("", |(_, value)| value)
    }
}

/// An HTTP server that answers with the status in the path (`/500/…`), or with 200.
pub struct WebhookReceiver {
    pub url: String,
    requests: Receiver<ReceivedWebhook>,
}

impl WebhookReceiver {
    pub fn start() -> Self {
        let server = tiny_http::Server::http("127.0.0.1:0").unwrap();
        let url = format!("http://{}", server.server_addr().to_ip().unwrap());
        let (send, requests) = channel();
        thread::spawn(move || {
            for mut request in server.incoming_requests() {
                let mut body = Vec::new();
                let _ = request.as_reader().read_to_end(&mut body);
                let headers = request.headers().iter();
                let received = ReceivedWebhook {
                    method: request.method().to_string(),
                    path: request.url().to_owned(),
                    headers: headers
                        .map(|header| (header.field.to_string(), header.value.to_string()))
                        .collect(),
                    body,
                    at_millis: now_millis(),
                };
                let status = received.path.split('/').nth(1).and_then(|part| part.parse().ok());
                if send.send(received).is_err() {
                    return;
                }
                let answer = tiny_http::Response::empty(status.unwrap_or(200u16));
                let retry = tiny_http::Header::from_bytes("Retry-After", "1").unwrap();
                let _ = request.respond(answer.with_header(retry));
            }
        });
        Self { url, requests }
    }

    /// Waits for the next request.
    pub fn next(&self) -> ReceivedWebhook {
        self.requests.recv_timeout(WAIT_MAX).expect("a request comes")
    }

    /// Returns the next request if one comes in time.
    pub fn next_within(&self, time: Duration) -> Option<ReceivedWebhook> {
        self.requests.recv_timeout(time).ok()
    }

    /// Returns the requests that have come and that `next` has not returned.
    pub fn received(&self) -> Vec<ReceivedWebhook> {
        self.requests.try_iter().collect()
    }

    /// Asserts that no request comes within `time`.
    pub fn stays_silent(&self, time: Duration) {
        let received = self.requests.recv_timeout(time);
        assert!(matches!(received, Err(RecvTimeoutError::Timeout)), "{received:?}");
    }
}

/// A receiver that never answers.
pub struct HangingReceiver {
    pub url: String,
    /// The connections on which a request has begun. A connection is closed when it is dropped.
    pub streams: Receiver<TcpStream>,
}

impl HangingReceiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (send, streams) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // The request has begun when its first byte is here.
                let _ = stream.read(&mut [0]);
                if send.send(stream).is_err() {
                    return;
                }
            }
        });
        Self { url, streams }
    }
}

/// An entry of a [`DeliveryLog`].
#[derive(Debug, Clone)]
pub struct ReceivedDelivery {
    /// By the receiver's clock.
    pub at_millis: u128,
    pub fire_id: String,
    /// When it was due, as the delivery states.
    pub fire_at_millis: u64,
    /// When it was sent, as the delivery states.
    pub sent_at_millis: u64,
}

/// What was received, by task. Clones write into the same log.
#[derive(Clone)]
pub struct DeliveryLog {
    by_key: Arc<Mutex<HashMap<String, Vec<ReceivedDelivery>>>>,
    arrivals: Sender<String>,
}

impl DeliveryLog {
    /// Returns an empty log, and a channel with the key of each delivery that is recorded.
    pub fn new() -> (Self, Receiver<String>) {
        let (arrivals, keys) = channel();
        (Self { by_key: Arc::default(), arrivals }, keys)
    }

    /// Records a delivery that came now.
    pub fn record(&self, key: &str, fire_id: &str, fire_at_millis: u64, sent_at_millis: u64) {
        let (at_millis, fire_id) = (now_millis(), fire_id.to_owned());
        let delivery = ReceivedDelivery { at_millis, fire_id, fire_at_millis, sent_at_millis };
        self.by_key.lock().unwrap().entry(key.to_owned()).or_default().push(delivery);
        // The test may have dropped the channel.
        let _ = self.arrivals.send(key.to_owned());
    }

    /// Returns all deliveries so far, by key.
    pub fn deliveries(&self) -> HashMap<String, Vec<ReceivedDelivery>> {
        self.by_key.lock().unwrap().clone()
    }

    /// Returns all deliveries of one task so far.
    pub fn of(&self, key: &str) -> Vec<ReceivedDelivery> {
        self.by_key.lock().unwrap().get(key).cloned().unwrap_or_default()
    }
}

/// A receiver with a log. Tasks call `{url}/now/{key}` or `{url}/slow/{key}`; `/failing/` and
/// `/slow-failing/` are answered with [`FAILURE`].
pub struct RecordingReceiver {
    pub url: String,
    log: DeliveryLog,
    arrivals: Receiver<String>,
}

impl RecordingReceiver {
    pub fn start() -> Self {
        let (log, arrivals) = DeliveryLog::new();
        Self { url: receive(log.clone()), log, arrivals }
    }

    /// Returns all deliveries so far, by key.
    pub fn deliveries(&self) -> HashMap<String, Vec<ReceivedDelivery>> {
        self.log.deliveries()
    }

    /// Returns the key of the next delivery, if one comes in time.
    pub fn next(&self, timeout: Duration) -> Option<String> {
        self.arrivals.recv_timeout(timeout).ok()
    }

    /// Waits until nothing has come for `quiet`.
    pub fn settle_down(&self, quiet: Duration) {
        while self.next(quiet).is_some() {}
    }
}

/// Starts to receive webhooks on loopback. Returns the URL.
pub fn receive(log: DeliveryLog) -> String {
    receive_at(Ipv4Addr::LOCALHOST.into(), log)
}

/// Starts to receive webhooks on an address of this machine. Returns the URL.
///
/// Each connection has a thread. If one connection had to wait for another, deliveries would seem
/// late although they are not.
pub fn receive_at(address: IpAddr, log: DeliveryLog) -> String {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let log = log.clone();
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                // A delivery that did not come whole was not received.
                while let Some(request) = read_request(&mut stream) {
                    let key = request.path.rsplit('/').next().unwrap_or_default();
                    let sent_at_millis = request.fire_at_millis + request.lag_millis;
                    log.record(key, &request.fire_id, request.fire_at_millis, sent_at_millis);
                    if request.path.starts_with("/slow") {
                        pause(SLOW);
                    }
                    if stream.get_mut().write_all(answer(&request.path).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// Returns the response to a request.
fn answer(path: &str) -> String {
    let (status, body) = match path.split('/').nth(1) {
        Some("failing" | "slow-failing") => ("500 Internal Server Error", FAILURE),
        _ => ("200 OK", ""),
    };
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

struct WebhookRequest {
    path: String,
    fire_id: String,
    fire_at_millis: u64,
    lag_millis: u64,
}

/// Reads the next request, if it comes whole.
fn read_request(stream: &mut BufReader<TcpStream>) -> Option<WebhookRequest> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        if !line.ends_with("\r\n") {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        lines.push(line);
    }
    let path = lines.first()?.split(' ').nth(1)?.to_owned();
    let header = |name: &str| {
        let mut headers = lines.iter().filter_map(|line| line.trim_end().split_once(": "));
        headers.find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let mut body = vec![0; header("content-length").map_or(Some(0), |text| text.parse().ok())?];
    stream.read_exact(&mut body).ok()?;
    let fire_id = header("webhook-id").unwrap_or_default().to_owned();
    let fire_at_millis = header("punctual-fire-at").map_or(0, millis);
    let lag_millis = header("punctual-lag-ms").and_then(|text| text.parse().ok()).unwrap_or(0);
    Some(WebhookRequest { path, fire_id, fire_at_millis, lag_millis })
}
