//! Long polls in a cluster: a worker that polls here gets deliveries of owners on any broker.
//!
//! A poll waits at the local hub and at all other brokers at the same time, and takes the first
//! answer that has deliveries. Deliveries that arrive from other brokers later are returned to them
//! as not seen. A poll at another broker lasts at most [`ROUND`] longer than the poll here.
//!
//! Every delivery carries the broker that leased it in its token, and a settlement is sent to that
//! broker.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{BrokerId, Namespace};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{LeaseToken, PollOptions, SettleResult, SettleScope, Settlement};
use crate::broker::{Broker, ClusterParts};
use crate::peer::{PeerError, Peers, Polled};

/// How long a poll waits at another broker before it checks whether its caller still waits.
const ROUND: Duration = Duration::from_secs(1);

/// A delivery that a poll has received.
#[derive(Debug)]
pub(crate) struct PolledDelivery {
    pub(crate) polled: Polled,
    /// The broker that leased it; `None` for this broker.
    pub(crate) at: Option<BrokerId>,
}

/// Waits for deliveries of owners on any broker.
pub(crate) async fn poll(broker: &Broker, options: PollOptions) -> Vec<PolledDelivery> {
    let Some(cluster) = &broker.cluster else {
        return poll_local(broker, &options).await;
    };
    let mut remote = RemotePolls::start(cluster, &options);
    let found = tokio::select! {
        // Deliveries that wait at the local hub come first.
        biased;
        found = poll_local(broker, &options) => found,
        Ok(Some(found)) = timeout(options.wait, remote.found.recv()) => found,
    };
    if found.is_empty() {
        // The local poll timed out; another broker may have answered at the same moment.
        return remote.found.try_recv().unwrap_or_default();
    }
    found
}

async fn poll_local(broker: &Broker, options: &PollOptions) -> Vec<PolledDelivery> {
    let line = (options.namespace.clone(), options.queue.clone());
    let PollOptions { max, wait, lease, label, .. } = options;
    let leased = broker.hub.poll(line, *max, *wait, *lease, label).await;
    leased.iter().map(|leased| PolledDelivery { polled: leased.into(), at: None }).collect()
}

/// Polls at the other brokers, until dropped.
struct RemotePolls {
    found: mpsc::Receiver<Vec<PolledDelivery>>,
    peers: Arc<Peers>,
    namespace: Namespace,
}

impl RemotePolls {
    fn start(cluster: &ClusterParts, options: &PollOptions) -> Self {
        let (sender, found) = mpsc::channel(1);
        for at in cluster.membership.others() {
            let peers = Arc::clone(&cluster.peers);
            tokio::spawn(poll_at(at, peers, options.clone(), sender.clone()));
        }
        let (peers, namespace) = (Arc::clone(&cluster.peers), options.namespace.clone());
        Self { found, peers, namespace }
    }
}

impl Drop for RemotePolls {
    fn drop(&mut self) {
        self.found.close();
        while let Ok(unseen) = self.found.try_recv() {
            give_back(&self.peers, &self.namespace, unseen);
        }
    }
}

async fn poll_at(
    at: BrokerId,
    peers: Arc<Peers>,
    options: PollOptions,
    found: mpsc::Sender<Vec<PolledDelivery>>,
) {
    let mut left = options.wait;
    while !left.is_zero() && !found.is_closed() {
        let wait = left.min(ROUND);
        left -= wait;
        let polled = peers.poll(&at, &PollOptions { wait, ..options.clone() }).await;
        let Ok(polled) = polled else {
            // A broker that cannot be reached is left out of this poll.
            return;
        };
        if !polled.is_empty() {
            let at = Some(at);
            let all = polled.into_iter().map(|polled| PolledDelivery { polled, at: at.clone() });
            if let Err(unwanted) = found.send(all.collect()).await {
                give_back(&peers, &options.namespace, unwanted.0);
            }
            return;
        }
    }
}

/// Returns deliveries that no worker has seen to the broker that leased them. If that fails, their
/// leases expire.
fn give_back(peers: &Arc<Peers>, namespace: &Namespace, unseen: Vec<PolledDelivery>) {
    let Some(at) = unseen.first().and_then(|found| found.at.clone()) else { return };
    let returned: Vec<_> =
        unseen.iter().map(|found| (found.polled.token, Settlement::Returned)).collect();
    let (peers, namespace) = (Arc::clone(peers), namespace.clone());
    tokio::spawn(async move {
        let scope = SettleScope::of_namespace(&namespace);
        if let Err(error) = peers.settle(&at, scope, &returned).await {
            let count = returned.len();
            tracing::warn!(broker = %at, count, %error, "unseen deliveries not returned");
        }
    });
}

/// Returns the token of a delivery as workers see it. In a cluster it names the broker that leased
/// the delivery, because the settlement may reach any broker.
pub(crate) fn token_of(broker: &Broker, found: &PolledDelivery) -> String {
    let token = found.polled.token;
    match (&broker.cluster, &found.at) {
        (None, _) => token.to_string(),
        (Some(cluster), None) => format!("{token}@{}", cluster.membership.me),
        (Some(_), Some(at)) => format!("{token}@{at}"),
    }
}

/// The settlements for one broker.
struct BrokerSettlements {
    /// `None` for this broker.
    at: Option<BrokerId>,
    settlements: Vec<(LeaseToken, Settlement)>,
    /// The index of each settlement in the request.
    indexes: Vec<usize>,
}

/// Sends settlements to the brokers that leased the deliveries. Returns one result per settlement,
/// in order.
pub(crate) async fn settle(
    broker: &Broker,
    scope: SettleScope<'_>,
    settlements: Vec<(String, Settlement)>,
) -> Result<Vec<SettleResult>, PeerError> {
    let mut results = vec![SettleResult::Stale; settlements.len()];
    let mut by_broker: Vec<BrokerSettlements> = Vec::new();
    for (index, (text, settlement)) in settlements.into_iter().enumerate() {
        // A token that no broker of this cluster can have issued counts as stale.
        let Some((token, at)) = parse_token(broker, &text) else { continue };
        match by_broker.iter_mut().find(|group| group.at == at) {
            Some(group) => {
                group.indexes.push(index);
                group.settlements.push((token, settlement));
            }
            None => {
                let (settlements, indexes) = (vec![(token, settlement)], vec![index]);
                by_broker.push(BrokerSettlements { at, settlements, indexes });
            }
        }
    }
    for BrokerSettlements { at, settlements, indexes } in by_broker {
        let of_broker = match (&at, &broker.cluster) {
            (Some(at), Some(cluster)) => {
                match cluster.peers.settle(at, scope, &settlements).await {
                    // The leases of a broker that has left ended with it: the settlements are
                    // stale.
                    Err(PeerError::Unreachable(_)) if !cluster.membership.others().contains(at) => {
                        continue;
                    }
                    settled => settled?,
                }
            }
            _ => broker.hub.settle(scope, settlements),
        };
        indexes.into_iter().zip(of_broker).for_each(|(index, result)| results[index] = result);
    }
    Ok(results)
}

/// Parses a token. Returns it with the broker that leased the delivery, `None` for this broker.
/// Returns `None` if no broker of this cluster can have issued the token.
fn parse_token(broker: &Broker, text: &str) -> Option<(LeaseToken, Option<BrokerId>)> {
    let (token, at) = match text.split_once('@') {
        Some((token, at)) => (token, Some(at)),
        None => (text, None),
    };
    let parsed = token.parse::<LeaseToken>().ok().filter(|parsed| parsed.to_string() == token)?;
    let Some(at) = at else {
        return broker.cluster.is_none().then_some((parsed, None));
    };
    let cluster = broker.cluster.as_ref()?;
    if at == cluster.membership.me.as_str() {
        return Some((parsed, None));
    }
    // A token must not make this broker call an address that is not a broker of this cluster.
    Some((parsed, Some(cluster.membership.known_peer(at)?)))
}
