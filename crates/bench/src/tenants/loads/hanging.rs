//! Origins that accept connections and never answer, each with many due webhooks.

use punctual_proto::v1::NewTask;

use super::origins::HostileOrigins;
use super::requests::webhook;
use crate::receiver::AnswerManner;
use crate::tenants::context::LoadContext;

/// Webhooks to all origins together. More than a broker has connections.
const WEBHOOKS: u64 = 20_000;
/// How long an attempt may take: longer than the row.
const TIMEOUT_MS: u64 = 300_000;

pub(super) async fn run(context: &LoadContext, origins: u16) -> anyhow::Result<()> {
    let what = "attempts that hang";
    let origins = HostileOrigins::start(context, origins, AnswerManner::Hang, what).await?;
    let url = origins.in_turns();
    let due = move |number| NewTask { timeout_ms: TIMEOUT_MS, ..webhook(number, url(number)) };
    context.schedule(WEBHOOKS, due).await?;
    context.wait_until_steady(what).await?;
    context.establish_for_good().await
}
