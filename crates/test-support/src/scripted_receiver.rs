//! A receiver of webhooks that gives a list of answers, the last one again and again.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::{Map, Value, json};

/// An HTTP server at `/hook` of a free port. It ends when it is dropped.
pub struct ScriptedReceiver {
    pub url: String,
    server: Arc<tiny_http::Server>,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl ScriptedReceiver {
    /// Starts a receiver. Each answer has a `status` and may have a `body` and `headers`.
    pub fn start(answers: Vec<Value>) -> Self {
        let server = Arc::new(tiny_http::Server::http("127.0.0.1:0").unwrap());
        let url = format!("http://{}/hook", server.server_addr().to_ip().unwrap());
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (serving, recorded) = (Arc::clone(&server), Arc::clone(&requests));
        thread::spawn(move || {
            for mut request in serving.incoming_requests() {
                let received = received(&mut request);
                let number = {
                    let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
                    recorded.push(received);
                    recorded.len()
                };
                let _ = request.respond(response(&answers[number.min(answers.len()) - 1]));
            }
        });
        Self { url, server, requests }
    }

    /// All requests so far: `method`, `path`, `headers` in lower case, and `body` as text.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for ScriptedReceiver {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

fn received(request: &mut tiny_http::Request) -> Value {
    let mut body = Vec::new();
    let _ = request.as_reader().read_to_end(&mut body);
    let name = |header: &tiny_http::Header| header.field.to_string().to_lowercase();
    let headers = request.headers().iter();
    let headers: Map<String, Value> =
        headers.map(|header| (name(header), json!(header.value.as_str()))).collect();
    let body = String::from_utf8_lossy(&body);
    let (method, path) = (request.method().as_str(), request.url());
    json!({"method": method, "path": path, "headers": headers, "body": body})
}

fn response(answer: &Value) -> tiny_http::Response<std::io::Cursor<Vec<u8>>> {
    let body = match &answer["body"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap();
    let mut response = tiny_http::Response::from_data(body).with_status_code(status);
    for (name, value) in answer["headers"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap();
        response.add_header(tiny_http::Header::from_bytes(name.as_str(), value).unwrap());
    }
    response
}
