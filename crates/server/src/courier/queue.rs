//! Deliveries to queues: workers take them on a stream with credit, or by long poll.
//!
//! The `hub` keeps one `line` per queue and a `lease` per delivery that a worker has. A worker
//! reports a `settlement` under the token of the lease; the hub passes the outcome to the owner.
//! `worker` connects workers and polls with the hub until they go away. In a cluster, `poll` also
//! polls at the other brokers and sends each settlement to the broker that gave the lease.
//! `worker_view` lists the workers.

mod hub;
mod ids;
mod lease;
mod line;
pub(crate) mod poll;
mod poll_options;
mod queued_delivery;
mod report_batch;
mod settlement;
mod token;
mod worker;
mod worker_label;
mod worker_view;

pub(crate) use hub::Hub;
pub(crate) use poll_options::PollOptions;
pub(crate) use settlement::{Leased, SettleResult, SettleScope, Settlement, WorkerResult};
pub(crate) use token::LeaseToken;
pub(crate) use worker::StreamWorker;
pub(crate) use worker_label::{WORKER_NAME_BYTES_MAX, WORKERS_MAX, WorkerLabel, WorkerView};
