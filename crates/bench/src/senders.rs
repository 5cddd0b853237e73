//! Senders: tasks that send load at once, each on a connection of its own.

use std::time::Duration;

use anyhow::Context as _;

use crate::clock::BenchTimer;

/// Until when senders send. Each has its own copy, and sends once at least: on a busy machine, the
/// time may be over before it is connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendTime {
    timer: BenchTimer,
    length: Duration,
    asked: bool,
}

impl SendTime {
    pub(crate) fn start(length: Duration) -> Self {
        Self { timer: BenchTimer::start(), length, asked: false }
    }

    /// Whether the time is over. Not when it is asked for the first time.
    pub(crate) fn is_over(&mut self) -> bool {
        std::mem::replace(&mut self.asked, true) && self.timer.elapsed() >= self.length
    }
}

/// Runs this many senders, numbered from 0, and waits for all of them. Returns the sum of what they
/// return: how much they have done.
pub(crate) async fn run<F>(senders: u64, sender: impl Fn(u64) -> F) -> anyhow::Result<u64>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let running: Vec<_> = (0..senders).map(|number| tokio::spawn(sender(number))).collect();
    let mut done = 0;
    for sender in running {
        done += sender.await.context("a sender panicked")??;
    }
    Ok(done)
}
