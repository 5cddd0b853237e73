//! Bodies that never end: chunked uploads to the broker, and answers of receivers.

use anyhow::Context as _;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use super::origins::HostileOrigins;
use super::requests::{begin_upload, webhook};
use crate::clock::pause;
use crate::receiver::{AnswerManner, endless_piece};
use crate::tenants::context::LoadContext;

const UPLOADS: u64 = 16;
/// The pause between two pieces of 16 KiB of an upload, in milliseconds: all uploads together send
/// 25 MiB per second.
const PIECE_EVERY_MS: u64 = 10;
const ORIGINS: u16 = 32;
const WEBHOOKS: u64 = 5000;

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let mut uploads = JoinSet::new();
    context.repeat(&mut uploads, UPLOADS, |context, _| async move { upload(&context).await });
    let what = "endless answers";
    let origins = HostileOrigins::start(context, ORIGINS, AnswerManner::Endless, what).await?;
    let url = origins.in_turns();
    context.schedule(WEBHOOKS, move |number| webhook(number, url(number))).await?;
    context.wait_for("uploads", 1).await?;
    context.wait_for(what, 1).await?;
    context.establish_for_good().await
}

async fn upload(context: &LoadContext) -> anyhow::Result<()> {
    let mut stream = begin_upload(context, "transfer-encoding: chunked").await?;
    let piece = endless_piece();
    loop {
        stream.write_all(&piece).await.context("the broker closed an upload")?;
        pause(PIECE_EVERY_MS).await;
    }
}
