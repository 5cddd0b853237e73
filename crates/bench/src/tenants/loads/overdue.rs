//! Overdue tasks that no worker takes, in one queue or in many. More are added all the time.

use punctual_proto::v1::{NewTask, new_task};

use super::requests::queued;
use crate::clock::{millis, pause};
use crate::tenants::context::LoadContext;

const TASKS: u64 = 1_000_000;
/// How many are added per second.
const ADDED: u64 = 1000;
/// How late they are.
const LATE_MS: u64 = 1000;

pub(super) async fn run(context: &LoadContext, queues: u64) -> anyhow::Result<()> {
    let due = move |number| NewTask {
        when: Some(new_task::When::AtMs(millis() - LATE_MS)),
        ..queued(number, format!("queue-{}", number % queues))
    };
    context.schedule(context.sized(TASKS), due).await?;
    context.establish();
    loop {
        context.schedule(ADDED, due).await?;
        pause(1000).await;
    }
}
