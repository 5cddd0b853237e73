//! The workloads that can be chosen, and what each of them works with.

use clap::ValueEnum;

use crate::broker::BenchBroker;
use crate::report::BenchReport;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Tasks for the next days, one at a time and in batches, over HTTP and gRPC
    Schedule,
    /// Lag to a worker: a thousand tasks per second for 20 s, and 20,000 in one millisecond
    Lag,
    /// 200,000 tasks that are due already, to workers, until acked
    Drain,
    /// 100,000 tasks that are due at once, to a webhook
    Webhook,
    /// Lag to a worker while another target hangs
    Neighbour,
    /// Watches touched by key, in batches
    Touch,
    /// Tasks cancelled by id, in batches
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
    /// Three brokers that share a Redis; needs redis-server
    Cluster,
}

/// What a workload works with.
#[derive(Debug)]
pub(crate) struct BenchContext {
    pub(crate) broker: BenchBroker,
    pub(crate) report: BenchReport,
    /// All sizes are divided by this: 10 with `--quick`, else 1.
    pub(crate) divisor: u64,
    pub(crate) seconds: u64,
    pub(crate) pending: u64,
    pub(crate) keys: u64,
}
