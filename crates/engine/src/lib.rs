//! The engine: one owner per partition, which decides everything about its tasks.
//!
//! # Design
//!
//! The [`Owner`] is a plain value without threads or I/O: [`Owner::on`] takes an [`Event`] and
//! `now`, [`Owner::act`] returns the [`Action`]s to carry out. Every race is an order of events
//! that a test can write down, and tests move time instead of sleeping. A thin shell ([`spawn`])
//! runs an owner on a thread of its own, which only decides and waits for time; reads, writes and
//! deliveries run on the runtime and come back as events.
//!
//! # The path of a task
//!
//! A call arrives through `handle`. `commands` decides each of its commands against what the store
//! has. `commit` writes the decision; when it is durable, the caller is answered. `loaded` copies
//! tasks that are due soon into memory and fires them. `delivery` sends them, lane by lane, and
//! settles their outcomes with a decision again. `ownership` has the lease, the hand-over to
//! another broker and what happens after a crash. `shell` is the thread. `owner` has the state and
//! the order of work.
//!
//! # Guarantees
//!
//! - A task stays in the store until it is settled. Memory holds copies.
//! - A command is answered only after its decision is durable, and no decision is taken back then.
//! - The result of a read is used only if no decision about the task was made since
//!   (`commands::read_tracker`).
//! - No attempt starts before `fire_at`, or after the lease.
//!
//! HTTP, gRPC, Redis, files and the machine's clock are in other crates, and so is the choice of
//! who owns which partition.

#[cfg(feature = "checks")]
mod callback_ledger;
mod commands;
mod commit;
mod delivery;
mod event;
mod gauges;
mod handle;
mod idle;
mod loaded;
mod owner;
mod ownership;
mod shares;
mod shell;

#[cfg(feature = "checks")]
pub use callback_ledger::CallbackLedger;
pub use commands::lookup::{FoundTask, Lookup, LookupDepth, LookupResult};
pub use delivery::attempt::{Delivery, Report};
pub use delivery::courier::Courier;
pub use delivery::lane::{ConnectionState, LaneTarget};
pub use delivery::lane_failures::{FAILURES_KEPT, LastFailure};
pub use delivery::lane_view::{LANES_MAX, LaneQuery, LaneView, OwnerView};
pub use delivery::permit::{NotSendable, SendPermit};
pub use event::{Action, Event};
pub use gauges::{Gauges, Skips};
pub use handle::call::{Call, Replies};
pub use handle::command::{
    Command, Condition, Receipt, ScheduleCommand, StartState, Subject, TouchTo,
};
pub use handle::error::EngineError;
pub use handle::owner_handle::{COMMANDS_MAX, OwnerHandle};
pub use handle::reply::{Cancelled, Reply, Scheduled};
pub use idle::IdleReport;
pub use loaded::budget::Budget;
pub use owner::{Owner, OwnerConfig};
pub use ownership::in_flight::{HAND_OVER_WAIT, InFlight, OrphanReport, StoredAs};
pub use ownership::lease::LeaseEnd;
pub use ownership::recover::{Ownership, take};
pub use shell::failure::OwnerFailure;
pub use shell::message::{CollectedReports, OrphanReports, Reports};
pub use shell::thread::spawn;
