//! gRPC messages of almost the largest size, in a loop. Each has a payload over the limit, so the
//! broker reads all of it, refuses it and stores nothing.

use bytes::Bytes;
use punctual_proto::v1::{NewTask, ScheduleRequest};
use tokio::task::JoinSet;

use super::requests::queued;
use crate::connection::{channel, tasks};
use crate::tenants::context::{LoadContext, NAMESPACE};

const CALLERS: u64 = 8;
pub(super) const MESSAGE_BYTES: usize = 7 << 20;

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let mut callers = JoinSet::new();
    let payload = Bytes::from(vec![0; MESSAGE_BYTES]);
    context.repeat(&mut callers, CALLERS, move |context, _| {
        let payload = payload.clone();
        async move { call(&context, payload).await }
    });
    context.wait_for("messages", 1).await?;
    context.establish_for_good().await
}

async fn call(context: &LoadContext, payload: Bytes) -> anyhow::Result<()> {
    let mut tasks = tasks(channel(&context.address).await?);
    loop {
        let task = NewTask { payload: payload.clone(), ..queued(0, "never".to_owned()) };
        let namespace = NAMESPACE.to_owned();
        let request = ScheduleRequest { namespace, task: Some(task), ..ScheduleRequest::default() };
        let answer = tasks.schedule(request).await;
        context.add("messages", 1);
        match answer {
            Err(status) if status.code() == tonic::Code::InvalidArgument => {}
            Err(status) => return Err(status.into()),
            Ok(_) => anyhow::bail!("a payload over the limit was accepted"),
        }
    }
}
