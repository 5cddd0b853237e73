//! Senders: tasks that send load at once, each on a connection of its own.

use std::time::Duration;

use anyhow::Context as _;

use crate::clock::BenchTimer;

/// Until when senders send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendTime {
    timer: BenchTimer,
    length: Duration,
}

impl SendTime {
    pub(crate) fn start(length: Duration) -> Self {
        Self { timer: BenchTimer::start(), length }
    }

    fn is_over(&self) -> bool {
        self.timer.elapsed() >= self.length
    }

    pub(crate) const fn requests(self) -> RequestLimit {
        RequestLimit { time: self, begun: false }
    }
}

/// Whether a sender sends another request: the first one always, so that a short time on a busy
/// machine, which is over before the connection is open, does not measure nothing.
#[derive(Debug)]
pub(crate) struct RequestLimit {
    time: SendTime,
    begun: bool,
}

impl RequestLimit {
    pub(crate) fn another(&mut self) -> bool {
        let begun = std::mem::replace(&mut self.begun, true);
        !begun || !self.time.is_over()
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
