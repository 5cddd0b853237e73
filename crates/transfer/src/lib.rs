//! Export and import: everything in a store is written to one file, and read into another store.
//!
//! [`export`] and [`import`] both stream, so a store of any size needs little memory. `format`
//! defines the lines of the file, `file` notices a truncated or changed file, `leases` holds all
//! partitions while an import writes. `docs/export-import.md` lists what is transferred.
//!
//! The crate prints nothing: it reports to the caller by [`TransferEvent`]s.

mod export;
mod file;
mod format;
mod import;
mod leases;
mod store;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_core::Timestamp;

pub use export::{ExportOptions, ExportOutput, ExportSummary, export};
pub use import::{ImportInput, ImportOptions, ImportSummary, import};

/// What happens during an export or an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferEvent {
    /// Something that the operator should know, as one sentence.
    Notice(String),
    /// The transfer begins. `total` is how far [`TransferEvent::Progress`] will go, if known.
    Started {
        /// Tasks and dead letters of an export; bytes of a file that is imported.
        total: Option<u64>,
    },
    /// How far the transfer is: in the unit of `total`, or in lines if `total` is not known.
    Progress(u64),
    /// All lines have been written or read.
    Finished,
}

/// Receives the events of a transfer.
pub type OnEvent<'a> = &'a mut dyn FnMut(TransferEvent);

/// The time of this machine's clock.
#[expect(clippy::disallowed_methods, reason = "no broker runs here whose clock could be used")]
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Waits before a retry.
async fn pause(pause: Duration) {
    let mut ticks = tokio::time::interval(pause);
    ticks.tick().await;
    ticks.tick().await;
}
