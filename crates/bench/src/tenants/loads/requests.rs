//! What several loads send: tasks that are due now, and uploads.

use punctual_proto::v1::{HttpTarget, NewTask, Target, target};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::clock::millis;
use crate::connection::task;
use crate::tenants::context::{LoadContext, NAMESPACE};

/// A task that is due now, to a webhook.
pub(super) fn webhook(number: u64, url: String) -> NewTask {
    let http = HttpTarget { url, ..HttpTarget::default() };
    let target = Some(Target { to: Some(target::To::Http(http)) });
    NewTask { target, ..task(number, millis()) }
}

/// A task that is due now, in a queue.
pub(super) fn queued(number: u64, queue: String) -> NewTask {
    let target = Some(Target { to: Some(target::To::Queue(queue)) });
    NewTask { target, ..task(number, millis()) }
}

/// Begins to upload a batch. `framing` is the header that says how long the body is.
pub(super) async fn begin_upload(
    context: &LoadContext,
    framing: &str,
) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(&context.address).await?;
    let head = format!(
        "POST /v1/{NAMESPACE}/tasks HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/x-ndjson\r\n{framing}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    context.add("uploads", 1);
    Ok(stream)
}
