//! A receiver that remembers what it got, when, and for which task.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::field::now_millis;

/// Deliveries that are answered at the same time.
const THREADS: usize = 8;
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
    pub(crate) fn start() -> Self {
        let server = Arc::new(tiny_http::Server::http("127.0.0.1:0").unwrap());
        let url = format!("http://{}", server.server_addr().to_ip().unwrap());
        let receipts: Arc<Mutex<HashMap<String, Vec<Receipt>>>> = Arc::default();
        let (send, news) = channel();
        for _ in 0..THREADS {
            let (server, receipts, send) =
                (Arc::clone(&server), Arc::clone(&receipts), send.clone());
            thread::spawn(move || {
                for mut request in server.incoming_requests() {
                    let at_millis = now_millis();
                    if std::io::copy(request.as_reader(), &mut std::io::sink()).is_err() {
                        // A delivery that did not come whole was not received.
                        continue;
                    }
                    let id =
                        request.headers().iter().find(|header| header.field.equiv("webhook-id"));
                    let fire_id = id.map(|header| header.value.to_string()).unwrap_or_default();
                    let key = request.url().rsplit('/').next().unwrap_or_default().to_owned();
                    let receipt = Receipt { at_millis, fire_id };
                    receipts.lock().unwrap().entry(key.clone()).or_default().push(receipt);
                    if send.send(key).is_err() {
                        return;
                    }
                    if request.url().starts_with("/slow/") {
                        pause(SLOW);
                    }
                    let _ = request.respond(tiny_http::Response::empty(200));
                }
            });
        }
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

/// Time that has to pass: a receiver is slow, a moment for a fault is drawn.
pub(crate) fn pause(time: Duration) {
    let (_open, never) = channel::<()>();
    let _ = never.recv_timeout(time);
}
