//! A hostile load at work.
//!
//! A load runs on threads of its own with a low priority. In earnest it would come from other
//! machines; here it must not take the processor from the broker and from the quiet namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::context::{LoadContext, LoadServers, TenantScale};
use super::loads::{LoadSetup, TenantLoad};
use crate::clock::pause;
use crate::names::SlowNameServer;

/// How much nicer the threads of a load are than those of this process.
const NICER: i32 = 10;
/// Threads of a load.
const THREADS: usize = 2;

/// A load that runs until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct RunningLoad {
    runtime: Option<Runtime>,
    work: JoinHandle<anyhow::Result<()>>,
    context: LoadContext,
}

impl RunningLoad {
    pub(crate) fn start(
        load: TenantLoad,
        setup: &LoadSetup,
        scale: TenantScale,
        address: &str,
    ) -> anyhow::Result<Self> {
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(THREADS).enable_all().on_thread_start(lower_priority);
        let runtime = runtime.build().context("cannot start the threads of the load")?;
        let servers = LoadServers {
            questions: setup.names.as_ref().map(SlowNameServer::delayed),
            messages: setup.messages.as_ref().map(|server| Arc::clone(&server.messages)),
        };
        let context = LoadContext::new(address, scale, setup.quiet.partitions, servers);
        let own = context.clone();
        let work = runtime.spawn(async move { load.run(&own).await });
        Ok(Self { runtime: Some(runtime), work, context })
    }

    /// Waits until the load does its harm.
    pub(crate) async fn wait_until_established(&mut self, max: Duration) -> anyhow::Result<()> {
        tokio::select! {
            () = self.context.established() => Ok(()),
            ended = &mut self.work => {
                ended.context("the load panicked")?.context("the load failed")?;
                bail!("the load ended before it was measured");
            }
            () = pause_for(max) => bail!("the load was not established within {max:?}"),
        }
    }

    /// Ends the load. Returns what it did.
    pub(crate) async fn stop(mut self) -> anyhow::Result<BTreeMap<&'static str, u64>> {
        if self.work.is_finished() {
            (&mut self.work).await.context("the load panicked")?.context("the load failed")?;
            bail!("the load ended while it was measured");
        }
        Ok(self.context.counts())
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn lower_priority() {
    if let Err(error) = rustix::process::nice(NICER) {
        tracing::warn!(%error, "lowering the priority of the load failed");
    }
}

async fn pause_for(time: Duration) {
    pause(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).await;
}
