//! Asks brokers what they know of a namespace.
//!
//! Each broker answers for its own owners and workers ([`view_here`]). [`view_owner`] asks the
//! owner of one partition, [`view_all`] all brokers of the cluster. Nothing here changes anything.

use std::cmp::Reverse;
use std::collections::HashMap;

use punctual_core::BrokerId;
use punctual_engine::{EngineError, LANES_MAX, LaneTarget, LaneView, OwnerView};

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
    let (lanes, more_lanes) = merge_lanes(std::mem::take(&mut owner.lanes));
    owner.lanes = lanes;
    owner.more_lanes |= more_lanes;
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
    sum.more_lanes |= view.more_lanes;
    sum.unread_since = [sum.unread_since, view.unread_since].into_iter().flatten().min();
    sum.share_used_up |= view.share_used_up;
    sum.store_away |= view.store_away;
}

/// Adds up the lanes to one target that several owners have. Returns at most [`LANES_MAX`], those
/// with the most waiting tasks, and whether there are more.
pub(crate) fn merge_lanes(lanes: impl IntoIterator<Item = LaneView>) -> (Vec<LaneView>, bool) {
    let (mut merged, mut places) = (Vec::<LaneView>::new(), HashMap::<LaneTarget, usize>::new());
    for lane in lanes {
        let known = lane.target.as_ref().and_then(|target| places.get(target).copied());
        if let Some(place) = known {
            merged[place].add(lane);
            continue;
        }
        if let Some(target) = &lane.target {
            places.insert(target.clone(), merged.len());
        }
        merged.push(lane);
    }
    let more_lanes = merged.len() > LANES_MAX;
    if more_lanes {
        merged.sort_by_key(|lane| Reverse((lane.spilled_since.is_some(), lane.waiting)));
        merged.truncate(LANES_MAX);
    }
    (merged, more_lanes)
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

#[cfg(test)]
mod tests {
    use punctual_core::{Queue, Reason, Timestamp};
    use punctual_engine::LastFailure;

    use super::*;

    fn lane(queue: usize, waiting: usize) -> LaneView {
        LaneView {
            target: Some(LaneTarget::Queue(Queue::new(&format!("q{queue}")).unwrap())),
            waiting,
            unsent: 1,
            in_flight: 2,
            capacity: 3,
            starved_since: None,
            slow: false,
            spilled_since: None,
            oldest_overdue: None,
            failed: 0,
            last_failure: None,
        }
    }

    #[test]
    fn lanes_to_one_target_are_added_up() {
        let at = Timestamp::from_millis;
        let failure =
            |millis| LastFailure { at: at(millis), reason: Reason::new("no"), retry_at: None };
        let one = LaneView {
            oldest_overdue: Some(at(9)),
            failed: 1,
            last_failure: Some(failure(5)),
            ..lane(1, 4)
        };
        let other = LaneView {
            oldest_overdue: Some(at(7)),
            spilled_since: Some(at(8)),
            slow: true,
            failed: 2,
            last_failure: Some(failure(6)),
            ..lane(1, 5)
        };
        let (merged, more) = merge_lanes([one, lane(2, 0), other]);
        let sum = LaneView {
            unsent: 2,
            in_flight: 4,
            capacity: 6,
            oldest_overdue: Some(at(7)),
            spilled_since: Some(at(8)),
            slow: true,
            failed: 3,
            last_failure: Some(failure(6)),
            ..lane(1, 9)
        };
        assert_eq!((merged, more), (vec![sum, lane(2, 0)], false));
    }

    #[test]
    fn of_too_many_lanes_those_with_the_most_waiting_tasks_are_kept() {
        let lanes = (0..LANES_MAX + 2).map(|queue| lane(queue, queue));
        let (merged, more) = merge_lanes(lanes);
        assert_eq!((merged.len(), more), (LANES_MAX, true));
        assert_eq!(merged.last(), Some(&lane(2, 2)));
    }
}
