//! A receiver that remembers what it got, when, and for which task.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::field::now_millis;

/// How long a delivery to `/slow/…` waits for its answer: long enough to be under way when the broker is killed.
const SLOW: Duration = Duration::from_millis(60);

/// One delivery.
#[derive(Debug, Clone)]
pub(crate) struct Receipt {
    pub(crate) at_millis: u128,
    pub(crate) fire_id: String,
}

/// Tasks call `{url}/now/{key}` or `{url}/slow/{key}`.
pub(crate) struct Witness {
    pub(crate) url: String,
    receipts: Arc<Mutex<HashMap<String, Vec<Receipt>>>>,
    news: Receiver<String>,
}

impl Witness {
    /// A thread per connection: a server that lets one connection wait for the end of another would make
    /// deliveries late that are not.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let receipts: Arc<Mutex<HashMap<String, Vec<Receipt>>>> = Arc::default();
        let (send, news) = channel();
        let kept = Arc::clone(&receipts);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, send) = (Arc::clone(&kept), send.clone());
                thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    // A delivery that did not come whole was not received.
                    while let Some((path, fire_id)) = take(&mut stream) {
                        let at_millis = now_millis();
                        let key = path.rsplit('/').next().unwrap_or_default().to_owned();
                        let receipt = Receipt { at_millis, fire_id };
                        kept.lock().unwrap().entry(key.clone()).or_default().push(receipt);
                        if send.send(key).is_err() {
                            return;
                        }
                        if path.starts_with("/slow/") {
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
        Self { url, receipts, news }
    }

    /// Everything so far.
    pub(crate) fn receipts(&self) -> HashMap<String, Vec<Receipt>> {
        self.receipts.lock().unwrap().clone()
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

/// The path and the fire id of the next whole request.
fn take(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
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
    Some((path, header("webhook-id").unwrap_or_default().to_owned()))
}

/// Time that has to pass: a receiver is slow, a moment for a fault is drawn.
pub(crate) fn pause(time: Duration) {
    let (_open, never) = channel::<()>();
    let _ = never.recv_timeout(time);
}
