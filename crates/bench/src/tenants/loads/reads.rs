//! Lists and forecasts in a loop, over many tasks that fire every minute of the next year.

use anyhow::ensure;
use punctual_proto::v1::{Cron, NewTask, Series, new_task};
use tokio::task::JoinSet;

use super::requests::queued;
use crate::clock::millis;
use crate::connection::HttpConnection;
use crate::tenants::context::{LoadContext, NAMESPACE};

const TASKS: u64 = 100_000;
/// Callers of each kind.
const CALLERS: u64 = 4;
const DAY_MS: u64 = 86_400_000;

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let begins = millis() + DAY_MS;
    let due = move |number| {
        let cron = Cron { expression: "* * * * *".to_owned(), ..Cron::default() };
        NewTask {
            key: format!("minutely-{number}"),
            when: Some(new_task::When::Cron(cron)),
            series: Some(Series { starts_at_ms: Some(begins), ..Series::default() }),
            ..queued(number, "never".to_owned())
        }
    };
    context.schedule(context.sized(TASKS), due).await?;
    let mut callers = JoinSet::new();
    for (what, query) in [("lists", "tasks?limit=1000"), ("forecasts", "forecast?for=365d&step=1d")]
    {
        context.repeat(&mut callers, CALLERS, move |context, _| async move {
            read(&context, what, query).await
        });
    }
    context.wait_for("lists", 1).await?;
    context.wait_for("forecasts", 1).await?;
    context.establish_for_good().await
}

async fn read(context: &LoadContext, what: &'static str, query: &str) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(&context.address).await?;
    let path = format!("/v1/{NAMESPACE}/{query}");
    loop {
        let (status, body) = connection.request("GET", &path, "application/json", b"").await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(body));
        context.add(what, 1);
    }
}
