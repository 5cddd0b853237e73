//! Callers without a token: idle connections, streams, large bodies that they send slowly, and gRPC
//! messages that stop just before their end.
//!
//! All that they send and leave open together is bounded, so that a broker that keeps it all does
//! not take this machine with it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Context as _;
use bytes::Bytes;
use http_body::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::codegen::{Body, Service as _, http};

use super::messages::MESSAGE_BYTES;
use super::requests::begin_upload;
use crate::clock::pause;
use crate::connection::{channel, workers};
use crate::tenants::context::{LoadContext, NAMESPACE};
use crate::worker::BenchWorkerStream;

/// Connections without a request.
const IDLE: u64 = 500;
/// Connections that send the body of a batch of 64 MiB.
const UPLOADS: u64 = 64;
const BODY_BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 64 * 1024;
/// The pause between two pieces of an upload, in milliseconds.
const PIECE_EVERY_MS: u64 = 100;
/// Streams of workers.
const STREAMS: u64 = 64;
/// Connections with messages that stop, and messages on each: 7 MiB each, 896 MiB together.
const CONNECTIONS: u64 = 8;
const MESSAGES_EACH: usize = 16;

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let mut strangers = JoinSet::new();
    context.repeat(&mut strangers, IDLE, |context, _| async move {
        let mut stream = TcpStream::connect(&context.address).await?;
        context.add("idle connections", 1);
        let _ = stream.read_u8().await;
        Ok(())
    });
    context.repeat(&mut strangers, UPLOADS, |context, _| async move { upload(&context).await });
    context.repeat(&mut strangers, STREAMS, |context, _| async move { work(&context).await });
    context.repeat(&mut strangers, CONNECTIONS, |context, _| async move {
        send_messages(&context).await
    });
    context.wait_for("idle connections", IDLE / 2).await?;
    context.wait_for("uploads", 1).await?;
    context.wait_for("messages that stop", 1).await?;
    context.establish_for_good().await
}

async fn upload(context: &LoadContext) -> anyhow::Result<()> {
    let mut stream = begin_upload(context, &format!("content-length: {BODY_BYTES}")).await?;
    loop {
        stream.write_all(&[b' '; PIECE_BYTES]).await.context("the broker closed an upload")?;
        pause(PIECE_EVERY_MS).await;
    }
}

async fn work(context: &LoadContext) -> anyhow::Result<()> {
    let mut workers = workers(channel(&context.address).await?);
    context.add("streams", 1);
    let mut stream = BenchWorkerStream::open(&mut workers, NAMESPACE, "any", 1).await?;
    loop {
        stream.deliveries().await?;
    }
}

/// Sends messages on one connection, and waits for their answers.
async fn send_messages(context: &LoadContext) -> anyhow::Result<()> {
    let channel = channel(&context.address).await?;
    let mut calls = JoinSet::new();
    for _ in 0..MESSAGES_EACH {
        let (context, mut channel) = (context.clone(), channel.clone());
        calls.spawn(async move {
            let request = http::Request::builder()
                .method("POST")
                .uri("/punctual.v1.Tasks/Schedule")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(tonic::body::Body::new(StoppingMessage::new()))?;
            std::future::poll_fn(|cx| channel.poll_ready(cx)).await?;
            context.add("messages that stop", 1);
            channel.call(request).await?;
            anyhow::Ok(())
        });
    }
    while let Some(ended) = calls.join_next().await {
        context.add("errors", u64::from(ended?.is_err()));
    }
    Ok(())
}

/// A message of [`MESSAGE_BYTES`] whose last byte never comes.
#[derive(Debug)]
struct StoppingMessage {
    begun: bool,
    left: usize,
}

impl StoppingMessage {
    const fn new() -> Self {
        Self { begun: false, left: MESSAGE_BYTES - 1 }
    }
}

impl Body for StoppingMessage {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static PIECE: [u8; PIECE_BYTES] = [0; PIECE_BYTES];
        if !self.begun {
            self.begun = true;
            // Not compressed, and the length.
            let mut head = vec![0];
            head.extend(u32::try_from(MESSAGE_BYTES).unwrap_or(u32::MAX).to_be_bytes());
            return Poll::Ready(Some(Ok(Frame::data(head.into()))));
        }
        if self.left == 0 {
            return Poll::Pending;
        }
        let bytes = PIECE_BYTES.min(self.left);
        self.left -= bytes;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&PIECE[..bytes])))))
    }
}
