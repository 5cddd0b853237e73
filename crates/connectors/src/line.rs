//! The deliveries that wait for one connection, lane by lane.
//!
//! A lane is a namespace and a place. Lanes take turns; a batch is of one lane. A lane may use half
//! of the sessions of the connection and a namespace all but one, so a slow statement does not keep
//! the others waiting. Owners bound how many deliveries of a lane are here.

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
        let sending = self.lanes.get(key).map_or(0, |lane| lane.sending);
        let of_namespace = self.lanes.iter().filter(|(other, _)| other.namespace == key.namespace);
        let of_namespace: usize = of_namespace.map(|(_, lane)| lane.sending).sum();
        sending < (self.sessions / 2).max(1)
            && of_namespace < self.sessions.saturating_sub(1).max(1)
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
