//! The workloads that can be chosen, and what each of them works with.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::broker::BenchBroker;
use crate::connected::ConnectedDatabase;
use crate::peer::BenchPeer;
use crate::report::BenchReport;
use crate::store::BenchStore;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Tasks for the next days, one at a time and in batches, over HTTP, gRPC and the Rust client
    Schedule,
    /// Lag to a worker: a thousand tasks per second for 20 s, and 20,000 in one millisecond
    Lag,
    /// 200,000 tasks that are due already, to workers, until acked
    Drain,
    /// 100,000 tasks that are due at once, to a webhook
    Webhook,
    /// Lag to a worker while another target hangs
    Neighbour,
    /// Watches touched and tasks postponed by key, one at a time and in batches; memory afterwards
    Touch,
    /// Tasks cancelled by key and by id, one at a time and in batches
    Cancel,
    /// Time until a broker that was killed answers again
    Restart,
    /// Memory and disk of many pending tasks
    Pending,
    /// Ten thousand tasks that fire each second for a minute, to a worker
    Every,
    /// A hundred thousand cron tasks at the same second, and the lag of another namespace
    Cron,
    /// A hundred thousand watches touched every ten seconds, of which a thousand fall silent
    Watch,
    /// Tasks from being scheduled in batches until they are acked and settled, and what they cost
    Life,
    /// The same at a tenth of many pending tasks, and at all of them; time until the first fire
    Growth,
    /// Rows of an outbox in transactions of ten until they are tasks, and how late single ones are
    Outbox,
    /// Tasks whose target is an SQL statement, until it is committed
    SqlTarget,
    /// Three brokers that share a Redis; needs redis-server
    Cluster,
}

impl Workload {
    /// Whether it needs a database that a connection of the broker names.
    pub(crate) const fn is_connected(self) -> bool {
        matches!(self, Self::Outbox | Self::SqlTarget)
    }

    /// Whether it runs if no workload is named. The others need a server, or many minutes.
    pub(crate) const fn is_default(self) -> bool {
        !matches!(self, Self::Growth | Self::Outbox | Self::SqlTarget)
    }
}

/// What a workload works with.
#[derive(Debug)]
pub(crate) struct BenchContext {
    pub(crate) broker: BenchBroker,
    pub(crate) report: BenchReport,
    /// All sizes are divided by this: 10 with `--quick`, else 1.
    pub(crate) divisor: u64,
    /// How long each rate is measured.
    pub(crate) length: Duration,
    /// How often each rate is measured.
    pub(crate) rounds: usize,
    /// The store of the broker.
    pub(crate) store: BenchStore,
    /// The database that a connection of the broker names, in workloads that need one.
    pub(crate) connected: Option<ConnectedDatabase>,
    /// The system that runs beside the broker.
    pub(crate) peer: Option<BenchPeer>,
    /// Where directories for data are created.
    pub(crate) dir: PathBuf,
    pub(crate) pending: u64,
    pub(crate) keys: u64,
}

impl BenchContext {
    /// Empties the stores of the broker and of the system beside it.
    pub(crate) async fn renew(&mut self) -> anyhow::Result<()> {
        self.broker.renew(&self.store).await?;
        if let Some(peer) = self.peer.take() {
            self.peer = Some(peer.renew(&self.dir).await?);
        }
        Ok(())
    }
}
