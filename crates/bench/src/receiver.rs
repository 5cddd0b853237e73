//! A receiver of webhooks that answers as fast as it can, or in a manner that a broker must bear.
//!
//! It calls back for each request that came whole. All of it ends when it is dropped.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::clock::pause;

/// Bytes of one piece of an endless answer.
const PIECE_BYTES: usize = 16 * 1024;

/// How a receiver answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerManner {
    /// 204, and the connection is kept.
    Keep,
    /// 204, and the connection is closed.
    Close,
    /// Never.
    Hang,
    /// 200 and a body without an end.
    Endless,
}

/// What a receiver reads of a request.
#[derive(Debug, Default)]
pub(crate) struct WebhookHead {
    pub(crate) path: String,
    /// The header `punctual-lag-ms`.
    pub(crate) lag_ms: u64,
    body_bytes: usize,
}

/// A receiver that listens until it is dropped.
#[derive(Debug)]
pub(crate) struct BenchReceiver {
    pub(crate) address: SocketAddr,
    /// Aborted when dropped.
    _accepting: JoinSet<()>,
}

impl BenchReceiver {
    /// Listens on a free port of an address. Calls `on` for each request before it is answered.
    pub(crate) async fn start(
        ip: Ipv4Addr,
        manner: AnswerManner,
        on: impl Fn(&WebhookHead) + Clone + Send + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await.context("cannot listen")?;
        let address = listener.local_addr()?;
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            connections.spawn(serve(stream, manner, on.clone()));
                        }
                        // No file descriptor is left.
                        Err(_) => pause(10).await,
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, _accepting: accepting })
    }
}

/// Reads and answers requests, until the connection ends.
async fn serve(stream: TcpStream, manner: AnswerManner, on: impl Fn(&WebhookHead)) {
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    let (mut line, mut body) = (String::new(), Vec::new());
    let mut head = WebhookHead::default();
    while head.read(&mut stream, &mut line).await.is_some() {
        body.resize(head.body_bytes, 0);
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        on(&head);
        let written = match manner {
            AnswerManner::Keep => stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await,
            AnswerManner::Close => {
                let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer).await;
                return;
            }
            AnswerManner::Hang => {
                // Returns when the broker closes the connection.
                let _ = stream.read_u8().await;
                return;
            }
            AnswerManner::Endless => write_endless(&mut stream).await,
        };
        if written.is_err() {
            return;
        }
    }
}

/// Writes an answer whose body never ends. Returns when the broker closes the connection.
async fn write_endless(stream: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let piece = endless_piece();
    loop {
        stream.write_all(&piece).await?;
    }
}

/// One piece of a chunked body that consists of spaces.
pub(crate) fn endless_piece() -> Vec<u8> {
    let mut piece = format!("{PIECE_BYTES:x}\r\n").into_bytes();
    piece.resize(piece.len() + PIECE_BYTES, b' ');
    piece.extend_from_slice(b"\r\n");
    piece
}

impl WebhookHead {
    /// Reads the head of the next request. Returns `None` if the connection ends before.
    async fn read(&mut self, stream: &mut BufReader<TcpStream>, line: &mut String) -> Option<()> {
        self.path.clear();
        (self.lag_ms, self.body_bytes) = (0, 0);
        loop {
            line.clear();
            if stream.read_line(line).await.ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                return Some(());
            }
            if self.path.is_empty() {
                self.path.push_str(line.split(' ').nth(1)?);
            } else if let Some(text) = line.strip_prefix("content-length: ") {
                self.body_bytes = text.trim().parse().ok()?;
            } else if let Some(text) = line.strip_prefix("punctual-lag-ms: ") {
                self.lag_ms = text.trim().parse().ok()?;
            }
        }
    }
}
