//! The limits of a task, each with its reason.
//!
//! A limit is part of the contract with callers: it can be raised, but not lowered. Limits of a
//! running broker (connections, queues, batches) are defined next to what they limit.

use std::time::Duration;

/// Bytes of a payload. A task is a reminder, not a file transfer. 256 KiB is the limit of common
/// hosted queues, and a batch of a hundred such tasks still fits one group commit.
pub const PAYLOAD_BYTES_MAX: usize = 256 * 1024;

/// Bytes of a namespace. It is part of Redis keys, metric labels and paths.
pub const NAMESPACE_BYTES_MAX: usize = 64;

/// Bytes of the name of a queue, which is a metric label.
pub const QUEUE_BYTES_MAX: usize = 128;

/// Bytes of a key, the caller's own name of a task (an order number, a device path). Long enough
/// for a path or a digest with a prefix; short enough that a thousand keys fit one request.
pub const KEY_BYTES_MAX: usize = 256;

/// Bytes of an idempotency key, which is a random id or a digest.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// How long an idempotency key is remembered: longer than callers retry a request.
pub const IDEMPOTENCY_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Bytes of a content type. Each attempt sends it as a header; common ones are far shorter.
pub const CONTENT_TYPE_BYTES_MAX: usize = 128;

/// Bytes of a URL: what browsers, proxies and servers commonly accept.
pub const URL_BYTES_MAX: usize = 2048;

/// Bytes of the name of a gRPC method with its service.
pub const GRPC_METHOD_BYTES_MAX: usize = 512;

/// Headers that a task may add to its webhook.
pub const HEADERS_MAX: usize = 32;
/// Bytes of the names and values of all these headers. Servers commonly refuse more than 8 KiB of
/// headers, and Punctual adds its own.
pub const HEADERS_BYTES_MAX: usize = 4096;

/// Labels of a task. They are for listing and grouping, not for data.
pub const LABELS_MAX: usize = 16;
/// Bytes of the name of a label.
pub const LABEL_NAME_BYTES_MAX: usize = 64;
/// Bytes of the value of a label.
pub const LABEL_VALUE_BYTES_MAX: usize = 256;

/// Attempts of one fire. With the longest backoff they take years.
pub const ATTEMPTS_MAX: u16 = 100;
/// Attempts that are kept of one fire, the latest: those of the longest policy and of one redrive.
/// A fire can be redriven any number of times, and its record must not grow with it.
pub const ATTEMPTS_KEPT_MAX: usize = 2 * ATTEMPTS_MAX as usize;
/// Attempts by default. The pauses of the default backoff add up to 15 s.
pub const ATTEMPTS_DEFAULT: u16 = 5;
/// Entries of a backoff list: one for each attempt after the first.
pub const BACKOFF_LIST_MAX: usize = (ATTEMPTS_MAX - 1) as usize;
/// The longest pause between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30 * 86_400);
/// The largest factor of an exponential backoff: from 1 s it passes [`BACKOFF_MAX`] in four steps.
pub const BACKOFF_FACTOR_MAX: u32 = 100;

/// How long one attempt may take by default.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The shortest timeout. Even a call to the same machine may take longer than less.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// The longest timeout. An attempt in flight counts against its lane; a worker that needs longer
/// extends its lease instead.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);

/// The longest delay: a hundred years, more than any use, and far below the range of
/// [`crate::Timestamp`].
pub const DELAY_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// The shortest `expires_after`: durations are whole milliseconds, and none would expire at once.
pub const EXPIRES_AFTER_MIN: Duration = Duration::from_millis(1);

/// The shortest interval of `every` and of a watch. A shorter one would be a load generator.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The largest jitter of a cron or every task.
pub const JITTER_MAX: Duration = Duration::from_secs(86_400);
/// A fire of a cron or every task that is later than this was missed, and the misfire policy
/// applies. Far longer than the lag of a busy broker, so that lag alone never skips a fire; short
/// enough that an outage is not followed by a flood of overdue fires.
pub const MISFIRE_AFTER: Duration = Duration::from_secs(5);
/// How many missed fires of one task `fire_all` fires: the latest ones.
pub const MISFIRES_MAX: usize = 100;
/// How far skipped fires of one cron task are counted, because counting means to compute each.
pub const SKIPS_COUNTED_MAX: u32 = 1000;
/// Open fires of one task (in flight, or waiting for a retry), if they may overlap. Further ones
/// wait until one has ended.
pub const OVERLAPS_MAX: usize = 16;

/// Bytes of an answer that are kept by default: enough for an error message.
pub const ANSWER_BYTES_DEFAULT: usize = 1024;
/// Bytes of an answer that can be kept. History is bounded by bytes, so longer answers would make
/// it shorter.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// Bytes of the result that a worker sends with its ack.
pub const RESULT_BYTES_MAX: usize = 16 * 1024;
/// Bytes of the answers to all attempts of one fire, whose record is written again after each
/// attempt. The bodies of the oldest answers are dropped first.
pub const ANSWERS_KEPT_BYTES_MAX: usize = 64 * 1024;
/// Statuses of each kind that a webhook lists as success or as refusal.
pub const STATUSES_MAX: usize = 32;
/// JSON values that a webhook expects in an answer.
pub const EXPECTED_VALUES_MAX: usize = 8;
/// Bytes of a JSON pointer into an answer, and of a value that is expected there.
pub const EXPECTED_BYTES_MAX: usize = 256;

/// Bytes of the name of a connection, which is a metric label.
pub const CONNECTION_BYTES_MAX: usize = 64;
/// Bytes of the name of a statement that the configuration has.
pub const STATEMENT_BYTES_MAX: usize = 64;
/// Bytes of the name of a parameter of a statement.
pub const PARAM_NAME_BYTES_MAX: usize = 64;
/// Values that a task may give for parameters of a statement. What is large belongs in the payload.
pub const SQL_PARAMS_MAX: usize = 32;
/// Bytes of the names and values of all of them, as JSON text.
pub const SQL_PARAMS_BYTES_MAX: usize = 4096;

/// Bytes of a topic, an exchange, a subject or a stream. AMQP and Kafka allow 255 and 249.
pub const MESSAGE_PLACE_BYTES_MAX: usize = 255;
/// Bytes of the key of a record and of a routing key. AMQP allows 255.
pub const MESSAGE_KEY_BYTES_MAX: usize = 255;
/// Entries that a task may let a stream keep.
pub const STREAM_LENGTH_MAX: u64 = 1_000_000_000;

/// Bytes of the name of an alarm.
pub const ALARM_NAME_BYTES_MAX: usize = 64;
/// Alarms of one namespace. All are evaluated twice a second.
pub const ALARMS_MAX: usize = 32;
/// Mail addresses that one alarm reports to.
pub const MAIL_RECIPIENTS_MAX: usize = 16;
/// Bytes of a mail address (RFC 5321).
pub const MAIL_ADDRESS_BYTES_MAX: usize = 254;
/// Bytes of the secret of a chat robot.
pub const CHAT_SECRET_BYTES_MAX: usize = 256;
/// Bytes of the subject of a mail.
pub const MAIL_SUBJECT_BYTES_MAX: usize = 512;
/// The shortest time that an alarm looks back: alarms are evaluated twice a second.
pub const ALARM_WINDOW_MIN: Duration = Duration::from_secs(1);
/// The longest time that an alarm looks back. Every broker keeps what it measured that long.
pub const ALARM_WINDOW_MAX: Duration = Duration::from_secs(3600);
/// The largest number that an alarm counts to.
pub const ALARM_COUNT_MAX: u64 = 1_000_000_000;
/// How often a raised alarm may be reported.
pub const ALARM_REPEAT_MIN: Duration = Duration::from_secs(60);

/// Bytes of the reason of a failed attempt (a status line, an error text).
pub const REASON_BYTES_MAX: usize = 512;

/// Partitions of a store. A [`crate::TaskId`] has twelve bits for them.
pub const PARTITIONS_MAX: u16 = 1 << 12;
