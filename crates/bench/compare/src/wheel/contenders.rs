//! The timer queues that are compared: the wheel of Punctual and five others.
//!
//! Each is used in the way that suits it best, with a `u32` as its value.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hierarchical_hash_wheel_timer::IdOnlyTimerEntry;
use hierarchical_hash_wheel_timer::wheels::{cancellable, quad_wheel};
use punctual_wheel::{TimerId, Wheel};
use tokio_util::time::{DelayQueue, delay_queue};

use crate::work::{Contender, TimerWorkload, WheelFigures, measure};

type Measure = fn(&TimerWorkload) -> WheelFigures;

pub const CONTENDERS: &[(&str, Measure)] = &[
    ("punctual-wheel", measure::<Wheel<u32>>),
    ("tokio-util DelayQueue", measure::<Delays>),
    ("hierarchical_hash_wheel_timer", measure::<Plain>),
    ("the same, cancellable", measure::<Cancellable>),
    ("std BinaryHeap", measure::<BinaryHeap<Reverse<(u64, u32)>>>),
    ("std BTreeMap", measure::<BTreeMap<(u64, u32), ()>>),
];

impl Contender for Wheel<u32> {
    type Handle = TimerId;
    const CANCELS: bool = true;

    fn new() -> Self {
        Wheel::new(0)
    }

    fn insert(&mut self, due: u64, value: u32) -> TimerId {
        Wheel::insert(self, due, value).expect("a bench does not fill the wheel")
    }

    fn cancel(&mut self, id: &TimerId) -> bool {
        Wheel::cancel(self, *id).is_some()
    }

    fn step(&mut self, now: u64, mut expired: impl FnMut(u32)) {
        self.advance(now, |_, value| expired(value));
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(Wheel::memory_bytes(self))
    }
}

/// `DelayQueue` reads tokio's clock, which is paused and advanced by the bench. Advancing it costs
/// more than the queue does, so it is advanced once a second. The queue itself steps from due time
/// to due time in either case.
struct Delays {
    runtime: tokio::runtime::Runtime,
    start: tokio::time::Instant,
    queue: DelayQueue<u32>,
}

const DELAYS_STEP_MS: u64 = 1_000;

impl Contender for Delays {
    type Handle = delay_queue::Key;
    const CANCELS: bool = true;

    #[expect(clippy::disallowed_methods, reason = "the paused clock that the queue reads")]
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without IO needs nothing");
        let start = runtime.block_on(async { tokio::time::Instant::now() });
        Delays { runtime, start, queue: DelayQueue::new() }
    }

    fn insert(&mut self, due: u64, value: u32) -> delay_queue::Key {
        let _entered = self.runtime.enter();
        self.queue.insert_at(value, self.start + Duration::from_millis(due))
    }

    fn cancel(&mut self, key: &delay_queue::Key) -> bool {
        self.queue.try_remove(key).is_some()
    }

    fn step(&mut self, now: u64, mut expired: impl FnMut(u32)) {
        if now == 0 || !now.is_multiple_of(DELAYS_STEP_MS) {
            return;
        }
        self.runtime.block_on(tokio::time::advance(Duration::from_millis(DELAYS_STEP_MS)));
        let _entered = self.runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(entry)) = self.queue.poll_expired(&mut context) {
            expired(entry.into_inner());
        }
    }
}

struct Plain(quad_wheel::QuadWheelWithOverflow<u32>);

impl Contender for Plain {
    type Handle = ();
    const CANCELS: bool = false;

    fn new() -> Self {
        Plain(quad_wheel::QuadWheelWithOverflow::default())
    }

    fn insert(&mut self, due: u64, value: u32) {
        self.0
            .insert_with_delay(value, Duration::from_millis(due))
            .expect("no timer of the bench is late");
    }

    fn cancel(&mut self, (): &()) -> bool {
        false
    }

    fn step(&mut self, now: u64, expired: impl FnMut(u32)) {
        // Its time starts at 0, and its first tick is 1.
        if now > 0 {
            self.0.tick().into_iter().for_each(expired);
        }
    }
}

struct Cancellable(cancellable::QuadWheelWithOverflow<IdOnlyTimerEntry<u32>>);

impl Contender for Cancellable {
    type Handle = u32;
    const CANCELS: bool = true;

    fn new() -> Self {
        Cancellable(cancellable::QuadWheelWithOverflow::new())
    }

    fn insert(&mut self, due: u64, value: u32) -> u32 {
        let delay = Duration::from_millis(due);
        self.0
            .insert(IdOnlyTimerEntry { id: value, delay })
            .expect("no timer of the bench is late");
        value
    }

    fn cancel(&mut self, id: &u32) -> bool {
        self.0.cancel(id).is_ok()
    }

    fn step(&mut self, now: u64, mut expired: impl FnMut(u32)) {
        if now > 0 {
            self.0.tick().into_iter().for_each(|entry| expired(entry.id));
        }
    }
}

impl Contender for BinaryHeap<Reverse<(u64, u32)>> {
    type Handle = ();
    const CANCELS: bool = false;

    fn new() -> Self {
        BinaryHeap::new()
    }

    fn insert(&mut self, due: u64, value: u32) {
        self.push(Reverse((due, value)));
    }

    fn cancel(&mut self, (): &()) -> bool {
        false
    }

    fn step(&mut self, now: u64, mut expired: impl FnMut(u32)) {
        while self.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            if let Some(Reverse((_, value))) = self.pop() {
                expired(value);
            }
        }
    }
}

impl Contender for BTreeMap<(u64, u32), ()> {
    type Handle = (u64, u32);
    const CANCELS: bool = true;

    fn new() -> Self {
        BTreeMap::new()
    }

    fn insert(&mut self, due: u64, value: u32) -> (u64, u32) {
        BTreeMap::insert(self, (due, value), ());
        (due, value)
    }

    fn cancel(&mut self, key: &(u64, u32)) -> bool {
        self.remove(key).is_some()
    }

    fn step(&mut self, now: u64, mut expired: impl FnMut(u32)) {
        while let Some(first) = self.first_entry() {
            if first.key().0 > now {
                break;
            }
            expired(first.remove_entry().0.1);
        }
    }
}
