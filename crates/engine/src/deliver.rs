//! Delivering: tasks whose time has come are carried, lane by lane.
//!
//! In: tasks from `fire`. Out: [`Delivery`]s for a [`Courier`], and its [`Outcome`]s back as events.
//! Invariant: nothing waits for a slow receiver but its own lane, because each lane has its own bound of
//! deliveries under way.
//! Not here: how a delivery travels (`server/courier`), what follows from an outcome (`settle`).

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;

use punctual_core::{
    AttemptNo, FireId, Namespace, NewTask, Outcome, Queue, Target, TaskId, Timestamp, Version,
};

use crate::event::Action;
use crate::memory::Phase;
use crate::owner::Owner;

/// Deliveries of one lane that are under way at once: enough to keep a fast receiver busy, few enough
/// that a slow one is not trampled.
const INFLIGHT_MAX: usize = 256;

/// Carries deliveries.
///
/// Contract: `carry` answers within the delivery's timeout and a little, whatever the receiver does: an answer
/// that does not come in time is [`Outcome::Expired`]. It sends the delivery at most once. If it is dropped, the
/// outcome is not known.
pub trait Courier: Send + Sync + 'static {
    /// Carries one delivery to its target and says what came of it.
    fn carry(&self, delivery: Delivery) -> impl Future<Output = Outcome> + Send;
}

/// What travels for one attempt.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// For dedup: the same for every attempt of a fire.
    pub fire_id: FireId,
    /// Which attempt.
    pub attempt: AttemptNo,
    /// When the fire was due by the schedule.
    pub fire_at: Timestamp,
    /// When the attempt was sent.
    pub fired_at: Timestamp,
    /// Which change of the task this is.
    pub version: Version,
    /// What was asked for: target, payload, timeout.
    pub definition: Arc<NewTask>,
}

/// Whom a slow receiver holds up: the deliveries of one namespace to one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LaneId(Namespace, Place);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    /// Scheme, host and port of a webhook.
    Origin(String),
    Queue(Queue),
}

impl LaneId {
    fn of(definition: &NewTask) -> Self {
        let place = match &definition.target {
            Target::Queue(queue) => Place::Queue(queue.clone()),
            Target::Http(http) => {
                let url = http.url();
                // Behind the two slashes, the path begins at the next one.
                let host = url.find("://").map_or(0, |at| at + 3);
                let end = url[host..].find(['/', '?']).map_or(url.len(), |at| host + at);
                Place::Origin(url[..end].to_owned())
            }
        };
        Self(definition.namespace.clone(), place)
    }
}

#[derive(Debug, Default)]
struct Lane {
    queued: VecDeque<TaskId>,
    inflight: usize,
}

/// All lanes that have something in them.
#[derive(Debug, Default)]
pub(crate) struct Lanes(HashMap<LaneId, Lane>);

impl Owner {
    /// Puts a task whose time has come into its lane.
    pub(crate) fn enqueue(&mut self, id: TaskId, now: Timestamp) {
        let Some(loaded) = self.memory.get_mut(id) else {
            return;
        };
        loaded.phase = Phase::Queued;
        let lane_id = LaneId::of(&loaded.task.definition);
        self.lanes.0.entry(lane_id.clone()).or_default().queued.push_back(id);
        self.send(lane_id, now);
    }

    /// A courier has come back: its place in the lane is free.
    pub(crate) fn came_back(&mut self, definition: &NewTask, now: Timestamp) {
        let lane_id = LaneId::of(definition);
        if let Some(lane) = self.lanes.0.get_mut(&lane_id) {
            lane.inflight = lane.inflight.saturating_sub(1);
            self.send(lane_id, now);
        }
    }

    /// Sends what a lane may send.
    fn send(&mut self, lane_id: LaneId, now: Timestamp) {
        let Some(lane) = self.lanes.0.get_mut(&lane_id) else {
            return;
        };
        while lane.inflight < INFLIGHT_MAX && !self.draining {
            let Some(id) = lane.queued.pop_front() else {
                break;
            };
            let Some(loaded) = self.memory.get_mut(id) else {
                continue;
            };
            // It was cancelled or replaced while it stood in line.
            if loaded.phase != Phase::Queued {
                continue;
            }
            loaded.phase = Phase::Firing;
            loaded.fired_at = now;
            lane.inflight += 1;
            let task = &loaded.task;
            self.actions.push(Action::Deliver(Delivery {
                fire_id: task.fire().id,
                attempt: task.attempt_next(),
                fire_at: task.nominal_at,
                fired_at: now,
                version: task.version,
                definition: Arc::clone(&task.definition),
            }));
        }
        if lane.queued.is_empty() && lane.inflight == 0 {
            self.lanes.0.remove(&lane_id);
        }
    }

    /// Deliveries under way.
    pub(crate) fn inflight(&self) -> usize {
        self.lanes.0.values().map(|lane| lane.inflight).sum()
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Due, HttpTarget, Method, Schedule};

    use super::*;

    #[test]
    fn a_lane_is_a_namespace_and_a_place() {
        let lane = |namespace: &str, url: &str| {
            let target = Target::Http(HttpTarget::new(url, Method::Post, vec![]).unwrap());
            let schedule = Schedule::Once(Due::At(Timestamp::EPOCH));
            LaneId::of(&NewTask::new(Namespace::new(namespace).unwrap(), schedule, target))
        };
        assert_eq!(lane("a", "http://h:1/x"), lane("a", "http://h:1/y?z=/"));
        assert_eq!(lane("a", "http://h:1"), lane("a", "http://h:1?z"));
        assert_ne!(lane("a", "http://h:1/x"), lane("a", "http://h:2/x"));
        assert_ne!(lane("a", "http://h:1/x"), lane("a", "https://h:1/x"));
        assert_ne!(lane("a", "http://h:1/x"), lane("b", "http://h:1/x"));
    }
}
