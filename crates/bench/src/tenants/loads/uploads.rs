//! Uploads that stop in the middle: connections that announce a batch of 4 MiB, send a part of it
//! at once, and then one byte a second.

use anyhow::Context as _;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use super::requests::begin_upload;
use crate::clock::pause;
use crate::tenants::context::LoadContext;

const UPLOADS: u64 = 64;
const BODY_BYTES: usize = 4 << 20;
/// What is sent at once: more than 512 KiB, so that a broker takes it for a large batch by what
/// has come as well as by what was announced.
const FIRST_BYTES: usize = 576 * 1024;

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let mut uploads = JoinSet::new();
    context.repeat(&mut uploads, UPLOADS, |context, _| async move { upload(&context).await });
    context.wait_for("uploads", UPLOADS / 2).await?;
    // Until the first parts are read.
    pause(500).await;
    context.establish_for_good().await
}

async fn upload(context: &LoadContext) -> anyhow::Result<()> {
    let mut stream = begin_upload(context, &format!("content-length: {BODY_BYTES}")).await?;
    stream.write_all(&vec![b' '; FIRST_BYTES]).await?;
    loop {
        pause(1000).await;
        stream.write_all(b" ").await.context("the broker closed an upload")?;
    }
}
