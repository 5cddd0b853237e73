//! How load is sent: HTTP/1.1 as bytes on a socket, and gRPC by the generated client. As little work as possible, because whoever
//! sends shares the machine with whoever is measured.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use punctual_proto::v1::tasks_client::TasksClient;
use punctual_proto::v1::workers_client::WorkersClient;
use punctual_proto::v1::{NewTask, Target, new_task, target};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

pub(super) const NAMESPACE: &str = "bench";
pub(super) const QUEUE: &str = "work";
/// Bytes of a payload: what a note about an order takes.
pub(super) const PAYLOAD_BYTES: usize = 128;
/// Messages of batches are larger than tonic's default.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// One kept-alive HTTP/1.1 connection.
#[derive(Debug)]
pub(super) struct Http {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    line: String,
    body: Vec<u8>,
}

impl Http {
    pub(super) async fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("cannot reach the broker")?;
        stream.set_nodelay(true)?;
        let (out, line, body) = (Vec::new(), String::new(), Vec::new());
        Ok(Self { stream: BufReader::new(stream), out, line, body })
    }

    /// Sends a request and reads its answer. Out: status and body.
    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> anyhow::Result<(u16, &[u8])> {
        self.out.clear();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
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

    async fn line(&mut self) -> anyhow::Result<&str> {
        self.line.clear();
        if self.stream.read_line(&mut self.line).await? == 0 {
            bail!("the broker closed the connection");
        }
        Ok(self.line.trim_end())
    }
}

/// A gRPC connection of its own.
pub(super) async fn channel(address: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let endpoint = endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20);
    endpoint.connect().await.context("cannot reach the broker by gRPC")
}

/// The service of tasks on a connection.
pub(super) fn tasks(channel: Channel) -> TasksClient<Channel> {
    TasksClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The service of workers on a connection.
pub(super) fn workers(channel: Channel) -> WorkersClient<Channel> {
    WorkersClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A task to the queue, due then, with its number as the beginning of its payload.
pub(super) fn task(number: u64, at_ms: u64) -> NewTask {
    let mut payload = Vec::with_capacity(PAYLOAD_BYTES);
    payload.extend_from_slice(&number.to_be_bytes());
    payload.resize(PAYLOAD_BYTES, b'.');
    NewTask {
        when: Some(new_task::When::AtMs(at_ms)),
        target: Some(Target { to: Some(target::To::Queue(QUEUE.to_owned())) }),
        payload: Bytes::from(payload),
        ..NewTask::default()
    }
}

/// The number of a task, from its payload.
pub(super) fn number_of(payload: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(payload.get(..8)?.try_into().ok()?))
}

/// The same task as JSON.
pub(super) fn task_json(number: u64, at_ms: u64) -> String {
    let filler = ".".repeat(PAYLOAD_BYTES - 30);
    format!(
        r#"{{"at":{at_ms},"target":{{"queue":"{QUEUE}"}},"payload":{{"n":{number},"x":"{filler}"}}}}"#
    )
}
