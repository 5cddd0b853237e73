//! A real NATS server with `JetStream` on loopback, and a client of its own protocol as a witness.
//!
//! The server is the one that `tools/servers` fetches. The client here shares no code with that of
//! the product: it speaks the text protocol over a socket.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificate::make_certificate;
use crate::ports::free_port;
use crate::server_process::ServerProcess;
use crate::servers::fetched;
use crate::wait::wait_for;

/// A user that needs its password.
pub const NATS_USER: &str = "punctual";
/// The password of [`NATS_USER`].
pub const NATS_PASSWORD: &str = "hush-hush";
/// The largest message of the server.
pub const NATS_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// How long the server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A NATS server, running or not.
pub struct NatsServer {
    pub port: u16,
    dir: TempDir,
    process: Option<ServerProcess>,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsMessage {
    pub subject: String,
    pub headers: Vec<(String, String)>,
    pub payload: String,
}

impl NatsMessage {
    /// Returns the value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl NatsServer {
    /// Starts a server on a free port of loopback, which takes connections with and without TLS.
    ///
    /// Users without a password may do everything; the user `limited` with the password `limited`
    /// may publish to all subjects but `denied.>`.
    #[must_use]
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (certificate, key) = make_certificate();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = (file("cert.pem", &certificate), file("key.pem", &key));
        let (port, store) = (free_port(), dir.path().join("store"));
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\nmax_payload: {NATS_MESSAGE_BYTES_MAX}\n\
             jetstream {{ store_dir: {store:?} }}\n\
             tls {{ cert_file: {certificate:?}, key_file: {key:?} }}\nallow_non_tls: true\n\
             authorization {{ users: [\n\
             {{ user: anyone, password: anyone }},\n\
             {{ user: {NATS_USER}, password: {NATS_PASSWORD:?} }},\n\
             {{ user: limited, password: limited,\n\
             permissions: {{ publish: {{ deny: [\"denied.>\"] }} }} }} ] }}\n\
             no_auth_user: anyone\n"
        );
        fs::write(dir.path().join("config"), config).unwrap();
        let mut server = Self { port, dir, process: None };
        server.start_again();
        server
    }

    /// The certificate of the server's authority.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    /// Starts the server again, with the same port and streams.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server runs");
        let config = self.dir.path().join("config").display().to_string();
        let program = program().display().to_string();
        let words = [program, "--config".to_owned(), config];
        self.process = Some(ServerProcess::start(self.dir.path(), &words));
        wait_for("nats-server to listen", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
        });
        wait_for("JetStream to answer", || {
            self.request("$JS.API.INFO", &json!({})).is_some_and(|info| info["error"].is_null())
        });
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops the server with SIGSTOP, until `resume`.
    pub fn suspend(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-STOP");
    }

    pub fn resume(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-CONT");
    }

    /// Makes a stream of subjects, with more settings as in the API of `JetStream`.
    pub fn make_stream(&self, name: &str, subjects: &[&str], more: &Value) {
        let mut config = json!({ "name": name, "subjects": subjects, "storage": "file" });
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let made = self.request(&format!("$JS.API.STREAM.CREATE.{name}"), &config);
        let made = made.expect("an answer");
        assert!(made["error"].is_null(), "{made}");
    }

    /// Returns the messages of a stream, in order.
    #[must_use]
    pub fn messages(&self, stream: &str) -> Vec<NatsMessage> {
        self.messages_after(stream, 0)
    }

    /// Returns the messages of a stream behind a sequence number, in order.
    #[must_use]
    pub fn messages_after(&self, stream: &str, after: u64) -> Vec<NatsMessage> {
        let info = self.request(&format!("$JS.API.STREAM.INFO.{stream}"), &json!({}));
        let state = info.expect("an answer")["state"].clone();
        let (first, last) = (state["first_seq"].as_u64(), state["last_seq"].as_u64());
        let mut link = NatsLink::open(self.port).expect("a connection");
        let read = |sequence: u64| {
            let get = format!("$JS.API.STREAM.MSG.GET.{stream}");
            let found = link.request(&get, &json!({ "seq": sequence })).expect("an answer");
            let message = &found["message"];
            let text = |field: &str| {
                let bytes = STANDARD.decode(message[field].as_str().unwrap_or_default()).unwrap();
                String::from_utf8(bytes).unwrap()
            };
            let headers = text("hdrs");
            let headers = headers.lines().filter_map(|line| line.split_once(": "));
            NatsMessage {
                subject: message["subject"].as_str().unwrap_or_default().to_owned(),
                headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
                payload: text("data"),
            }
        };
        (first.unwrap_or(1).max(after + 1)..=last.unwrap_or(0)).map(read).collect()
    }

    fn request(&self, subject: &str, body: &Value) -> Option<Value> {
        NatsLink::open(self.port).ok()?.request(subject, body)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The server's program. The environment variable `PUNCTUAL_TEST_NATS_SERVER` names another one.
fn program() -> PathBuf {
    let named = std::env::var("PUNCTUAL_TEST_NATS_SERVER").map(PathBuf::from);
    named.unwrap_or_else(|_| fetched("bin/nats-server"))
}

/// A connection that makes requests one after the other.
struct NatsLink(BufReader<TcpStream>);

impl NatsLink {
    fn open(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut link = Self(BufReader::new(stream));
        let connect = json!({ "verbose": false, "pedantic": false, "protocol": 1 });
        let hello = format!("CONNECT {connect}\r\nSUB witness.answers 1\r\n");
        link.0.get_mut().write_all(hello.as_bytes())?;
        Ok(link)
    }

    /// Returns the answer to a request; `None` if the server gives none.
    fn request(&mut self, subject: &str, body: &Value) -> Option<Value> {
        let body = body.to_string();
        let mut text = format!("PUB {subject} witness.answers {}\r\n", body.len());
        let _ = write!(text, "{body}\r\n");
        self.0.get_mut().write_all(text.as_bytes()).ok()?;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["MSG", .., size] => {
                    let mut bytes = vec![0; size.parse::<usize>().ok()? + 2];
                    self.0.read_exact(&mut bytes).ok()?;
                    return serde_json::from_slice(&bytes[..bytes.len() - 2]).ok();
                }
                ["PING"] => self.0.get_mut().write_all(b"PONG\r\n").ok()?,
                _ => {}
            }
        }
    }
}
