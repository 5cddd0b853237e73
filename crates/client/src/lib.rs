//! The client of Punctual, a timer service: tell it when, it calls you back on time.
//!
//! Schedule a task, and work on it when it is due:
//!
//! ```no_run
//! use std::time::Duration;
//! use punctual_client::{Client, Dedup, Failure};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:7400")?;
//! let shop = client.namespace("shop");
//!
//! // An order that is not paid in 15 minutes is to be cancelled.
//! shop.task()
//!     .key("order-42")
//!     .delay(Duration::from_secs(15 * 60))
//!     .queue("unpaid")
//!     .payload_json(&serde_json::json!({"order": 42}))
//!     .schedule()
//!     .await?;
//!
//! // It was paid: after `Cancelled` it never fires.
//! shop.cancel("order-42").await?;
//!
//! // Elsewhere, until Ctrl-C:
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
//! Calls to [`NewTask::schedule`] that are under way at once travel together by themselves. A connection is made by
//! the first call, and made again with growing pauses when it broke; what is asked again by itself, and what is not,
//! is said at each call.
//!
//! In: wishes of the caller. Out: messages of `punctual-proto`, and answers.
//! Invariant: every line, batch and wait has a bound. Not here: what a broker makes of it.

mod batch;
mod brokers;
mod client;
mod clock;
mod dedup;
mod error;
mod namespace;
mod task;
mod time;
mod wire;
mod worker;

pub use crate::client::{Client, ClientBuilder};
pub use crate::dedup::{Dedup, Seen};
pub use crate::error::{Error, Problem};
pub use crate::namespace::{CancelResult, List, Namespace, Page, Touch, Touched};
pub use crate::task::{
    Gap, Guarantee, Misfire, NewTask, Overlap, Retry, Scheduled, Task, TaskId, TaskState, Twice,
};
pub use crate::time::Timestamp;
pub use crate::worker::{
    Delivery, Failure, FireId, Occasion, RunningWorker, Worked, Worker, WorkerBuilder,
};
