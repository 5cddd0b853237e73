//! Bytes of tasks, records and letters: the only place that spells them, for every durable store and for what brokers
//! say to each other.
//!
//! In: a value. Out: compact bytes, and back. What is read may come from a damaged disk or a foreign hand,
//! so it is parsed as untrusted: every read is a `Result`, nothing panics, nothing is allocated by a length that was
//! not checked against what is there. The first byte of a body is the format; an old format is read for ever.
//!
//! A task is `(id, fire_at, body)`, because stores keep the first two as their key and ask for the body only when
//! they need it. What touching, replacing and cancelling take stands first in the body, so that a
//! [`Summary`] does not read the rest.
//!
//! Rooms, from the smallest part to the whole: `bytes` (numbers, texts, times, ids), `names`, `schedule`, `attempts`, `definition` (what a
//! caller asked for), `course`, `task`, `record` (fires that are over, dead letters).
//! Not here: frames, blocks and keys, which are each store's own.

mod attempts;
mod bytes;
mod definition;
mod names;
mod progress;
mod record;
mod schedule;
mod task;

pub use attempts::{put_outcome, read_outcome};
pub use bytes::{
    Reader, put_bytes, put_duration, put_fire_id, put_signed, put_task_id, put_timestamp,
    put_varint,
};
pub use definition::{put_new_task, put_payload, read_new_task, read_payload};
pub use names::Interner;
pub use progress::{occasion_code, occasion_of};
pub use record::{
    put_letter, put_record, read_letter, read_record, read_record_id, read_record_name,
};
pub use task::{
    Summary, put_body, put_head, put_task, read_body, read_head, read_named, read_state,
    read_summary, read_task,
};

/// The format of bodies.
const FORMAT: u8 = 1;

/// Names that an [`Interner`] shares, at most; beyond it they are copied.
const INTERNED_MAX: usize = 4096;

/// Places made ready for a list before it is read: as many as any list of a task has. A list that says more may lie.
const PREALLOCATED_MAX: usize = 128;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// They end too early.
    #[error("the bytes end within {0}")]
    Short(&'static str),
    /// They hold what nobody writes.
    #[error("the bytes hold no valid {0}")]
    Invalid(&'static str),
    /// A newer program wrote them.
    #[error("the bytes are of format {0}, which this program does not know")]
    Format(u8),
}

pub type Decoded<T> = Result<T, CodecError>;
