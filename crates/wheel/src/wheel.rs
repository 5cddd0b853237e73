//! The wheel: insert, cancel, advance, and the time of the next wake-up.
//!
//! Three things always hold. A live timer due at or after the wheel's time is in the slot
//! `SlotIndex::of(time, due)`; one that is due before is in `late`. A slot without live timers is
//! empty. No occupied slot of level 1 or higher contains the wheel's time.
//!
//! `slot_index` computes the slot of a due time, `slot` keeps lists of ids, `timers` the records.

use crate::occupancy::Occupancy;
use crate::slot::{CHUNK_LEN, Chunks, Slot};
use crate::slot_index::{SLOTS, SlotIndex};
use crate::timers::{TimerId, Timers};

/// The most timers of one wheel: the live and dead ids of a slot must be countable in 32 bits.
pub const TIMERS_MAX: u32 = 1 << 31;

/// The error of an insert into a wheel that has as many timers as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The limit of the wheel.
    pub timers_max: u32,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wheel is full: {} timers are pending", self.timers_max)
    }
}

impl std::error::Error for Full {}

/// A hierarchical timing wheel with slots of one tick. The page of the crate explains how it works.
///
/// ```
/// use punctual_wheel::Wheel;
///
/// let mut wheel = Wheel::new(1_000);
/// let tea = wheel.insert(1_180, "tea")?;
/// wheel.insert(1_060, "egg")?;
/// assert_eq!(wheel.next_due(), Some(1_060));
///
/// let mut expired = Vec::new();
/// wheel.advance(1_100, |due, value| expired.push((due, value)));
/// assert_eq!(expired, [(1_060, "egg")]);
///
/// assert_eq!(wheel.cancel(tea), Some("tea"));
/// assert_eq!(wheel.cancel(tea), None);
/// assert!(wheel.is_empty());
/// # Ok::<(), punctual_wheel::Full>(())
/// ```
#[derive(Debug)]
pub struct Wheel<T> {
    /// The latest `now` of all advances.
    time: u64,
    /// No occupied slot starts before this, so an advance that reaches no slot is two comparisons.
    wake: u64,
    timers: Timers<T>,
    occupancy: Occupancy,
    slots: Box<[Slot; SLOTS]>,
    /// Timers that were due before the wheel's time when they were inserted. Sorted when they
    /// expire.
    late: Slot,
    chunks: Chunks,
    timers_max: u32,
}

/// A buffer for the live ids of one chunk.
type LiveIds = [(u64, TimerId); CHUNK_LEN];
const NO_LIVE_IDS: LiveIds = [(0, TimerId::NONE); CHUNK_LEN];

impl<T: Copy> Wheel<T> {
    /// Makes an empty wheel with the time `now` and the limit [`TIMERS_MAX`].
    pub fn new(now: u64) -> Self {
        Wheel::with_timers_max(now, TIMERS_MAX)
    }

    /// Makes an empty wheel with the time `now` and a limit of at most [`TIMERS_MAX`]. No memory is
    /// reserved.
    pub fn with_timers_max(now: u64, timers_max: u32) -> Self {
        Wheel {
            time: now,
            wake: u64::MAX,
            timers: Timers::new(),
            occupancy: Occupancy::default(),
            slots: Box::new([Slot::EMPTY; SLOTS]),
            late: Slot::EMPTY,
            chunks: Chunks::new(),
            timers_max: timers_max.min(TIMERS_MAX),
        }
    }

    /// Adds a timer. If it is already due, the next advance gives it.
    ///
    /// # Errors
    ///
    /// [`Full`] if the wheel has as many timers as it may. The wheel is unchanged then.
    #[inline]
    pub fn insert(&mut self, due: u64, value: T) -> Result<TimerId, Full> {
        let full = Full { timers_max: self.timers_max };
        if self.timers.live() >= self.timers_max {
            return Err(full);
        }
        let id = self.timers.insert(due, value).ok_or(full)?;
        if due < self.time {
            self.late.push(&mut self.chunks, due, id);
        } else {
            self.put(due, id);
        }
        Ok(id)
    }

    /// Removes a timer before it expires and returns its value; `None` if it has expired or was
    /// cancelled. An id never cancels another timer than its own.
    #[inline]
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let (due, value) = self.timers.remove(id)?;
        let slot_index = (due >= self.time).then(|| SlotIndex::of(self.time, due));
        let slot = self.slot_mut(slot_index);
        slot.mark_dead();
        if slot.is_empty() {
            self.empty(slot_index);
        } else if slot.needs_sweep() {
            self.sweep(slot_index);
        }
        Some(value)
    }

    /// Calls `expire` with every timer with `due <= now` as `(due, value)`, in order of due time,
    /// and of insertion where due times are equal. Never with one that is due after `now`.
    ///
    /// `now` may jump by any amount. A `now` before an earlier one does not turn the wheel back; it
    /// only gives late timers that are due by it. If `expire` panics, the wheel may have lost
    /// timers and must not be used any more.
    #[inline]
    pub fn advance(&mut self, now: u64, mut expire: impl FnMut(u64, T)) {
        if self.late.earliest_due() <= now {
            self.expire_late(now, &mut expire);
        }
        if self.wake <= now {
            self.turn(now, &mut expire);
        }
        self.time = self.time.max(now);
    }

    /// When to advance next: not later than the earliest due time; `None` if there are no timers.
    ///
    /// It is the earliest due time itself, with one exception: if the earliest timer of the first
    /// occupied slot was cancelled and others remain in the slot, it may be the due time of the
    /// cancelled one. An advance to that time gives no timer and corrects it. Within the 256 ticks
    /// that share the wheel's upper digits it is always exact.
    pub fn next_due(&self) -> Option<u64> {
        if !self.late.is_empty() {
            return Some(self.late.earliest_due());
        }
        let slot_index = self.occupancy.first()?;
        Some(self.slots[slot_index.number()].earliest_due())
    }

    /// The latest `now` of all advances.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// How many timers are pending.
    pub fn len(&self) -> usize {
        self.timers.live() as usize
    }

    /// Whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.timers.live() == 0
    }

    /// Cancels every timer. The time stays, old ids match nothing, and memory is kept for further
    /// timers.
    pub fn clear(&mut self) {
        self.timers.clear();
        while let Some(slot_index) = self.occupancy.first() {
            self.empty(Some(slot_index));
        }
        self.empty(None);
    }

    /// The bytes that the wheel has allocated, plus its own size.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + size_of_val(&*self.slots)
            + self.timers.memory_bytes()
            + self.chunks.memory_bytes()
    }

    /// Adds an id that is due at or after the wheel's time to its slot.
    #[inline]
    fn put(&mut self, due: u64, id: TimerId) {
        let slot_index = SlotIndex::of(self.time, due);
        let slot = &mut self.slots[slot_index.number()];
        if slot.is_empty() {
            self.occupancy.set(slot_index);
            self.wake = self.wake.min(slot_index.start(self.time));
        }
        slot.push(&mut self.chunks, due, id);
    }

    /// Visits the occupied slots that start by `now`, in order of time.
    ///
    /// Not inlined into `advance`, so that a call in which nothing is due stays a few instructions.
    #[inline(never)]
    fn turn(&mut self, now: u64, expire: &mut impl FnMut(u64, T)) {
        let mut wake = u64::MAX;
        while let Some(slot_index) = self.occupancy.first() {
            let start = slot_index.start(self.time);
            if start > now {
                wake = start;
                break;
            }
            self.time = start;
            let slot = self.take(Some(slot_index));
            match slot_index.level() {
                0 => self.expire_slot(slot, expire),
                _ => self.cascade(slot),
            }
        }
        self.wake = wake;
    }

    /// Expires the timers of a slot of level 0. They all have the same due time.
    fn expire_slot(&mut self, mut slot: Slot, expire: &mut impl FnMut(u64, T)) {
        while let Some(taken) = slot.pop_chunk(&self.chunks) {
            for id in self.chunks.ids(&taken) {
                // Dead ids match nothing and are dropped here.
                if let Some((due, value)) = self.timers.remove(*id) {
                    expire(due, value);
                }
            }
            self.chunks.give_back(taken);
        }
    }

    /// Moves the timers of a slot of a higher level to lower levels, in their order.
    fn cascade(&mut self, mut slot: Slot) {
        let mut live_ids = NO_LIVE_IDS;
        while let Some(taken) = slot.pop_chunk(&self.chunks) {
            let live = self.timers.live_among(self.chunks.ids(&taken), &mut live_ids);
            self.chunks.give_back(taken);
            for (due, id) in &live_ids[..live] {
                self.put(*due, *id);
            }
        }
    }

    /// Expires the late timers that are due by `now`. All of them are, unless `now` went back.
    #[cold]
    fn expire_late(&mut self, now: u64, expire: &mut impl FnMut(u64, T)) {
        let mut late = self.live_in(None);
        // Stable, so that equal due times stay in order of insertion.
        late.sort_by_key(|(due, _)| *due);
        let due_by_now = late.partition_point(|(due, _)| *due <= now);
        for (due, id) in late.drain(due_by_now..) {
            self.late.push(&mut self.chunks, due, id);
        }
        for (_, id) in late {
            if let Some((due, value)) = self.timers.remove(id) {
                expire(due, value);
            }
        }
    }

    /// Rewrites a slot without its dead ids.
    #[cold]
    fn sweep(&mut self, slot_index: Option<SlotIndex>) {
        let mut slot = std::mem::replace(self.slot_mut(slot_index), Slot::EMPTY);
        let mut swept = Slot::EMPTY;
        let mut live_ids = NO_LIVE_IDS;
        while let Some(taken) = slot.pop_chunk(&self.chunks) {
            let live = self.timers.live_among(self.chunks.ids(&taken), &mut live_ids);
            self.chunks.give_back(taken);
            for (due, id) in &live_ids[..live] {
                swept.push(&mut self.chunks, *due, *id);
            }
        }
        *self.slot_mut(slot_index) = swept;
    }

    /// Empties a slot and returns its live ids with their due times.
    fn live_in(&mut self, slot_index: Option<SlotIndex>) -> Vec<(u64, TimerId)> {
        let mut slot = self.take(slot_index);
        let mut all = Vec::new();
        let mut live_ids = NO_LIVE_IDS;
        while let Some(taken) = slot.pop_chunk(&self.chunks) {
            let live = self.timers.live_among(self.chunks.ids(&taken), &mut live_ids);
            self.chunks.give_back(taken);
            all.extend_from_slice(&live_ids[..live]);
        }
        all
    }

    /// The slot at an index; `None` means the late timers.
    #[inline]
    fn slot_mut(&mut self, slot_index: Option<SlotIndex>) -> &mut Slot {
        match slot_index {
            Some(slot_index) => &mut self.slots[slot_index.number()],
            None => &mut self.late,
        }
    }

    /// Takes the list of a slot, which is empty then.
    #[inline]
    fn take(&mut self, slot_index: Option<SlotIndex>) -> Slot {
        if let Some(slot_index) = slot_index {
            self.occupancy.unset(slot_index);
        }
        std::mem::replace(self.slot_mut(slot_index), Slot::EMPTY)
    }

    /// Drops the list of a slot, with its dead ids.
    fn empty(&mut self, slot_index: Option<SlotIndex>) {
        self.take(slot_index).clear(&mut self.chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advanced<T: Copy>(wheel: &mut Wheel<T>, now: u64) -> Vec<(u64, T)> {
        let mut expired = Vec::new();
        wheel.advance(now, |due, value| expired.push((due, value)));
        expired
    }

    /// Ticks around which the digits of a time change.
    fn boundaries() -> impl Iterator<Item = u64> {
        (1..8).map(|level| 1u64 << (8 * level)).chain([3 << 8, 0x1ff << 8, 7 << 16, 1 << 63])
    }

    #[test]
    fn a_timer_is_never_early_and_never_late_at_any_boundary() {
        for boundary in boundaries() {
            for before in [boundary, 257, 256, 2, 1, 0] {
                let start = boundary.saturating_sub(before);
                for due in [boundary - 1, boundary, boundary + 1, boundary + 255, boundary + 256] {
                    let mut wheel = Wheel::new(start);
                    wheel.insert(due, 'a').unwrap();
                    assert_eq!(wheel.next_due(), Some(due), "from {start} to {due}");
                    if start < due {
                        assert_eq!(advanced(&mut wheel, due - 1), [], "from {start} to {due}");
                        assert_eq!(wheel.next_due(), Some(due), "from {start} to {due}");
                    }
                    assert_eq!(advanced(&mut wheel, due), [(due, 'a')], "from {start} to {due}");
                    assert_eq!(wheel.next_due(), None);
                }
            }
        }
    }

    #[test]
    fn every_tick_of_several_rounds_gives_its_own_timer() {
        let start = (1 << 16) - 700;
        let mut wheel = Wheel::new(start);
        for due in (start..start + 2_000).rev() {
            wheel.insert(due, due).unwrap();
        }
        for now in start..start + 2_000 {
            assert_eq!(advanced(&mut wheel, now), [(now, now)]);
        }
        assert!(wheel.is_empty());
    }

    #[test]
    fn one_jump_over_all_of_time_gives_everything_in_order() {
        let mut wheel = Wheel::new(0);
        let dues: Vec<u64> = boundaries().flat_map(|at| [at - 1, at, at + 1]).collect();
        for due in &dues {
            wheel.insert(*due, ()).unwrap();
        }
        wheel.insert(u64::MAX, ()).unwrap();
        let mut sorted = dues;
        sorted.sort_unstable();
        let expired = advanced(&mut wheel, u64::MAX - 1);
        assert_eq!(expired.iter().map(|(due, ())| *due).collect::<Vec<_>>(), sorted);
        assert_eq!(wheel.next_due(), Some(u64::MAX));
        assert_eq!(advanced(&mut wheel, u64::MAX), [(u64::MAX, ())]);
    }

    #[test]
    fn timers_at_the_end_of_time_can_be_inserted_repeatedly() {
        let mut wheel = Wheel::new(u64::MAX);
        for round in 0..3 {
            wheel.insert(u64::MAX, round).unwrap();
            wheel.insert(0, round).unwrap();
            assert_eq!(wheel.next_due(), Some(0));
            assert_eq!(advanced(&mut wheel, u64::MAX), [(0, round), (u64::MAX, round)]);
        }
    }

    #[test]
    fn equal_due_times_expire_in_order_of_insertion_from_any_level() {
        let due = 0x0123_4567;
        let mut wheel = Wheel::new(0);
        for (value, now) in
            [0, 0, 0x0122_0000, 0x0123_0000, 0x0123_4500, due].into_iter().enumerate()
        {
            assert!(now == due || advanced(&mut wheel, now).is_empty());
            wheel.insert(due, value).unwrap();
            if now == due {
                break;
            }
        }
        let values: Vec<_> =
            advanced(&mut wheel, due).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_timer_that_is_already_due_expires_at_the_next_advance_in_order() {
        let mut wheel = Wheel::new(1_000);
        for (due, value) in [(1_000, 'd'), (999, 'b'), (5, 'a'), (999, 'c'), (1_001, 'e')] {
            wheel.insert(due, value).unwrap();
        }
        assert_eq!(wheel.next_due(), Some(5));
        let expired = advanced(&mut wheel, 1_000);
        assert_eq!(expired, [(5, 'a'), (999, 'b'), (999, 'c'), (1_000, 'd')]);
        assert_eq!(wheel.next_due(), Some(1_001));
    }

    #[test]
    fn a_now_that_goes_back_does_not_turn_the_wheel_back() {
        let mut wheel = Wheel::new(1_000);
        wheel.insert(1_500, 'd').unwrap();
        assert_eq!(advanced(&mut wheel, 1_200), []);
        assert_eq!(advanced(&mut wheel, 300), []);
        assert_eq!(wheel.time(), 1_200);
        for (due, value) in [(900, 'b'), (200, 'a'), (1_250, 'c')] {
            wheel.insert(due, value).unwrap();
        }
        assert_eq!(advanced(&mut wheel, 300), [(200, 'a')], "due by 300, so it is given");
        assert_eq!(advanced(&mut wheel, 899), [], "900 is late for the wheel, not for 899");
        assert_eq!(wheel.next_due(), Some(900));
        assert_eq!(advanced(&mut wheel, 1_500), [(900, 'b'), (1_250, 'c'), (1_500, 'd')]);
    }

    #[test]
    fn a_stale_id_cancels_nothing() {
        let mut wheel = Wheel::new(0);
        let given = wheel.insert(1, 'a').unwrap();
        let cancelled = wheel.insert(2, 'b').unwrap();
        assert_eq!(wheel.cancel(cancelled), Some('b'));
        assert_eq!(advanced(&mut wheel, 1), [(1, 'a')]);
        // Both records are reused with new ids.
        let new = [wheel.insert(9, 'c').unwrap(), wheel.insert(9, 'd').unwrap()];
        for stale in [given, cancelled] {
            assert!(!new.contains(&stale));
            assert_eq!(wheel.cancel(stale), None);
        }
        assert_eq!(advanced(&mut wheel, 9), [(9, 'c'), (9, 'd')]);
    }

    #[test]
    fn clear_removes_timers_and_ids_but_keeps_the_time() {
        let mut wheel = Wheel::new(50);
        let ids: Vec<_> =
            [10, 50, 51, 1 << 20, u64::MAX].map(|due| wheel.insert(due, due).unwrap()).into();
        wheel.clear();
        assert!(wheel.is_empty());
        assert_eq!((wheel.next_due(), wheel.time()), (None, 50));
        let new = wheel.insert(60, 60).unwrap();
        for id in ids {
            assert_eq!(wheel.cancel(id), None);
        }
        assert_eq!(wheel.cancel(new), Some(60));
        assert_eq!(advanced(&mut wheel, u64::MAX), []);
    }

    #[test]
    fn a_full_wheel_refuses_timers_until_one_is_removed() {
        let mut wheel = Wheel::with_timers_max(0, 2);
        let first = wheel.insert(1, 'a').unwrap();
        wheel.insert(2, 'b').unwrap();
        let full = wheel.insert(3, 'c').unwrap_err();
        assert_eq!(full.to_string(), "wheel is full: 2 timers are pending");
        assert_eq!(wheel.len(), 2);
        wheel.cancel(first);
        assert!(wheel.insert(3, 'c').is_ok());
        assert_eq!(advanced(&mut wheel, 3), [(2, 'b'), (3, 'c')]);
        assert_eq!(Wheel::<()>::with_timers_max(0, u32::MAX).timers_max, TIMERS_MAX);
    }

    #[test]
    fn memory_stays_bounded_while_timers_are_inserted_and_cancelled_without_end() {
        // Without an advance; near, far, late, and in a slot with other timers.
        for due in [900, 1_000, 1_001, 5_000, 90_000, u64::MAX] {
            let mut wheel = Wheel::new(1_000);
            for value in 0..1_000 {
                wheel.insert(due, value).unwrap();
            }
            let bytes_max = wheel.memory_bytes() + 64 * 1024;
            for round in 0..100_000 {
                let id = wheel.insert(due, round).unwrap();
                assert_eq!(wheel.cancel(id), Some(round));
            }
            assert!(wheel.memory_bytes() <= bytes_max, "due {due}: {}", wheel.memory_bytes());
            assert_eq!(advanced(&mut wheel, u64::MAX).len(), 1_000);
        }
    }

    #[test]
    fn memory_stays_bounded_while_timers_are_postponed_without_end() {
        // As watches do: cancel, insert again at a later time, advance.
        let mut wheel = Wheel::new(0);
        let mut ids: Vec<_> =
            (0..1_000).map(|nth| wheel.insert(30_000 + nth, nth).unwrap()).collect();
        let mut bytes_max = 0;
        for now in 1..200_000u64 {
            let nth = now % 1_000;
            let id = &mut ids[usize::try_from(nth).unwrap()];
            assert_eq!(wheel.cancel(*id), Some(nth));
            *id = wheel.insert(now + 30_000, nth).unwrap();
            assert_eq!(advanced(&mut wheel, now), []);
            if now == 50_000 {
                bytes_max = wheel.memory_bytes();
            }
        }
        assert_eq!(wheel.memory_bytes(), bytes_max);
        assert_eq!(wheel.len(), 1_000);
    }

    #[test]
    fn the_wheel_does_not_wake_for_a_slot_whose_last_timer_was_cancelled() {
        let mut wheel = Wheel::new(0);
        let ids = [7, 300, 70_000].map(|due| wheel.insert(due, due).unwrap());
        wheel.insert(1 << 40, 0).unwrap();
        for (id, next) in ids.into_iter().zip([300, 70_000, 1 << 40]) {
            wheel.cancel(id);
            assert_eq!(wheel.next_due(), Some(next));
        }
    }

    #[test]
    fn an_advance_to_a_cancelled_timer_corrects_the_next_due_time() {
        let mut wheel = Wheel::new(0);
        let first = wheel.insert(600, 'a').unwrap();
        wheel.insert(700, 'b').unwrap();
        wheel.cancel(first);
        assert_eq!(wheel.next_due(), Some(600), "a lower bound: both shared a slot");
        assert_eq!(advanced(&mut wheel, 600), []);
        assert_eq!(wheel.next_due(), Some(700));
    }
}
