//! Every limit of a task, with its reason. A limit is part of the contract: raising one is easy,
//! lowering one breaks somebody.
//!
//! Not here: limits of a running broker (connections, queues, batches), which stand beside the
//! thing that they bound.

use std::time::Duration;

/// Payload of one task. A task is a note to call somebody back, not a file transfer; 256 KiB is
/// what people know from hosted queues, and a batch of a hundred still fits one group commit.
pub const PAYLOAD_BYTES_MAX: usize = 256 * 1024;

/// Namespace names go into Redis keys, metric labels and paths: short, and plain ASCII.
pub const NAMESPACE_BYTES_MAX: usize = 64;

/// Queue names, like namespaces, are labels of metrics.
pub const QUEUE_BYTES_MAX: usize = 128;

/// A key is the caller's own name (an order number, a device path). Long enough for a path or a
/// digest with a prefix; short enough that a page of a thousand keys fits one request.
pub const KEY_BYTES_MAX: usize = 256;

/// An idempotency key is a random id or a digest of the caller's.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// How long it is known what was created under an idempotency key: longer than anybody goes on repeating a request.
pub const IDEMPOTENCY_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Content types in use are far shorter; this one is sent as a header with every attempt.
pub const CONTENT_TYPE_BYTES_MAX: usize = 128;

/// The length that browsers, proxies and servers agree to take in a request line.
pub const URL_BYTES_MAX: usize = 2048;

/// Headers that a task adds to its webhook: count, and bytes of all names and values together.
/// Servers commonly refuse 8 KiB of headers in total, and ours must fit beside them.
pub const HEADERS_MAX: usize = 32;
/// See [`HEADERS_MAX`].
pub const HEADERS_BYTES_MAX: usize = 4096;

/// Labels are for listing and grouping, not for data.
pub const LABELS_MAX: usize = 16;
/// Bytes of one label's name.
pub const LABEL_NAME_BYTES_MAX: usize = 64;
/// Bytes of one label's value.
pub const LABEL_VALUE_BYTES_MAX: usize = 256;

/// Attempts of one fire. With the longest backoff that is years; more is a loop, not a retry.
pub const ATTEMPTS_MAX: u16 = 100;
/// Attempts when the caller does not say: with the default backoff about half a minute of trying.
pub const ATTEMPTS_DEFAULT: u16 = 5;
/// Entries of a backoff list: one per further attempt.
pub const BACKOFF_LIST_MAX: usize = (ATTEMPTS_MAX - 1) as usize;
/// The longest pause between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Largest factor of an exponential backoff: from 1 s it reaches [`BACKOFF_MAX`] in three steps.
pub const BACKOFF_FACTOR_MAX: u32 = 100;

/// How long one attempt may take when the caller does not say.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The shortest useful attempt: below it even a loopback call may not make it.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// An attempt holds a place in its lane; whoever works longer extends a worker's lease instead.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);

/// Delays reach a hundred years: far beyond any use, and far from the end of [`crate::Timestamp`].
pub const DELAY_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// The shortest interval of `every` and of a watch: below it a task is a load, not a schedule.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The most that a cron or every task may be spread after its time.
pub const JITTER_MAX: Duration = Duration::from_secs(86_400);
/// A fire of a cron or every task that is found later than this was missed, and its misfire policy decides about it. Far longer
/// than a busy broker is ever late, so that lag alone never loses a fire; short enough that an outage is not made up for by a flood.
pub const MISFIRE_AFTER: Duration = Duration::from_secs(5);
/// Missed fires of one task that `fire_all` makes up for: the latest of them.
pub const MISFIRES_MAX: usize = 100;
/// How many skipped fires of one cron task are counted; of more it is only said that there were so many.
pub const SKIPS_COUNTED_MAX: u32 = 1000;
/// Fires of one task that may be under way or wait for a retry at once, where they may overlap. One more waits.
pub const OVERLAPS_MAX: usize = 16;

/// What is kept of a target's words (a status line, an error text): enough to see why.
pub const REASON_BYTES_MAX: usize = 512;

/// Partitions of a store, at most: twelve bits of the [`crate::TaskId`].
pub const PARTITIONS_MAX: u16 = 1 << 12;
