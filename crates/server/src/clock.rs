//! The clock of the broker. No other file reads the clocks of the machine.
//!
//! The wall clock is read at the start; after that time follows the steady clock, which cannot be
//! set. The broker's time never goes back and never jumps, whatever happens to the wall clock. Both
//! clocks are compared every second: time follows a small difference slowly; with a large one the
//! wall clock is *suspect*, and the broker takes it over at the next restart only.
//!
//! `timeline` maps the steady clock to time, and `suspicion` decides what a difference means. The
//! reasons are in `docs/adr/0010`.
//!
//! For `punctual dev` time is virtual instead (`virtual_time`): it is frozen, or follows the
//! steady clock at a chosen speed, and a caller moves it. The reasons are in `docs/adr/0028`.

#![expect(clippy::disallowed_methods, reason = "this is the one file that may")]

mod suspicion;
mod timeline;
mod virtual_time;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_core::{Clock, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::MissedTickBehavior;

use crate::telemetry::Telemetry;
pub(crate) use suspicion::Suspicion;
use suspicion::WallClockCheck;
use timeline::ClockTimeline;
pub(crate) use timeline::Offset;
pub(crate) use virtual_time::Speed;
use virtual_time::VirtualTime;

/// How often the clocks are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// Readings for one comparison. The one that took the shortest counts, so that a pause between two
/// reads is not mistaken for a difference.
const READINGS: usize = 5;

/// A clock that cannot be set. On Linux it counts the time in which the machine is suspended; on
/// other systems it is the monotonic clock.
#[cfg(target_os = "linux")]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const STEADY: ClockId = ClockId::Monotonic;

/// The broker's time.
#[derive(Debug)]
pub(crate) struct SystemClock {
    timeline: ClockTimeline,
    wall_check: Mutex<WallClockCheck>,
    /// The time of tasks, if it is not the time of the machine.
    virtual_time: Option<Mutex<VirtualTime>>,
}

impl SystemClock {
    /// Reads the wall clock and starts from there.
    #[must_use]
    pub(crate) fn start() -> Self {
        let (steady, wall) = both();
        Self {
            timeline: ClockTimeline::new(steady, wall),
            wall_check: Mutex::new(WallClockCheck::new(steady, wall)),
            virtual_time: None,
        }
    }

    /// Starts virtual time, frozen at this instant.
    #[must_use]
    pub(crate) fn start_virtual(at: Timestamp) -> Self {
        let virtual_time = Some(Mutex::new(VirtualTime::frozen_at(at)));
        Self { virtual_time, ..Self::start() }
    }

    pub(crate) const fn is_virtual(&self) -> bool {
        self.virtual_time.is_some()
    }

    /// Returns how fast virtual time passes; `None` if it is frozen.
    pub(crate) fn speed(&self) -> Option<Speed> {
        self.virtual_time().and_then(|time| time.speed())
    }

    /// Lets virtual time pass at a speed, or freezes it.
    pub(crate) fn set_speed(&self, speed: Option<Speed>) {
        if let Some(mut time) = self.virtual_time() {
            time.set_speed(speed, steady());
        }
    }

    /// Moves virtual time forward to an instant. Time that is later already stays.
    pub(crate) fn move_to(&self, at: Timestamp) {
        if let Some(mut time) = self.virtual_time() {
            time.move_to(at, steady());
        }
    }

    /// The time of the machine, for what waits for the network and not for the time of a task.
    pub(crate) fn machine_now(&self) -> Timestamp {
        Timestamp::from_millis(self.timeline.now(steady).as_millis())
    }

    fn virtual_time(&self) -> Option<MutexGuard<'_, VirtualTime>> {
        // Every update is a single step, so the value is consistent even after a panic.
        let time = self.virtual_time.as_ref()?;
        Some(time.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a precise reading of the steady clock, to measure how long something takes.
    pub(crate) fn reading(&self) -> Duration {
        Duration::from_nanos(steady())
    }

    /// Records a time at which the store was in use: a wall clock before it is suspect.
    pub(crate) fn saw_store_time(&self, at: Timestamp) {
        if self.is_virtual() {
            return;
        }
        self.lock().saw_store_time(at);
    }

    /// Compares the clocks every second. Never returns.
    pub(crate) async fn watch(&self, telemetry: &Telemetry) {
        let mut ticks = tokio::time::interval(COMPARE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.compare(telemetry);
        }
    }

    /// Returns why the wall clock is suspect, if it is.
    pub(crate) fn suspicion(&self) -> Option<Suspicion> {
        self.lock().suspicion()
    }

    fn compare(&self, telemetry: &Telemetry) {
        let (steady, wall) = both();
        let compared = self.lock().compare(steady, self.timeline.at(steady), wall);
        telemetry.clock(compared.offset, compared.suspicion.is_some());
        if compared.is_news {
            match compared.suspicion {
                Some(suspicion) => tracing::warn!(
                    offset_seconds = compared.offset.as_seconds(),
                    "clock suspect: {suspicion}"
                ),
                None => tracing::info!(
                    offset_seconds = compared.offset.as_seconds(),
                    "the machine's clock is believed again"
                ),
            }
        }
        self.timeline.shift(steady, compared.shift, self::steady);
    }

    fn lock(&self) -> MutexGuard<'_, WallClockCheck> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.wall_check.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match self.virtual_time() {
            Some(time) => time.now(steady()),
            None => self.machine_now(),
        }
    }

    fn until(&self, at: Timestamp) -> Duration {
        if let Some(time) = self.virtual_time() {
            return time.until(at, steady());
        }
        // While time is adjusted, this is up to a tenth too short, and the caller waits again, or
        // half a millisecond per second too long.
        Duration::from_millis(at.as_millis())
            .saturating_sub(self.timeline.now(steady).since_epoch())
    }
}

/// Reads the steady clock, in nanoseconds.
fn steady() -> u64 {
    let reading = clock_gettime(STEADY);
    let seconds = u64::try_from(reading.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(reading.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Reads the wall clock as a duration since the Unix epoch; zero if it is before.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Reads both clocks at the same moment, as nearly as possible.
fn both() -> (u64, timeline::UnixNanos) {
    let reading = |_| {
        let (before, wall, after) = (steady(), wall(), steady());
        let width = after.saturating_sub(before);
        (width, (before + width / 2, timeline::UnixNanos::from_epoch(wall)))
    };
    let tightest = (0..READINGS).map(reading).min_by_key(|(width, _)| *width);
    tightest.map(|(_, both)| both).expect("there is more than one reading")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_ends_in_the_first_millisecond_of_the_instant_and_not_before() {
        let clock = SystemClock::start();
        let at = clock.now().after(Duration::from_millis(3));
        let (until, now) = (clock.until(at), clock.timeline.now(steady).since_epoch());
        assert!(until <= Duration::from_millis(3), "{until:?}");
        assert!(now + until >= Duration::from_millis(at.as_millis()), "{until:?}");
        assert_eq!(clock.until(Timestamp::EPOCH), Duration::ZERO);
    }

    #[test]
    fn a_clock_that_is_not_set_is_never_suspect() {
        let clock = SystemClock::start();
        let telemetry = Telemetry::new();
        for _ in 0..100 {
            clock.compare(&telemetry);
        }
        assert_eq!(clock.suspicion(), None);
        let (steady, wall) = both();
        let offset = wall.offset_from(clock.timeline.at(steady));
        assert!(offset.within(Duration::from_millis(50)), "{offset:?}");
    }

    #[test]
    fn a_wall_clock_before_the_time_of_the_store_is_suspect() {
        let clock = SystemClock::start();
        clock.saw_store_time(clock.now().after(Duration::from_secs(3600)));
        clock.compare(&Telemetry::new());
        let suspicion = clock.suspicion().expect("the store time is later");
        assert!(suspicion.to_string().contains("before the time"), "{suspicion}");
    }
}
