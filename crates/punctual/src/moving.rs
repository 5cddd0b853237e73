//! Moving house: `punctual export` writes everything that a store has into one file, `punctual import` puts it into another store.
//!
//! In: a store that no broker has open (or a Redis), and a file. Out: a file, or a store; and how much of what. Both run in a stream, so that
//! size takes time and no memory. What moves and what does not is said in `docs/moving.md`.
//! Next door: `form` is what a line looks like, `file` whether a file is whole, `house` the two kinds of store.

mod export;
mod file;
mod form;
mod house;
mod import;
mod seats;

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use export::{Export, export};
pub(crate) use import::{Import, import};
use indicatif::{ProgressBar, ProgressStyle};
use punctual_core::Timestamp;

/// Which store.
#[derive(Debug, clap::Args)]
pub(crate) struct Where {
    #[command(flatten)]
    kind: Kind,

    /// The name of the cluster in Redis
    #[arg(long, value_name = "NAME", default_value = "punctual")]
    cluster: String,

    /// Whom to believe that a Redis with TLS is the right one: a file of certificates, instead of the public authorities
    #[arg(long, value_name = "FILE")]
    redis_ca: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Kind {
    /// The data directory of a broker that is not running
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// A Redis; may be given more than once
    #[arg(long, value_name = "URL")]
    redis: Vec<String>,
}

/// What this machine's clock shows: leases and letters of a store are dated by it.
#[expect(clippy::disallowed_methods, reason = "there is no broker here whose clock could be asked")]
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Waits before something is tried again.
async fn pause(pause: Duration) {
    let mut ticks = tokio::time::interval(pause);
    ticks.tick().await;
    ticks.tick().await;
}

/// How far it is, for whoever watches a terminal.
fn bar(length: Option<u64>, what: &str) -> ProgressBar {
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = match length {
        Some(_) => "{msg} {wide_bar} {percent}% {eta}",
        None => "{msg} {spinner} {human_pos} {per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}
