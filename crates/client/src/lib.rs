//! The Rust client of Punctual, a timer service.
//!
//! A program schedules tasks, and a worker receives them when they are due:
//!
//! ```no_run
//! use std::time::Duration;
//! use punctual_client::{Client, Dedup, Failure};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:7400")?;
//! let shop = client.namespace("shop");
//!
//! // Cancel the order if it is not paid within 15 minutes.
//! shop.task()
//!     .key("order-42")
//!     .delay(Duration::from_secs(15 * 60))
//!     .queue("unpaid")
//!     .payload_json(&serde_json::json!({"order": 42}))
//!     .schedule()
//!     .await?;
//!
//! // The order was paid: cancel the task. After `CancelResult::Cancelled` it never fires.
//! shop.cancel("order-42").await?;
//!
//! // In another program:
//! let worker = shop
//!     .worker("unpaid")
//!     .concurrency(64)
//!     .dedup(Dedup::in_memory(100_000))
//!     .handler(|delivery| async move {
//!         let order: serde_json::Value = delivery.json()?;
//!         println!("{order} was not paid");
//!         Ok::<_, Failure>(())
//!     })
//!     .spawn();
//! // …
//! worker.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Concurrent calls to [`NewTask::schedule`] are sent together in batches, and so are those to
//! [`Namespace::cancel`] and [`Namespace::touch`]. A call that is alone waits for no other. The
//! first call connects;
//! a broken connection is made again, with growing pauses. Each method documents whether the client
//! repeats the call when its answer is lost. All queues, batches and waits are bounded.

use std::pin::Pin;

mod alarm;
mod answer;
mod batch;
mod brokers;
mod client;
mod clock;
mod dedup;
mod delivery;
mod error;
mod failure;
mod gather;
mod namespace;
mod record;
mod task;
mod task_id;
mod time;
pub mod webhook;
mod wire;
mod worker;

/// A future of a handler or of a dedup table.
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub use crate::alarm::{
    AlarmInfo, AlarmWhen, ChatTarget, MeasuredValue, NewAlarm, NoticeInfo, NoticeProgress,
    NoticeTarget, RobotKind,
};
pub use crate::answer::{CancelResult, Page, Touched};
pub use crate::client::reads::{CronExpression, CronPreview, NamespaceInfo, NamespacePage, WhoAmI};
pub use crate::client::{Client, ClientBuilder};
pub use crate::dedup::{Dedup, FireSeen as Seen};
pub use crate::delivery::{Delivery, FireId, Occasion};
pub use crate::error::{Error, ExistingTask, Problem};
pub use crate::failure::Failure;
pub use crate::namespace::alarms::Alarms;
pub use crate::namespace::live::{ActionInfo, ActionPage, Lags, Live, LiveSecond};
pub use crate::namespace::operations::{
    MeasuredPoint, MeasuredSeries, OperationFilter, OperationInfo, OperationMatches, OperationVerb,
};
pub use crate::namespace::polling::{LeaseOptions, LeasedDelivery, SettleAnswer};
pub use crate::namespace::reads::Fires;
pub use crate::namespace::rules::RuleInfo;
pub use crate::namespace::{List, Namespace, Touch};
pub use crate::record::{
    Attempt, DeadGroup, DeadGroupFilter, DeadGroups, DeadLetterInfo, DeadLetters, Explanation,
    FireEnd, FireInfo, FirePage, Forecast, LaneFailure, LaneInfo, LaneList, NextFire, QueueInfo,
    Redriven, SkippedTimes, Stats, WebhookAnswer, WorkerInfo,
};
pub use crate::task::{
    Gap, Guarantee, Misfire, NewTask, Overlap, Retry, Scheduled, Target, Task, TaskState, Twice,
};
pub use crate::task_id::TaskId;
pub use crate::time::Timestamp;
pub use crate::worker::{RunningWorker, Worker, WorkerBuilder, WorkerCounts};
