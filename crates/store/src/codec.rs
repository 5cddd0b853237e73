//! The encoding of tasks, records and dead letters, for every durable store and for messages
//! between brokers.
//!
//! Only this module defines these bytes; `tests/golden` keeps samples of each format.
//! Input may come from a damaged disk or from another program, so decoding treats it as untrusted:
//! every read returns an error instead of panicking, and no allocation trusts a length before it
//! was compared with the bytes that are left. The first byte of a body is its format. A format that
//! was ever written stays readable.
//!
//! A task is encoded as `(id, fire_at, body)`, because stores keep the first two as their key and
//! read the body only when they need it. The fields that touching, replacing and cancelling need
//! come first in the body, so that [`read_summary`] does not decode the rest.
//!
//! The modules, from parts to wholes: `bytes` (numbers, texts, times, ids), `names`, `schedule`,
//! `attempts`, `definition` (what a caller asked for), `progress` (what a task has done so far),
//! `task`, `record` (ended fires and dead letters), `due_hour`, `due_log` and `letter_groups`
//! (counts). Frames, blocks and keys are defined by each store.

mod attempts;
mod bytes;
mod definition;
mod due_hour;
mod due_log;
mod letter_groups;
mod membership;
mod names;
mod progress;
mod record;
mod schedule;
mod task;

pub use attempts::{put_result, read_result};
pub use bytes::{
    Reader, put_bytes, put_duration, put_fire_id, put_signed, put_task_id, put_timestamp,
    put_varint,
};
pub use definition::{put_new_task, put_payload, read_new_task, read_payload};
pub use due_hour::{DueStepCounts, HourCounts};
pub use due_log::{DueDifferences, read_due_log};
pub use letter_groups::{
    put_counted_group, put_letter_group, put_letter_groups, read_counted_group, read_letter_group,
    read_letter_groups,
};
pub use membership::{put_assignment, put_heartbeat, read_assignment, read_heartbeat};
pub use names::Interner;
pub use progress::{occasion_code, occasion_of};
pub use record::{
    RecordName, put_letter, put_record, read_letter, read_record, read_record_id, read_record_name,
};
pub use task::{
    Summary, put_body, put_head, put_task, read_body, read_head, read_named, read_state,
    read_summary, read_task,
};

/// The first format of every body.
const FORMAT: u8 = 1;

/// The largest number of names that an [`Interner`] shares; further names are copied.
const INTERNED_MAX: usize = 4096;

/// The largest number of elements for which memory is reserved before a list is read. No list of a
/// task is longer; a larger count may come from damaged bytes.
const PREALLOCATED_MAX: usize = 256;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end too early.
    #[error("the bytes end in the middle of: {0}")]
    Short(&'static str),
    /// The bytes hold a value that no version writes.
    #[error("the bytes hold an invalid {0}")]
    Invalid(&'static str),
    /// A newer version wrote the bytes.
    #[error("the bytes are in format {0}, which is unknown to this version of Punctual")]
    Format(u8),
}

/// The result of decoding.
pub type Decoded<T> = Result<T, CodecError>;
