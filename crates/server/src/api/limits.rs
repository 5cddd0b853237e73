//! What all namespaces share at the API, and how much of it there is.
//!
//! Each limit is divided by the rule of `shares`: no namespace has more than is left for all others
//! together, so that one alone has a half. A caller beyond its share waits or is refused with 429,
//! and the answer names the limit. `docs/security.md` lists all of them.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Invalid, Namespace};
use tokio::sync::Semaphore;

use crate::problem::Problem;
use crate::shares::{ShareLimit, SharePermit, WaitBound};

/// Bytes of a body, or of a gRPC message, that is tiny, and of one that is small: the largest
/// payload in base64, and the other fields. Others are large.
pub(crate) const TINY_BYTES_MAX: usize = 16 * 1024;
pub(crate) const SMALL_BYTES_MAX: usize = 512 * 1024;

/// Bodies that are incomplete: 256 MiB if all of them are tiny.
const BODIES_MAX: usize = 16_384;
/// Incomplete bodies over [`TINY_BYTES_MAX`]: 256 MiB together.
const SMALL_BODIES_MAX: usize = 512;
/// Bodies over [`SMALL_BYTES_MAX`] that are incomplete or in use: 512 MiB together.
const LARGE_BODIES_MAX: usize = 8;
/// Lists and forecasts that read the store at once: each may take a processor for a second.
const READS_MAX: usize = 8;
/// Long polls, worker streams and batch streams: some kilobytes each, as long as a client wants.
const STREAMS_MAX: usize = 8_192;
/// Live streams: a page in a browser has one, some kilobytes each.
const LIVE_STREAMS_MAX: usize = 512;
/// Batches of streams whose responses were not read: up to two megabytes each.
const BATCHES_MAX: usize = 128;
/// Health watches, which need no token.
const WATCHES_MAX: usize = 1_024;

/// Tasks, keys, ids or tokens in one call: owners decide as many in some tens of milliseconds.
pub(crate) const BATCH_MAX: usize = 10_000;

/// Checks that a list has at most [`BATCH_MAX`] entries.
pub(crate) fn check_count(field: &str, count: usize) -> Result<(), Invalid> {
    if count <= BATCH_MAX {
        return Ok(());
    }
    let problem = format!("must have at most {BATCH_MAX} entries, has {count}");
    Err(Invalid::new(field, problem))
}

/// The share of an admin whose call names no namespace. No caller can have this name, so it takes
/// no share of a namespace.
pub(crate) fn admin_share() -> Result<Namespace, Invalid> {
    Ok(Namespace::new("admin")?.of_receipts())
}

/// A caller of these limits is refused at once.
const NO_WAIT: WaitBound = WaitBound { callers_max: 0, time_max: Duration::ZERO };
/// Each body that waits holds what the client has sent ahead: a quarter of a megabyte.
const BODY_WAIT: WaitBound = WaitBound { callers_max: 256, time_max: Duration::from_secs(10) };
/// Each stream waits for one batch at a time, which has a permit as a body.
const BATCH_WAIT: WaitBound =
    WaitBound { callers_max: STREAMS_MAX, time_max: Duration::from_secs(30) };
/// A list that waits holds nothing but its connection.
const READ_WAIT: WaitBound = WaitBound { callers_max: 64, time_max: Duration::from_secs(30) };

/// The limits of one broker.
#[derive(Debug)]
pub(crate) struct ApiLimits {
    tiny_bodies: ShareLimit,
    small_bodies: ShareLimit,
    large_bodies: ShareLimit,
    pub(crate) reads: ShareLimit,
    pub(crate) streams: ShareLimit,
    pub(crate) live_streams: ShareLimit,
    pub(crate) batches: ShareLimit,
    pub(crate) watches: Arc<Semaphore>,
}

/// How much memory a body takes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BodySize {
    Tiny,
    Small,
    Large,
}

impl BodySize {
    pub(crate) const fn of(bytes: usize) -> Self {
        if bytes <= TINY_BYTES_MAX {
            Self::Tiny
        } else if bytes <= SMALL_BYTES_MAX {
            Self::Small
        } else {
            Self::Large
        }
    }
}

impl ApiLimits {
    pub(crate) fn new() -> Self {
        Self {
            tiny_bodies: ShareLimit::new(BODIES_MAX, "bodies in progress", NO_WAIT),
            small_bodies: ShareLimit::new(
                SMALL_BODIES_MAX,
                "bodies over 16 KiB in progress",
                BODY_WAIT,
            ),
            large_bodies: ShareLimit::new(
                LARGE_BODIES_MAX,
                "bodies over 512 KiB in progress",
                BODY_WAIT,
            ),
            reads: ShareLimit::new(READS_MAX, "lists and forecasts in progress", READ_WAIT),
            streams: ShareLimit::new(STREAMS_MAX, "long polls and streams", NO_WAIT),
            live_streams: ShareLimit::new(LIVE_STREAMS_MAX, "live streams", NO_WAIT),
            batches: ShareLimit::new(BATCHES_MAX, "unread batches of streams", BATCH_WAIT),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
        }
    }

    /// Waits for a permit to keep more of a body of this size.
    pub(crate) async fn body(
        &self,
        size: BodySize,
        namespace: &Namespace,
    ) -> Result<SharePermit, Problem> {
        match size {
            BodySize::Tiny => self.tiny_bodies.try_acquire(namespace),
            BodySize::Small => self.small_bodies.acquire(namespace).await,
            BodySize::Large => self.large_bodies.acquire(namespace).await,
        }
    }

    /// The problem of a health watch beyond the limit.
    pub(crate) fn too_many_watches() -> Problem {
        Problem::all_in_use(WATCHES_MAX, "health watches")
    }
}
