//! A crowd of cron and interval tasks that are due in the same second, every few seconds.

use std::net::Ipv4Addr;

use punctual_proto::v1::{Cron, Misfire, NewTask, Overlap, Series, new_task};

use super::requests::{queued, webhook};
use crate::clock::millis;
use crate::receiver::{AnswerManner, BenchReceiver};
use crate::tenants::context::LoadContext;

const TASKS: u64 = 100_000;
const QUEUE: &str = "crowd";

pub(super) async fn to_queue(context: &LoadContext) -> anyhow::Result<()> {
    schedule(context, |number| queued(number, QUEUE.to_owned())).await?;
    context.establish_for_good().await
}

pub(super) async fn to_webhooks(context: &LoadContext) -> anyhow::Result<()> {
    let counts = context.clone();
    let receive = move |_: &_| counts.add("received", 1);
    let receiver = BenchReceiver::start(Ipv4Addr::LOCALHOST, AnswerManner::Keep, receive).await?;
    let url = format!("http://{}/", receiver.address);
    schedule(context, move |number| webhook(number, url.clone())).await?;
    context.wait_for("received", 1).await?;
    context.establish_for_good().await
}

/// Schedules cron and interval tasks in turns. All are due in the same second, at least once while
/// the quiet namespace is measured.
async fn schedule(
    context: &LoadContext,
    task: impl Fn(u64) -> NewTask + Clone + Send + 'static,
) -> anyhow::Result<()> {
    let interval = context.scale.seconds.div_ceil(2).max(2);
    let begins = (millis() / 1000 / interval + 1) * interval * 1000;
    let due = move |number| {
        let expression = format!("*/{interval} * * * * *");
        let when = match number % 2 {
            0 => new_task::When::Cron(Cron { expression, ..Cron::default() }),
            _ => new_task::When::EveryMs(interval * 1000),
        };
        let series = Series {
            starts_at_ms: Some(begins),
            misfire: Misfire::Skip.into(),
            overlap: Overlap::Skip.into(),
            ..Series::default()
        };
        let key = format!("crowd-{number}");
        NewTask { key, when: Some(when), series: Some(series), ..task(number) }
    };
    context.schedule(context.sized(TASKS), due).await
}
