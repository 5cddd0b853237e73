//! Asks brokers what they know of a namespace.
//!
//! Each broker answers for its own owners and workers ([`view_here`]). [`view_owner`] asks the
//! owner of one partition, [`view_all`] all brokers of the cluster. Nothing here changes anything.

use punctual_core::BrokerId;
use punctual_engine::{EngineError, LANES_MAX, OwnerView};

use crate::broker::Broker;
use crate::namespace_view::{NamespaceView, ViewQuery};
use crate::peer::PeerError;

/// Returns what this broker knows. [`EngineError::Stopped`] if it does not own the partition.
pub(crate) async fn view_here(
    broker: &Broker,
    query: &ViewQuery,
) -> Result<NamespaceView, EngineError> {
    let handles = match query.partition {
        Some(partition) => vec![broker.owners.handle(partition).ok_or(EngineError::Stopped)?],
        None => broker.owners.handles().into_iter().map(|(_, handle)| handle).collect(),
    };
    let mut owner = OwnerView::default();
    for handle in handles {
        match handle.view(query.namespace.clone(), query.lanes.clone()).await {
            Ok(view) => add(&mut owner, view),
            // The partition has just moved.
            Err(_) if query.partition.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    let (connections, connection_waits) = broker.telemetry.connections_now();
    Ok(NamespaceView {
        owner,
        workers: broker.hub.workers(&query.namespace),
        clock_suspect: broker.clock.suspicion().map(|why| why.to_string()),
        connections,
        connection_waits,
    })
}

fn add(sum: &mut OwnerView, view: OwnerView) {
    sum.lanes.extend(view.lanes);
    sum.lanes.truncate(LANES_MAX);
    sum.unread_since = [sum.unread_since, view.unread_since].into_iter().flatten().min();
    sum.share_used_up |= view.share_used_up;
    sum.store_away |= view.store_away;
}

/// Asks the broker that owns a partition. Returns `None` if the partition has no owner, or if its
/// broker does not answer.
pub(crate) async fn view_owner(broker: &Broker, query: &ViewQuery) -> Option<NamespaceView> {
    if let Ok(view) = view_here(broker, query).await {
        return Some(view);
    }
    let owner = broker.owners.owner_of(query.partition?)?.broker;
    let cluster = broker.cluster.as_ref().filter(|cluster| cluster.membership.me != owner)?;
    cluster.peers.view(&owner, query).await.ok()
}

/// Asks all brokers. Returns the address of each with what it knows.
pub(crate) async fn view_all(
    broker: &Broker,
    query: &ViewQuery,
) -> Result<Vec<(String, NamespaceView)>, EngineError> {
    let mut views = vec![(address_of(broker), view_here(broker, query).await?)];
    let Some(cluster) = &broker.cluster else { return Ok(views) };
    for other in cluster.membership.others() {
        match cluster.peers.view(&other, query).await {
            Ok(view) => views.push((other.to_string(), view)),
            Err(error @ PeerError::Refused(_)) => {
                // A broker of an older version does not know this call.
                tracing::debug!(broker = %other, %error, "peer left out of a view");
            }
            Err(_) => return Err(EngineError::Stopped),
        }
    }
    Ok(views)
}

/// Returns the address by which other brokers, or clients of the only broker, reach this one.
pub(crate) fn address_of(broker: &Broker) -> String {
    let of_cluster =
        broker.cluster.as_ref().map(|cluster| BrokerId::to_string(&cluster.membership.me));
    of_cluster.unwrap_or_else(|| broker.address.to_string())
}
