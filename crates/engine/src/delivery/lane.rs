//! Lanes: the deliveries of one namespace to one place, in line.
//!
//! In: tasks whose time has come. Out: the next one to send, as long as the lane has room. A lane of a webhook learns its room from
//! what comes of its deliveries; a lane of a queue is told by the couriers how much its workers want.
//! Invariant: work that is on time goes before late work and retries, which are not starved either.
//! Bound: [`QUEUED_MAX`] tasks stand in line; the rest is let go of, and loaded again when there is room.

use std::collections::{HashMap, VecDeque};

use punctual_core::{Namespace, NewTask, Outcome, Queue, Target, Task, TaskId, Timestamp};
use punctual_store::Position;
use rapidhash::fast::RandomState;
use slab::Slab;

/// Tasks of one lane that stand in line in memory: a fifth of a second for the fastest workers, and not so many that none is left in a
/// cache when its turn comes (twice as many drain 10 % slower).
pub(crate) const QUEUED_MAX: usize = 32_768;
/// A lane that has let go of some asks for more when fewer than this are left.
const QUEUED_LOW: usize = QUEUED_MAX / 4;
/// Deliveries to one webhook that are under way at once: enough to keep a fast receiver busy, few enough
/// that a slow one is not trampled.
const INFLIGHT_MAX: usize = 256;
/// And at least, for one that does not answer in time.
const INFLIGHT_MIN: usize = 4;
/// One in so many is late work, if there is any.
const LATE_SHARE: u32 = 4;

/// Whom a slow receiver holds up: the deliveries of one namespace to one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LaneId(pub(crate) Namespace, Place);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    /// Scheme, host and port of a webhook.
    Origin(Box<str>),
    Queue(Queue),
}

impl LaneId {
    pub(crate) fn of(definition: &NewTask) -> Self {
        let place = match &definition.target {
            Target::Queue(queue) => Place::Queue(queue.clone()),
            Target::Http(http) => Place::Origin(http.origin().into()),
        };
        Self(definition.namespace.clone(), place)
    }

    /// Whether it is that of a task.
    fn is_of(&self, definition: &NewTask) -> bool {
        let place = match (&self.1, &definition.target) {
            (Place::Queue(queue), Target::Queue(other)) => queue == other,
            (Place::Origin(origin), Target::Http(http)) => **origin == *http.origin(),
            _ => false,
        };
        place && self.0 == definition.namespace
    }

    pub(crate) const fn of_queue(namespace: Namespace, queue: Queue) -> Self {
        Self(namespace, Place::Queue(queue))
    }
}

/// Which lane of an owner; stays the same while a delivery of it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneNo(u32);

impl LaneNo {
    /// Of no lane.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// How a task comes into its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// First attempt, on time.
    OnTime,
    /// A retry, or long overdue.
    Late,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    on_time: VecDeque<TaskId>,
    late: VecDeque<TaskId>,
    /// Counts what was taken, to give late work its share.
    taken: u32,
    pub(crate) inflight: usize,
    /// How much may be under way.
    room: usize,
    /// Since when there is none.
    pub(crate) starved_since: Option<Timestamp>,
    /// The earliest task that was let go of.
    pub(crate) spilled: Option<Position>,
    /// What was let go of is being brought back.
    feeding: bool,
    /// StoredAs among those to be served.
    ready: bool,
}

impl Lane {
    pub(crate) fn len(&self) -> usize {
        self.on_time.len() + self.late.len()
    }

    /// The one that has waited longest, or nearly so.
    pub(crate) fn first(&self) -> Option<TaskId> {
        [self.late.front(), self.on_time.front()].into_iter().flatten().min().copied()
    }

    /// Whether one more would be too many.
    pub(crate) fn is_full(&self) -> bool {
        let parked = self.is_starved() && self.spilled.is_some();
        self.len() >= QUEUED_MAX || parked
    }

    pub(crate) const fn is_starved(&self) -> bool {
        self.room == 0
    }

    /// Whether it can take again what it has let go of.
    pub(crate) fn wants_more(&self) -> bool {
        self.spilled.is_some() && !self.feeding && !self.is_starved() && self.len() < QUEUED_LOW
    }

    /// Whether an attempt may start, and if so of which task.
    pub(crate) fn take(&mut self) -> Option<TaskId> {
        if self.inflight >= self.room {
            return None;
        }
        self.taken = self.taken.wrapping_add(1);
        let late_first = self.taken.is_multiple_of(LATE_SHARE);
        let (first, second) = match late_first {
            true => (&mut self.late, &mut self.on_time),
            false => (&mut self.on_time, &mut self.late),
        };
        first.pop_front().or_else(|| second.pop_front())
    }

    /// Takes the later part of the line out, or all of it.
    pub(crate) fn shorten(&mut self, keep: usize) -> Vec<TaskId> {
        let late = self.late.split_off(keep.min(self.late.len()));
        let keep = keep - self.late.len();
        let on_time = self.on_time.split_off(keep.min(self.on_time.len()));
        late.into_iter().chain(on_time).collect()
    }

    /// Learns from what came of a delivery: one that was not answered in time halves the room of a webhook, one that was makes it a
    /// little larger. The room of a queue is its workers' own business.
    fn learn(&mut self, outcome: Option<&Outcome>) {
        if matches!(self.id.1, Place::Queue(_)) {
            return;
        }
        self.room = match outcome {
            Some(Outcome::Expired) => (self.room / 2).max(INFLIGHT_MIN),
            Some(_) => (self.room + 1).min(INFLIGHT_MAX),
            None => self.room,
        };
    }

    fn is_over(&self) -> bool {
        self.len() == 0 && self.inflight == 0 && self.spilled.is_none()
    }
}

/// All lanes that have something in them.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Slab<Lane>,
    by_id: HashMap<LaneId, LaneNo, RandomState>,
    /// Who was asked for last: tasks of one lane come together.
    last: Option<LaneNo>,
    /// What the workers of queues want, as far as couriers have said.
    rooms: HashMap<LaneId, usize, RandomState>,
    /// Lanes that may have something to send.
    ready: Vec<LaneNo>,
    /// How many are being brought back what they let go of.
    feeding: usize,
    /// There may be lanes in which tasks stand in line for nobody.
    pub(crate) starved: bool,
    /// Deliveries under way, of all lanes.
    pub(crate) inflight: usize,
}

impl Lanes {
    /// The lane of a task, opened if it is not there.
    pub(crate) fn open(&mut self, definition: &NewTask, now: Timestamp) -> LaneNo {
        if let Some(lane) = self.find(definition) {
            return lane;
        }
        let id = LaneId::of(definition);
        let room = match id.1 {
            Place::Origin(_) => INFLIGHT_MAX,
            Place::Queue(_) => self.rooms.get(&id).copied().unwrap_or(0),
        };
        let slot = self.lanes.insert(Lane {
            id: id.clone(),
            on_time: VecDeque::new(),
            late: VecDeque::new(),
            taken: 0,
            inflight: 0,
            room,
            starved_since: (room == 0).then_some(now),
            spilled: None,
            feeding: false,
            ready: false,
        });
        let lane = LaneNo(u32::try_from(slot).expect("memory is full long before"));
        self.by_id.insert(id, lane);
        lane
    }

    /// The lane of a task, if it is there.
    fn find(&mut self, definition: &NewTask) -> Option<LaneNo> {
        let is_of = |lane: &LaneNo| self.lanes[lane.0 as usize].id.is_of(definition);
        if let Some(lane) = self.last.filter(is_of) {
            return Some(lane);
        }
        self.last = self.by_id.get(&LaneId::of(definition)).copied();
        self.last
    }

    pub(crate) fn get_mut(&mut self, lane: LaneNo) -> &mut Lane {
        &mut self.lanes[lane.0 as usize]
    }

    /// Lets go of a task that is not in line, or no longer: it stays in the store. If what was let go of is being brought back, all
    /// before `behind` is in line or done.
    pub(crate) fn spill(&mut self, lane: LaneNo, position: Position, behind: Option<Position>) {
        let line = &mut self.lanes[lane.0 as usize];
        let before = match (line.feeding, behind) {
            (true, Some(behind)) => Some(behind),
            _ => line.spilled,
        };
        line.spilled = Some(before.map_or(position, |before| before.min(position)));
        self.stop_feeding(lane);
    }

    /// Begins to bring back what a lane let go of. Out: from where.
    pub(crate) fn start_feeding(&mut self, lane: LaneNo) -> Option<Position> {
        let line = &mut self.lanes[lane.0 as usize];
        if !line.wants_more() {
            return None;
        }
        line.feeding = true;
        self.feeding += 1;
        line.spilled
    }

    fn stop_feeding(&mut self, lane: LaneNo) {
        let line = &mut self.lanes[lane.0 as usize];
        if line.feeding {
            line.feeding = false;
            self.feeding -= 1;
        }
    }

    /// Whether a task that was let go of may come back now. If its lane is full again, it is where to go on next time.
    pub(crate) fn takes(&mut self, task: &Task) -> bool {
        let Some(lane) = self.find(&task.definition) else {
            return true;
        };
        let line = &mut self.lanes[lane.0 as usize];
        if line.feeding && line.is_full() {
            line.spilled = Some(Position::of(task));
            self.stop_feeding(lane);
            return false;
        }
        line.feeding
    }

    pub(crate) const fn is_feeding(&self) -> bool {
        self.feeding > 0
    }

    /// Everything that was let go of was read: the lanes that were fed have it all.
    pub(crate) fn fed(&mut self) {
        let fed = |lane: &Lane| lane.feeding;
        let lanes: Vec<_> = self.iter().filter(|(_, lane)| fed(lane)).map(|(n, _)| n).collect();
        for lane in lanes {
            self.stop_feeding(lane);
            self.get_mut(lane).spilled = None;
            self.wake(lane);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneNo, &Lane)> {
        let number = |slot| LaneNo(u32::try_from(slot).expect("memory is full long before"));
        self.lanes.iter().map(move |(slot, lane)| (number(slot), lane))
    }

    /// Puts a task into line.
    pub(crate) fn push(&mut self, lane: LaneNo, id: TaskId, pace: Pace) {
        let line = self.get_mut(lane);
        match pace {
            Pace::OnTime => line.on_time.push_back(id),
            Pace::Late => line.late.push_back(id),
        }
        let starved = line.is_starved();
        self.starved |= starved;
        self.wake(lane);
    }

    /// Has a lane served at the end of this turn.
    pub(crate) fn wake(&mut self, lane: LaneNo) {
        let line = &mut self.lanes[lane.0 as usize];
        if !line.ready {
            line.ready = true;
            self.ready.push(lane);
        }
    }

    pub(crate) const fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn take_ready(&mut self) -> Vec<LaneNo> {
        let ready = std::mem::take(&mut self.ready);
        for lane in &ready {
            self.lanes[lane.0 as usize].ready = false;
        }
        ready
    }

    pub(crate) fn sent(&mut self, lane: LaneNo) {
        self.get_mut(lane).inflight += 1;
        self.inflight += 1;
    }

    /// A delivery is over: its place is free.
    pub(crate) fn came_back(&mut self, lane: LaneNo, outcome: Option<&Outcome>) {
        self.inflight -= 1;
        let line = self.get_mut(lane);
        line.inflight -= 1;
        line.learn(outcome);
        self.wake(lane);
    }

    /// Workers want so much from now on.
    pub(crate) fn give_room(&mut self, id: LaneId, room: usize, now: Timestamp) {
        match room {
            0 => self.rooms.remove(&id),
            room => self.rooms.insert(id.clone(), room),
        };
        let Some(lane) = self.by_id.get(&id).copied() else {
            return;
        };
        let line = self.get_mut(lane);
        line.room = room;
        line.starved_since = (room == 0).then(|| line.starved_since.unwrap_or(now));
        self.starved |= room == 0;
        self.wake(lane);
    }

    /// Closes a lane that has nothing in it.
    pub(crate) fn close_if_over(&mut self, lane: LaneNo) {
        let Some(line) = self.lanes.get(lane.0 as usize) else {
            return;
        };
        if line.is_over() && !line.ready {
            let line = self.lanes.remove(lane.0 as usize);
            self.by_id.remove(&line.id);
            self.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Due, HttpTarget, Method, Reason, Schedule};

    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;

    fn task(namespace: &str, url: &str) -> NewTask {
        let target = Target::Http(HttpTarget::new(url, Method::Post, vec![]).unwrap());
        let schedule = Schedule::Once(Due::At(NOW));
        NewTask::new(Namespace::new(namespace).unwrap(), schedule, target)
    }

    fn id(n: u64) -> TaskId {
        TaskId::floor(Timestamp::from_millis(n))
    }

    #[test]
    fn a_lane_is_a_namespace_and_a_place() {
        let lane = |namespace: &str, url: &str| LaneId::of(&task(namespace, url));
        assert_eq!(lane("a", "http://h:1/x"), lane("a", "http://h:1/y?z=/"));
        assert_eq!(lane("a", "http://h:1"), lane("a", "http://h:1?z"));
        assert_ne!(lane("a", "http://h:1/x"), lane("a", "http://h:2/x"));
        assert_ne!(lane("a", "http://h:1/x"), lane("a", "https://h:1/x"));
        assert_ne!(lane("a", "http://h:1/x"), lane("b", "http://h:1/x"));
    }

    #[test]
    fn work_on_time_goes_first_and_late_work_is_not_starved() {
        let mut lanes = Lanes::default();
        let lane = lanes.open(&task("a", "http://h"), NOW);
        for n in 0..4 {
            lanes.push(lane, id(n), Pace::Late);
            lanes.push(lane, id(10 + n), Pace::OnTime);
        }
        let line = lanes.get_mut(lane);
        let order: Vec<_> = std::iter::from_fn(|| line.take()).map(|id| id.due()).collect();
        let want = [10, 11, 12, 0, 13, 1, 2, 3].map(Timestamp::from_millis);
        assert_eq!(order, want);
    }

    #[test]
    fn a_webhook_that_does_not_answer_gets_less_at_once_and_more_again_when_it_does() {
        let mut lanes = Lanes::default();
        let lane = lanes.open(&task("a", "http://h"), NOW);
        let failed = Outcome::Failed { reason: Reason::new("no"), retry_in: None };
        for (outcome, want) in [
            (Some(Outcome::Expired), 128),
            (Some(Outcome::Acked), 129),
            (Some(failed), 130),
            (None, 130),
            (Some(Outcome::Expired), 65),
        ] {
            lanes.sent(lane);
            lanes.came_back(lane, outcome.as_ref());
            assert_eq!(lanes.get_mut(lane).room, want, "{outcome:?}");
        }
        for _ in 0..9 {
            lanes.sent(lane);
            lanes.came_back(lane, Some(&Outcome::Expired));
        }
        assert_eq!(lanes.get_mut(lane).room, INFLIGHT_MIN);
    }

    #[test]
    fn the_lane_of_a_queue_has_the_room_that_its_workers_give_it() {
        let queue = Queue::new("orders").unwrap();
        let new_task = NewTask { target: Target::Queue(queue.clone()), ..task("a", "http://h") };
        let lane_id = || LaneId::of_queue(Namespace::new("a").unwrap(), queue.clone());
        let mut lanes = Lanes::default();
        lanes.give_room(lane_id(), 7, NOW);
        let lane = lanes.open(&new_task, NOW);
        assert_eq!(lanes.get_mut(lane).room, 7);
        lanes.give_room(lane_id(), 0, NOW);
        assert!(lanes.get_mut(lane).is_starved());
        lanes.push(lane, id(1), Pace::OnTime);
        assert_eq!(lanes.get_mut(lane).take(), None);
        lanes.give_room(lane_id(), 1, NOW);
        assert_eq!(lanes.get_mut(lane).take(), Some(id(1)));
    }

    #[test]
    fn a_shortened_line_keeps_its_beginning() {
        let mut lanes = Lanes::default();
        let lane = lanes.open(&task("a", "http://h"), NOW);
        for n in 0..6 {
            lanes.push(lane, id(n), if n < 2 { Pace::Late } else { Pace::OnTime });
        }
        let line = lanes.get_mut(lane);
        assert_eq!(line.shorten(3), [id(3), id(4), id(5)]);
        assert_eq!(line.len(), 3);
        assert_eq!(line.shorten(0).len(), 3);
    }
}
