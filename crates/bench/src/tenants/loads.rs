//! The hostile loads, one file each, and what each needs of the broker and of the quiet namespace.
//!
//! Each has bounds of its own, so that this machine survives a broker that has none.

mod bodies;
mod connections;
mod cron;
mod dead_letters;
mod hanging;
mod held;
mod idle;
mod messages;
mod names;
mod origins;
mod overdue;
mod reads;
mod requests;
mod strangers;
mod uploads;

use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;

use connections::HangingServer;

use super::context::{LoadContext, TenantScale};
use super::quiet::{LargeBatches, QuietPlan};
use crate::names::{FAST_HOST, SlowNameServer};
use crate::receiver::AnswerManner;

/// How long the lookup of a slow name takes: less than the broker's timeout.
const LOOKUP: Duration = Duration::from_millis(4500);
/// The token of the quiet namespace, and the flag for it.
const TOKEN: &str = "the-token-of-the-quiet-namespace";
const TOKEN_FLAG: &str = "quiet=the-token-of-the-quiet-namespace";
/// How much more memory strangers may cost.
const STRANGERS_BYTES_MAX: u64 = 64 << 20;
/// In a quick run: so many partitions that the budget of one owner is the smallest.
const PARTITIONS_QUICK: u16 = 40;
const PARTITIONS_QUICK_FLAG: &str = "40";

/// A hostile load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TenantLoad {
    /// Webhooks to 100 origins that accept connections and never answer
    HangingOrigins,
    /// Webhooks to 1,000 origins that accept connections and never answer
    HangingOriginsMany,
    /// Webhooks to 5,000 origins that never answer: more than a broker has connections
    HangingOriginsMost,
    /// Webhooks to 100 origins that never answer, and 64 connections in total
    HangingOriginsFewConnections,
    /// Messages to a connection whose server confirms none
    HangingConnection,
    /// Webhooks to 200 host names whose lookup takes 4.5 s; needs root
    SlowNames,
    /// 64 uploads of a batch that stop in the middle
    StalledUploads,
    /// Uploads and answers of receivers that never end
    EndlessBodies,
    /// 100,000 tasks every few seconds, to a queue without workers
    CronToQueue,
    /// 100,000 tasks every few seconds, to a fast receiver
    CronToWebhooks,
    /// A million overdue tasks in a queue without workers
    OverdueQueue,
    /// A million overdue tasks in 10,000 queues without workers
    OverdueQueues,
    /// Workers that lease more deliveries than the broker has memory for, and settle none
    HeldDeliveries,
    /// 100,000 dead letters, listed and redriven in a loop
    DeadLetters,
    /// 10,000 worker streams and 10,000 connections without anything to do
    IdleStreams,
    /// gRPC messages of 7 MiB in a loop
    LargeMessages,
    /// Lists and forecasts in a loop
    TightReads,
    /// Connections, streams and large bodies without a token
    Strangers,
}

/// What a load needs before the broker starts.
#[derive(Debug)]
pub(crate) struct LoadSetup {
    pub(crate) flags: Vec<String>,
    pub(crate) names: Option<SlowNameServer>,
    pub(crate) messages: Option<HangingServer>,
    pub(crate) quiet: QuietPlan,
}

impl TenantLoad {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// How much more memory the broker may have during the load, in bytes, if that is limited.
    pub(crate) const fn memory_above_max(self) -> Option<u64> {
        match self {
            Self::Strangers => Some(STRANGERS_BYTES_MAX),
            _ => None,
        }
    }

    pub(crate) fn setup(self, scale: TenantScale) -> anyhow::Result<LoadSetup> {
        let quiet = QuietPlan::new(scale.seconds);
        let mut setup = LoadSetup { flags: Vec::new(), names: None, messages: None, quiet };
        match self {
            Self::HangingOriginsFewConnections => {
                setup.flags = flags(["--webhook-connections", "64"]);
            }
            Self::HangingConnection => {
                let server = HangingServer::start()?;
                setup.flags = flags(["--config", &server.config.to_string_lossy()]);
                setup.messages = Some(server);
            }
            Self::SlowNames => {
                let names = SlowNameServer::start();
                let names = names.context("skipped: a name server needs root for port 53")?;
                names.delay(LOOKUP);
                setup.names = Some(names);
                setup.quiet.host = FAST_HOST;
                setup.quiet.manner = AnswerManner::Close;
            }
            Self::StalledUploads => setup.quiet.large = LargeBatches::Sent,
            Self::HeldDeliveries if scale.divisor > 1 => {
                setup.flags = flags(["--partitions", PARTITIONS_QUICK_FLAG]);
                setup.quiet.partitions = Some(PARTITIONS_QUICK);
            }
            Self::Strangers => {
                setup.flags = flags(["--token", TOKEN_FLAG]);
                setup.quiet.token = Some(TOKEN);
            }
            _ => {}
        }
        Ok(setup)
    }

    /// Runs the load. Returns only with an error.
    pub(crate) async fn run(self, context: &LoadContext) -> anyhow::Result<()> {
        match self {
            Self::HangingOrigins | Self::HangingOriginsFewConnections => {
                hanging::run(context, 100).await
            }
            Self::HangingOriginsMany => hanging::run(context, 1000).await,
            Self::HangingOriginsMost => hanging::run(context, 5000).await,
            Self::HangingConnection => connections::run(context).await,
            Self::SlowNames => names::run(context).await,
            Self::StalledUploads => uploads::run(context).await,
            Self::EndlessBodies => bodies::run(context).await,
            Self::CronToQueue => cron::to_queue(context).await,
            Self::CronToWebhooks => cron::to_webhooks(context).await,
            Self::OverdueQueue => overdue::run(context, 1).await,
            Self::OverdueQueues => overdue::run(context, 10_000).await,
            Self::HeldDeliveries => held::run(context).await,
            Self::DeadLetters => dead_letters::run(context).await,
            Self::IdleStreams => idle::run(context).await,
            Self::LargeMessages => messages::run(context).await,
            Self::TightReads => reads::run(context).await,
            Self::Strangers => strangers::run(context).await,
        }
    }
}

/// A flag and its value.
fn flags(flag: [&str; 2]) -> Vec<String> {
    flag.map(str::to_owned).to_vec()
}
