//! The deliveries that wait for one connection, lane by lane.
//!
//! A lane is a namespace and a place. Lanes take turns; a batch is of one lane. No namespace uses
//! more sessions than are left for all others together, and within a namespace no lane more than
//! are left for its other lanes of what the namespace may take. So a slow statement does not keep
//! the others waiting. The same rule divides what namespaces share in the server
//! (`server/src/shares.rs`). Owners bound how many deliveries of a lane are here.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use punctual_core::{Namespace, Target, Timestamp};
use punctual_engine::{Delivery, Reports};

/// A delivery that waits, and where its report goes.
#[derive(Debug)]
pub(crate) struct LineEntry {
    pub(crate) delivery: Delivery,
    pub(crate) reports: Reports,
    /// When the courier got it.
    pub(crate) since: Timestamp,
}

/// The namespace and the place of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey {
    pub(crate) namespace: Namespace,
    place: Box<str>,
}

impl LaneKey {
    /// The lane of a delivery; `None` if its target is not a sink.
    pub(crate) fn of(delivery: &Delivery) -> Option<Self> {
        match &delivery.definition.target {
            Target::Sink(sink) => {
                let namespace = delivery.definition.namespace.clone();
                Some(Self { namespace, place: sink.lane().into() })
            }
            Target::Http(_) | Target::Queue(_) | Target::Mail(_) | Target::Grpc(_) => None,
        }
    }
}

#[derive(Debug, Default)]
struct ConnectionLane {
    waiting: VecDeque<LineEntry>,
    /// Batches that sessions have.
    sending: usize,
}

/// The lanes of one connection.
#[derive(Debug)]
pub(crate) struct Line {
    lanes: HashMap<LaneKey, ConnectionLane>,
    /// Lanes with waiting deliveries, the next one first.
    turns: VecDeque<LaneKey>,
    waiting: usize,
    sessions: usize,
}

impl Line {
    pub(crate) fn new(sessions: usize) -> Self {
        Self { lanes: HashMap::new(), turns: VecDeque::new(), waiting: 0, sessions }
    }

    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn push(&mut self, key: LaneKey, waiting: LineEntry) {
        let lane = self.lanes.entry(key.clone()).or_default();
        if lane.waiting.is_empty() {
            self.turns.push_back(key);
        }
        lane.waiting.push_back(waiting);
        self.waiting += 1;
    }

    /// Takes the next batch: of one lane, of at most `max` deliveries that have the same time.
    pub(crate) fn take(&mut self, max: usize) -> Option<(LaneKey, Vec<LineEntry>)> {
        let at = self.turns.iter().position(|key| self.may_send(key))?;
        let key = self.turns.remove(at)?;
        let lane = self.lanes.get_mut(&key)?;
        let timeout = lane.waiting.front()?.delivery.definition.timeout;
        let fits = |waiting: &&LineEntry| waiting.delivery.definition.timeout == timeout;
        let count = lane.waiting.iter().take(max).take_while(fits).count();
        let batch: Vec<_> = lane.waiting.drain(..count).collect();
        lane.sending += 1;
        self.waiting -= batch.len();
        if !lane.waiting.is_empty() {
            self.turns.push_back(key.clone());
        }
        Some((key, batch))
    }

    /// A batch of a lane has ended.
    pub(crate) fn ended(&mut self, key: &LaneKey) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.sending = lane.sending.saturating_sub(1);
        if lane.sending == 0 && lane.waiting.is_empty() {
            self.lanes.remove(key);
        }
    }

    fn may_send(&self, key: &LaneKey) -> bool {
        let of_lane = self.lanes.get(key).map_or(0, |lane| lane.sending);
        let (mut of_all, mut of_namespace) = (0, 0);
        for (other, lane) in &self.lanes {
            of_all += lane.sending;
            if other.namespace == key.namespace {
                of_namespace += lane.sending;
            }
        }
        let left = self.sessions.saturating_sub(of_all);
        // With each one that the namespace takes, it has one more and one less is left.
        of_namespace < left && of_lane < (left - of_namespace).div_ceil(2)
    }

    /// Removes deliveries that may not be sent any more, and with `held_max` those that have waited
    /// that long.
    pub(crate) fn sweep(&mut self, now: Timestamp, held_max: Option<Duration>) -> Vec<LineEntry> {
        let ends = |waiting: &LineEntry| {
            let held = held_max.is_some_and(|held| waiting.since.after(held) <= now);
            held || waiting.delivery.permit.check(now).is_err()
        };
        let mut swept = Vec::new();
        if self.waiting == 0 {
            return swept;
        }
        for lane in self.lanes.values_mut() {
            if lane.waiting.iter().any(ends) {
                let (ended, kept): (Vec<_>, VecDeque<_>) = std::mem::take(&mut lane.waiting)
                    .into_iter()
                    .fold((Vec::new(), VecDeque::new()), |(mut ended, mut kept), waiting| {
                        match ends(&waiting) {
                            true => ended.push(waiting),
                            false => kept.push_back(waiting),
                        }
                        (ended, kept)
                    });
                lane.waiting = kept;
                swept.extend(ended);
            }
        }
        self.waiting -= swept.len();
        let Self { lanes, turns, .. } = self;
        turns.retain(|key| lanes.get(key).is_some_and(|lane| !lane.waiting.is_empty()));
        lanes.retain(|_, lane| lane.sending > 0 || !lane.waiting.is_empty());
        swept
    }

    /// Removes all deliveries that wait.
    pub(crate) fn clear(&mut self) -> Vec<LineEntry> {
        self.turns.clear();
        self.waiting = 0;
        self.lanes.values_mut().flat_map(|lane| std::mem::take(&mut lane.waiting)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, place: &str) -> LaneKey {
        LaneKey { namespace: Namespace::new(namespace).unwrap(), place: place.into() }
    }

    /// Sends batches of a lane until it may not have another session. Returns how many it has.
    fn fill(line: &mut Line, namespace: &str, place: &str) -> usize {
        let key = key(namespace, place);
        while line.may_send(&key) {
            line.lanes.entry(key.clone()).or_default().sending += 1;
        }
        line.lanes.get(&key).map_or(0, |lane| lane.sending)
    }

    #[test]
    fn no_namespace_has_more_sessions_than_are_left_for_the_others() {
        let mut line = Line::new(8);
        let places = ["a", "b", "c", "d", "e"];
        assert_eq!(places.map(|place| fill(&mut line, "one", place)), [2, 1, 1, 0, 0]);
        assert_eq!(places.map(|place| fill(&mut line, "two", place)), [1, 1, 0, 0, 0]);
        assert_eq!(places.map(|place| fill(&mut line, "three", place)), [1, 0, 0, 0, 0]);
        assert_eq!(fill(&mut line, "four", "a"), 1, "another still finds one");
        assert_eq!(fill(&mut line, "five", "a"), 0);
        line.ended(&key("one", "a"));
        assert_eq!(fill(&mut line, "one", "a"), 1, "it has more than are left");
        assert_eq!(fill(&mut line, "five", "a"), 1);
    }

    #[test]
    fn a_connection_of_few_sessions_is_used() {
        for (sessions, alone) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (8, 2), (16, 4), (32, 8)]
        {
            assert_eq!(fill(&mut Line::new(sessions), "one", "a"), alone, "{sessions}");
        }
    }

    #[test]
    fn a_lane_without_batches_and_deliveries_is_forgotten() {
        let mut line = Line::new(2);
        assert_eq!(fill(&mut line, "one", "a"), 1);
        line.ended(&key("one", "a"));
        assert!(line.lanes.is_empty());
    }
}
