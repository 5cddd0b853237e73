//! Encodes what brokers tell each other about a namespace, as protobuf messages.
//!
//! What a peer sends is untrusted: names are checked, and lists are bounded.

use punctual_core::{
    ConnectionName, HttpTarget, Invalid, MESSAGE_PLACE_BYTES_MAX, Method, Namespace, PartitionId,
    Queue, Reason, Timestamp,
};
use punctual_engine::{LANES_MAX, LaneQuery, LaneTarget, LaneView, LastFailure, OwnerView};
use punctual_proto::v1;

use super::wire::WireError;
use crate::courier::queue::{WORKERS_MAX, WorkerLabel, WorkerView};
use crate::namespace_view::{NamespaceView, ViewQuery};

pub(super) fn put_query(query: &ViewQuery) -> v1::ViewRequest {
    let target = match &query.lanes {
        LaneQuery::Queues | LaneQuery::All | LaneQuery::Lane(LaneTarget::Mail) => None,
        LaneQuery::Lane(LaneTarget::Queue(queue)) => {
            Some(v1::view_request::Target::Queue(queue.as_str().to_owned()))
        }
        LaneQuery::Lane(LaneTarget::Origin(origin)) => {
            Some(v1::view_request::Target::Url(origin.to_string()))
        }
        LaneQuery::Lane(LaneTarget::Sink(connection, lane)) => {
            Some(v1::view_request::Target::Sink(put_sink(connection, lane)))
        }
    };
    v1::ViewRequest {
        namespace: query.namespace.as_str().to_owned(),
        partition: query.partition.map(|partition| u32::from(partition.get())),
        target,
        all_lanes: query.lanes == LaneQuery::All,
    }
}

fn put_sink(connection: &ConnectionName, lane: &str) -> v1::SinkLane {
    v1::SinkLane { connection: connection.as_str().to_owned(), lane: lane.to_owned() }
}

fn read_sink(sink: v1::SinkLane) -> Result<LaneTarget, Invalid> {
    // The longest lane is the longest place of messages.
    if sink.lane.len() > MESSAGE_PLACE_BYTES_MAX {
        return Err(Invalid::new("lane", "is too long"));
    }
    Ok(LaneTarget::Sink(ConnectionName::new(&sink.connection)?, sink.lane.into()))
}

fn read_origin(url: &str) -> Result<LaneTarget, Invalid> {
    let webhook = HttpTarget::new(url, Method::Post, Vec::new())?;
    Ok(LaneTarget::Origin(webhook.origin().into()))
}

pub(super) fn read_query(request: v1::ViewRequest) -> Result<ViewQuery, Invalid> {
    let lanes = match request.target {
        None if request.all_lanes => LaneQuery::All,
        None => LaneQuery::Queues,
        Some(v1::view_request::Target::Queue(queue)) => {
            LaneQuery::Lane(LaneTarget::Queue(Queue::new(&queue)?))
        }
        Some(v1::view_request::Target::Url(url)) => LaneQuery::Lane(read_origin(&url)?),
        Some(v1::view_request::Target::Sink(sink)) => LaneQuery::Lane(read_sink(sink)?),
    };
    let partition = request.partition.map(|number| {
        let partition = u16::try_from(number).ok().and_then(PartitionId::new);
        partition.ok_or_else(|| Invalid::new("partition", "is out of range"))
    });
    let namespace = Namespace::new(&request.namespace)?;
    Ok(ViewQuery { namespace, partition: partition.transpose()?, lanes })
}

pub(super) fn put_view(view: &NamespaceView) -> v1::ViewReply {
    v1::ViewReply {
        lanes: view.owner.lanes.iter().map(put_lane).collect(),
        workers: view.workers.iter().map(put_worker).collect(),
        unread_since_ms: view.owner.unread_since.map(Timestamp::as_millis),
        share_used_up: view.owner.share_used_up,
        store_away: view.owner.store_away,
        clock_suspect: view.clock_suspect.clone().unwrap_or_default(),
        connections: view.connections,
        connection_waits: view.connection_waits,
        more_lanes: view.owner.more_lanes,
    }
}

fn put_lane(lane: &LaneView) -> v1::PeerLane {
    v1::PeerLane {
        queue: lane.queue().map_or_else(String::new, |queue| queue.as_str().to_owned()),
        target: lane.target.as_ref().and_then(put_target),
        waiting: lane.waiting as u64,
        unsent: lane.unsent as u64,
        in_flight: lane.in_flight as u64,
        capacity: lane.capacity as u64,
        spilled_since_ms: lane.spilled_since.map(Timestamp::as_millis),
        oldest_overdue_ms: lane.oldest_overdue.map(Timestamp::as_millis),
        starved_since_ms: lane.starved_since.map(Timestamp::as_millis),
        slow: lane.slow,
        failed: lane.failed,
        last_failure: lane.last_failure.as_ref().map(|failure| v1::PeerLaneFailure {
            at_ms: failure.at.as_millis(),
            reason: failure.reason.as_str().to_owned(),
            retry_at_ms: failure.retry_at.map(Timestamp::as_millis),
        }),
    }
}

/// The target of a lane; `None` for a queue, which has a field of its own.
fn put_target(target: &LaneTarget) -> Option<v1::peer_lane::Target> {
    match target {
        LaneTarget::Queue(_) => None,
        LaneTarget::Origin(origin) => Some(v1::peer_lane::Target::Origin(origin.to_string())),
        LaneTarget::Sink(connection, lane) => {
            Some(v1::peer_lane::Target::Sink(put_sink(connection, lane)))
        }
        LaneTarget::Mail => Some(v1::peer_lane::Target::Mail(true)),
    }
}

fn put_worker(worker: &WorkerView) -> v1::PeerWorker {
    v1::PeerWorker {
        name: worker.label.name.to_string(),
        address: worker.label.address.to_string(),
        queues: worker.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
        in_flight: worker.in_flight as u64,
        credit: worker.credit as u64,
        since_ms: worker.since.as_millis(),
    }
}

pub(super) fn read_view(reply: v1::ViewReply) -> Result<NamespaceView, WireError> {
    if reply.lanes.len() > LANES_MAX || reply.workers.len() > WORKERS_MAX {
        return Err(WireError::TooMany(LANES_MAX.max(WORKERS_MAX)));
    }
    let lanes = reply.lanes.into_iter().map(read_lane).collect();
    let owner = OwnerView {
        lanes,
        more_lanes: reply.more_lanes,
        unread_since: reply.unread_since_ms.and_then(time),
        share_used_up: reply.share_used_up,
        store_away: reply.store_away,
    };
    Ok(NamespaceView {
        owner,
        workers: reply.workers.iter().map(read_worker).collect(),
        clock_suspect: Some(reply.clock_suspect).filter(|why| !why.is_empty()),
        connections: reply.connections,
        connection_waits: reply.connection_waits,
    })
}

fn read_lane(lane: v1::PeerLane) -> LaneView {
    let target = match lane.target {
        None => Queue::new(&lane.queue).ok().map(LaneTarget::Queue),
        Some(v1::peer_lane::Target::Origin(origin)) => read_origin(&origin).ok(),
        Some(v1::peer_lane::Target::Sink(sink)) => read_sink(sink).ok(),
        Some(v1::peer_lane::Target::Mail(_)) => Some(LaneTarget::Mail),
    };
    LaneView {
        target,
        waiting: count(lane.waiting),
        unsent: count(lane.unsent),
        in_flight: count(lane.in_flight),
        capacity: count(lane.capacity),
        spilled_since: lane.spilled_since_ms.and_then(time),
        oldest_overdue: lane.oldest_overdue_ms.and_then(time),
        starved_since: lane.starved_since_ms.and_then(time),
        slow: lane.slow,
        // Bounded, so that the sum over all brokers cannot overflow.
        failed: lane.failed.min(u64::from(u32::MAX)),
        last_failure: lane.last_failure.map(|failure| LastFailure {
            at: time(failure.at_ms).unwrap_or(Timestamp::EPOCH),
            reason: Reason::new(&failure.reason),
            retry_at: failure.retry_at_ms.and_then(time),
        }),
    }
}

fn read_worker(worker: &v1::PeerWorker) -> WorkerView {
    WorkerView {
        label: WorkerLabel::new(&worker.name, &worker.address),
        queues: worker.queues.iter().filter_map(|queue| Queue::new(queue).ok()).collect(),
        in_flight: count(worker.in_flight),
        credit: count(worker.credit),
        since: time(worker.since_ms).unwrap_or(Timestamp::EPOCH),
    }
}

/// Bounded, so that the sum over all brokers cannot overflow.
fn count(number: u64) -> usize {
    usize::try_from(number.min(u64::from(u32::MAX))).unwrap_or(usize::MAX)
}

fn time(millis: u64) -> Option<Timestamp> {
    Timestamp::try_from_millis(i128::from(millis)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_and_a_view_are_read_back_unchanged() {
        let namespace = Namespace::new("shop").unwrap();
        let queue = Queue::new("emails").unwrap();
        let connection = || ConnectionName::new("db").unwrap();
        for lanes in [
            LaneQuery::Queues,
            LaneQuery::All,
            LaneQuery::Lane(LaneTarget::Sink(connection(), "orders:{shop}".into())),
            LaneQuery::Lane(LaneTarget::Sink(connection(), "".into())),
            LaneQuery::Lane(LaneTarget::Queue(queue.clone())),
            LaneQuery::Lane(LaneTarget::Origin("http://h:1".into())),
        ] {
            for partition in [None, PartitionId::new(7)] {
                let namespace = namespace.clone();
                let query = ViewQuery { namespace, partition, lanes: lanes.clone() };
                assert_eq!(read_query(put_query(&query)), Ok(query));
            }
        }
        let at = Timestamp::from_millis(1_700_000_000_000);
        let lane = LaneView {
            target: Some(LaneTarget::Queue(queue.clone())),
            waiting: 1,
            unsent: 2,
            in_flight: 3,
            capacity: 4,
            spilled_since: Some(at),
            oldest_overdue: Some(at),
            starved_since: Some(at),
            slow: true,
            failed: 7,
            last_failure: Some(LastFailure {
                at,
                reason: Reason::new("status 503"),
                retry_at: Some(at),
            }),
        };
        let others = [
            Some(LaneTarget::Origin("http://h:1".into())),
            Some(LaneTarget::Sink(connection(), "orders".into())),
            Some(LaneTarget::Mail),
            None,
        ];
        let others = others.map(|target| LaneView {
            target,
            spilled_since: None,
            last_failure: None,
            ..lane.clone()
        });
        let lanes = [lane].into_iter().chain(others).collect();
        let view = NamespaceView {
            owner: OwnerView {
                lanes,
                more_lanes: true,
                unread_since: Some(at),
                share_used_up: true,
                store_away: true,
            },
            workers: vec![WorkerView {
                label: WorkerLabel::new("w1", "127.0.0.1:9"),
                queues: vec![queue],
                in_flight: 5,
                credit: 6,
                since: at,
            }],
            clock_suspect: Some("it was set".to_owned()),
            connections: 7,
            connection_waits: 8,
        };
        assert_eq!(read_view(put_view(&view)), Ok(view));
    }

    #[test]
    fn a_view_with_too_many_entries_is_refused() {
        let lanes = vec![v1::PeerLane::default(); LANES_MAX + 1];
        let reply = v1::ViewReply { lanes, ..v1::ViewReply::default() };
        assert_eq!(read_view(reply), Err(WireError::TooMany(LANES_MAX)));
    }
}
