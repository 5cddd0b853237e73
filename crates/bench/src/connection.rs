//! Connections to the broker: HTTP/1.1 as bytes on a socket, and gRPC by the generated client.
//!
//! Sending costs as little as possible, because the bench shares the machine with the broker.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use punctual_proto::v1::tasks_client::TasksClient;
use punctual_proto::v1::workers_client::WorkersClient;
use punctual_proto::v1::{NewTask, Target, new_task, target};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

pub(crate) const NAMESPACE: &str = "bench";
pub(crate) const QUEUE: &str = "work";
/// Bytes of a payload: a short JSON document.
pub(crate) const PAYLOAD_BYTES: usize = 128;
/// Batches are larger than the default limit of tonic.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// An HTTP/1.1 connection that is kept alive.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    stream: BufReader<TcpStream>,
    /// Header lines that are added to every request.
    headers: String,
    out: Vec<u8>,
    line: String,
    body: Vec<u8>,
}

impl HttpConnection {
    pub(crate) async fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("cannot reach the broker")?;
        stream.set_nodelay(true)?;
        let (out, line, body) = (Vec::new(), String::new(), Vec::new());
        Ok(Self { stream: BufReader::new(stream), headers: String::new(), out, line, body })
    }

    /// Sends a token with every request.
    pub(crate) fn with_token(mut self, secret: &str) -> Self {
        self.headers += &format!("authorization: Bearer {secret}\r\n");
        self
    }

    /// Asks with every request for an answer without the whole task.
    pub(crate) fn prefer_minimal(mut self) -> Self {
        self.headers += "prefer: return=minimal\r\n";
        self
    }

    /// Sends a request and reads the response. Returns its status and body.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> anyhow::Result<(u16, &[u8])> {
        self.out.clear();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{}\
             content-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
            self.headers,
            body.len()
        );
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body);
        self.stream.write_all(&self.out).await?;
        let status = self.line().await?.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.context("not an HTTP answer")?;
        let mut length = 0;
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().context("not a length")?;
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await?;
        Ok((status, &self.body))
    }

    /// Waits until the broker closes the connection.
    pub(crate) async fn wait_until_closed(mut self) {
        let _ = self.line().await;
    }

    async fn line(&mut self) -> anyhow::Result<&str> {
        self.line.clear();
        if self.stream.read_line(&mut self.line).await? == 0 {
            bail!("the broker closed the connection");
        }
        Ok(self.line.trim_end())
    }
}

/// Opens a new gRPC connection.
pub(crate) async fn channel(address: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let endpoint = endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20);
    endpoint.connect().await.context("cannot reach the broker by gRPC")
}

/// The task API on a connection.
pub(crate) fn tasks(channel: Channel) -> TasksClient<Channel> {
    TasksClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The worker API on a connection.
pub(crate) fn workers(channel: Channel) -> WorkersClient<Channel> {
    WorkersClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// Takes this many consecutive numbers that no other task of this process has. Returns the first.
pub(crate) fn take_numbers(count: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(count, Ordering::Relaxed)
}

/// The payload of a task. It starts with its number.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    let mut payload = Vec::with_capacity(PAYLOAD_BYTES);
    payload.extend_from_slice(&number.to_be_bytes());
    payload.resize(PAYLOAD_BYTES, b'.');
    payload
}

/// A task for the queue.
pub(crate) fn task(number: u64, at_ms: u64) -> NewTask {
    NewTask {
        when: Some(new_task::When::AtMs(at_ms)),
        target: Some(Target { to: Some(target::To::Queue(QUEUE.to_owned())) }),
        payload: Bytes::from(payload(number)),
        ..NewTask::default()
    }
}

/// Reads the number of a task from its payload: the first bytes, or `n` of a JSON object.
pub(crate) fn number_of(payload: &[u8]) -> Option<u64> {
    if payload.starts_with(b"{") {
        return serde_json::from_slice::<serde_json::Value>(payload).ok()?["n"].as_u64();
    }
    Some(u64::from_be_bytes(payload.get(..8)?.try_into().ok()?))
}

/// A task of the same size as JSON.
pub(crate) fn task_json(number: u64, at_ms: u64) -> String {
    let filler = ".".repeat(PAYLOAD_BYTES - 30);
    let payload = format!(r#"{{"n":{number},"x":"{filler}"}}"#);
    format!(r#"{{"at":{at_ms},"target":{{"queue":"{QUEUE}"}},"payload":{payload}}}"#)
}
