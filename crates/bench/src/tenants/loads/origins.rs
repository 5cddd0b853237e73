//! Origins: receivers of webhooks, each with a loopback address of its own.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::receiver::{AnswerManner, BenchReceiver};
use crate::tenants::context::LoadContext;

/// Receivers that answer in the same manner, until dropped.
#[derive(Debug)]
pub(super) struct HostileOrigins {
    urls: Arc<[String]>,
    _receivers: Vec<BenchReceiver>,
}

impl HostileOrigins {
    /// Starts `count` receivers. Each request that they receive counts as one `what`.
    pub(super) async fn start(
        context: &LoadContext,
        count: u16,
        manner: AnswerManner,
        what: &'static str,
    ) -> anyhow::Result<Self> {
        let mut receivers = Vec::new();
        for number in 0..count {
            let [high, low] = number.to_be_bytes();
            let (ip, counts) = (Ipv4Addr::new(127, 66, high, low), context.clone());
            let on = move |_: &_| counts.add(what, 1);
            receivers.push(BenchReceiver::start(ip, manner, on).await?);
        }
        let urls = receivers.iter().map(|one| format!("http://{}/", one.address)).collect();
        Ok(Self { urls, _receivers: receivers })
    }

    /// Returns a function that chooses an origin by the number of a task, in turns.
    pub(super) fn in_turns(&self) -> impl Fn(u64) -> String + Clone + Send + use<> {
        let urls = Arc::clone(&self.urls);
        let count = urls.len() as u64;
        move |number| {
            let index = usize::try_from(number % count).unwrap_or_default();
            urls.get(index).cloned().unwrap_or_default()
        }
    }
}
