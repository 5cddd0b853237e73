//! The engine: one owner per partition, which decides everything about its tasks.
//!
//! In: commands from the API, outcomes from couriers, answers of the store, and the time. Out: batches
//! of changes for the store, deliveries for couriers, answers for callers.
//!
//! # How it is built
//!
//! The [`Owner`] is a plain value that runs nothing: [`Owner::on`] takes an [`Event`] and `now`,
//! changes its memory and leaves [`Action`]s to be done. So every race is an order of events that a
//! test can write down, and time is moved, not slept. A thin shell ([`spawn`]) runs an owner on a
//! thread of its own, which does nothing but decide and wait for time; reads, writes and
//! deliveries are done by tasks on the runtime, which come back as events.
//!
//! # The life of a task here
//!
//! `call` → `command` (`schedule`, `cancel`, `touch`, `pause`, `redrive`, each after a `look` at the store where it is about a task that
//! may exist) → `write` (durable, then the caller is answered) → `load` (up to the horizon) → `memory` (the loaded copy and its
//! timer) → `fire` → `lane` → `deliver` → `settle` → `write`. `recover` says why
//! nothing more is needed after a crash, `rewind` what is done about a store that has forgotten, `hand_over` what is told when a partition goes to another broker in peace, and `lease` until when
//! an owner acts.
//!
//! # What always holds
//!
//! - A task stays in the store until it is settled. Memory holds copies.
//! - Nothing is answered before it is durable, and nothing that was decided is undone.
//! - What a read brought is believed only if nothing about that task was decided since (`recent`).
//! - No attempt starts before `fire_at`, or after the lease.
//!
//! Not here: HTTP, gRPC, Redis, files, the machine's clock; who the other brokers are and how to reach them.

mod commands;
mod commit;
mod delivery;
mod event;
mod gauges;
mod handle;
mod loaded;
mod owner;
mod ownership;
mod shell;

pub use commands::lookup::{FoundTask, Lookup, LookupDepth, LookupResult};
pub use delivery::deliver::{Courier, Delivery, Report};
pub use event::{Action, Event};
pub use gauges::{Gauges, Skips};
pub use handle::call::{Call, Replies};
pub use handle::command::{
    Cancelled, Command, Condition, EngineError, Push, Receipt, Reply, ScheduleCommand, Scheduled,
    Subject,
};
pub use loaded::tasks::Budget;
pub use owner::Owner;
pub use ownership::hand_over::{HAND_OVER_WAIT, InFlight, OrphanReport, StoredAs};
pub use ownership::lease::LeaseEnd;
pub use ownership::recover::{Ownership, take};
pub use shell::thread::{COMMANDS_MAX, OrphanReports, OwnerConfig, OwnerHandle, Reports, spawn};
