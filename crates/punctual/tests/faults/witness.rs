//! Receivers that remember what they got, when, and for which task. Workers write into the same ledger (`workers`).

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::field::now_millis;

/// How long a delivery to `/slow/…` waits for its answer: long enough to be under way when the broker is killed.
pub(crate) const SLOW: Duration = Duration::from_millis(60);

/// One delivery.
#[derive(Debug, Clone)]
pub(crate) struct Receipt {
    /// By the receiver's clock.
    pub(crate) at_millis: u128,
    pub(crate) fire_id: String,
    /// When it was due, as the delivery says.
    pub(crate) fire_at_millis: u64,
}

/// What was received, by task. Clones write into the same one.
#[derive(Clone)]
pub(crate) struct Ledger {
    receipts: Arc<Mutex<HashMap<String, Vec<Receipt>>>>,
    news: Sender<String>,
}

impl Ledger {
    /// An empty one, and who hears the key of every delivery.
    pub(crate) fn new() -> (Self, Receiver<String>) {
        let (news, heard) = channel();
        (Self { receipts: Arc::default(), news }, heard)
    }

    /// Now a delivery has come.
    pub(crate) fn write(&self, key: &str, fire_id: &str, fire_at_millis: u64) {
        let receipt =
            Receipt { at_millis: now_millis(), fire_id: fire_id.to_owned(), fire_at_millis };
        self.receipts.lock().unwrap().entry(key.to_owned()).or_default().push(receipt);
        // Nobody has to listen.
        let _ = self.news.send(key.to_owned());
    }

    /// Everything so far.
    pub(crate) fn receipts(&self) -> HashMap<String, Vec<Receipt>> {
        self.receipts.lock().unwrap().clone()
    }

    /// Everything so far of one task.
    pub(crate) fn of(&self, key: &str) -> Vec<Receipt> {
        self.receipts.lock().unwrap().get(key).cloned().unwrap_or_default()
    }
}

/// Tasks call `{url}/now/{key}` or `{url}/slow/{key}`.
pub(crate) struct Witness {
    pub(crate) url: String,
    ledger: Ledger,
    news: Receiver<String>,
}

impl Witness {
    pub(crate) fn start() -> Self {
        let (ledger, news) = Ledger::new();
        Self { url: receive(ledger.clone()), ledger, news }
    }

    /// Everything so far.
    pub(crate) fn receipts(&self) -> HashMap<String, Vec<Receipt>> {
        self.ledger.receipts()
    }

    /// The key of the next delivery, if one comes in time.
    pub(crate) fn next(&self, patience: Duration) -> Option<String> {
        self.news.recv_timeout(patience).ok()
    }

    /// Waits until nothing has come for a while.
    pub(crate) fn settle_down(&self, quiet: Duration) {
        while self.next(quiet).is_some() {}
    }
}

/// Receives webhooks from now on; where. A thread per connection: a server that lets one connection wait for the end of another would
/// make deliveries late that are not.
pub(crate) fn receive(ledger: Ledger) -> String {
    receive_at(Ipv4Addr::LOCALHOST.into(), ledger)
}

/// The same on another address of this machine.
pub(crate) fn receive_at(address: IpAddr, ledger: Ledger) -> String {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let ledger = ledger.clone();
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                // A delivery that did not come whole was not received.
                while let Some(request) = take(&mut stream) {
                    let key = request.path.rsplit('/').next().unwrap_or_default();
                    ledger.write(key, &request.fire_id, request.fire_at_millis);
                    if request.path.starts_with("/slow/") {
                        pause(SLOW);
                    }
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    if stream.get_mut().write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

struct Taken {
    path: String,
    fire_id: String,
    fire_at_millis: u64,
}

/// The next whole request.
fn take(stream: &mut BufReader<TcpStream>) -> Option<Taken> {
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
    Some(Taken { path, fire_id, fire_at_millis })
}

/// An instant of the API.
pub(crate) fn millis(rfc3339: &str) -> u64 {
    punctual_core::Timestamp::parse_rfc3339(rfc3339).unwrap().as_millis()
}

/// Time that has to pass: a receiver is slow, a moment for a fault is drawn.
pub(crate) fn pause(time: Duration) {
    let (_open, never) = channel::<()>();
    let _ = never.recv_timeout(time);
}
