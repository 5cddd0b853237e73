//! The machine's clocks: the one file that reads them.
//!
//! In: the wall clock at the start, and from then on a clock that nobody can set. Out: a time that never goes back and never
//! jumps, whatever is done to the wall clock. The two are compared every second: a small difference is followed slowly, a
//! large one is shown as *suspect* and followed by nobody but a restart.
//! Next door: `course` (time as a function of the steady clock), `doubt` (what a difference means). Why so: `docs/adr/0010`.

#![expect(clippy::disallowed_methods, reason = "this is the one file that may")]

mod course;
mod doubt;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_core::{Clock, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::MissedTickBehavior;

use crate::telemetry::Telemetry;
use course::Course;
pub(crate) use course::Offset;
pub(crate) use doubt::Doubt;
use doubt::Doubts;

/// How often the clocks are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// How often they are read for one comparison: the tightest reading counts, so that being held up in between is not taken
/// for a difference.
const READINGS: usize = 5;

/// What nobody can set. It counts the time in which the machine sleeps; elsewhere than on Linux the monotonic clock has to do.
#[cfg(target_os = "linux")]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const STEADY: ClockId = ClockId::Monotonic;

/// The machine's time.
#[derive(Debug)]
pub(crate) struct SystemClock {
    course: Course,
    doubts: Mutex<Doubts>,
}

impl SystemClock {
    /// Believes the wall clock, for the last time.
    #[must_use]
    pub(crate) fn start() -> Self {
        let (steady, wall) = both();
        Self { course: Course::new(steady, wall), doubts: Mutex::new(Doubts::new(steady, wall)) }
    }

    /// As precise as the machine goes, to see how long something took.
    pub(crate) fn reading(&self) -> Duration {
        Duration::from_nanos(steady())
    }

    /// The store saw this time: a wall clock that is before it is suspect.
    pub(crate) fn was_seen(&self, at: Timestamp) {
        self.lock().saw(at);
    }

    /// Compares the clocks, for ever.
    pub(crate) async fn watch(&self, telemetry: &Telemetry) {
        let mut ticks = tokio::time::interval(COMPARE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.compare(telemetry);
        }
    }

    /// Why the wall clock is not believed, if it is not.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        self.lock().doubt()
    }

    fn compare(&self, telemetry: &Telemetry) {
        let (steady, wall) = both();
        let compared = self.lock().compare(steady, self.course.at(steady), wall);
        telemetry.clock(compared.offset, compared.doubt.is_some());
        if compared.is_news {
            match compared.doubt {
                Some(doubt) => tracing::warn!(
                    offset_seconds = compared.offset.as_seconds(),
                    "clock suspect: {doubt}"
                ),
                None => tracing::info!(
                    offset_seconds = compared.offset.as_seconds(),
                    "the machine's clock is believed again"
                ),
            }
        }
        self.course.shift(steady, compared.shift, self::steady);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Doubts> {
        // What it guards is consistent between any two steps.
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.course.now(steady).as_millis())
    }

    fn until(&self, at: Timestamp) -> Duration {
        // While time is bent this is a tenth too short, and whoever waits looks again, or half a millisecond in a second too long.
        Duration::from_millis(at.as_millis()).saturating_sub(self.course.now(steady).since_epoch())
    }
}

/// The steady clock, in nanoseconds since it began.
fn steady() -> u64 {
    let reading = clock_gettime(STEADY);
    let seconds = u64::try_from(reading.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(reading.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The wall clock since the Unix epoch. Before that is as good as then.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Both clocks at the same moment, as nearly as can be.
fn both() -> (u64, course::Instant) {
    let reading = |_| {
        let (before, wall, after) = (steady(), wall(), steady());
        let width = after.saturating_sub(before);
        (width, (before + width / 2, course::Instant::from_epoch(wall)))
    };
    let tightest = (0..READINGS).map(reading).min_by_key(|(width, _)| *width);
    tightest.map(|(_, both)| both).expect("it is read more than once")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_until_an_instant_ends_in_its_first_millisecond_and_not_before() {
        let clock = SystemClock::start();
        let at = clock.now().after(Duration::from_millis(3));
        let (until, now) = (clock.until(at), clock.course.now(steady).since_epoch());
        assert!(until <= Duration::from_millis(3), "{until:?}");
        assert!(now + until >= Duration::from_millis(at.as_millis()), "{until:?}");
        assert_eq!(clock.until(Timestamp::EPOCH), Duration::ZERO);
    }

    #[test]
    fn a_clock_that_nobody_touches_is_believed() {
        let clock = SystemClock::start();
        let telemetry = Telemetry::new();
        for _ in 0..100 {
            clock.compare(&telemetry);
        }
        assert_eq!(clock.doubt(), None);
        let (steady, wall) = both();
        let offset = wall.offset_from(clock.course.at(steady));
        assert!(offset.within(Duration::from_millis(50)), "{offset:?}");
    }

    #[test]
    fn a_time_that_the_store_saw_and_that_is_still_to_come_is_suspect() {
        let clock = SystemClock::start();
        clock.was_seen(clock.now().after(Duration::from_secs(3600)));
        clock.compare(&Telemetry::new());
        let doubt = clock.doubt().expect("the store knows better");
        assert!(doubt.to_string().contains("before the time"), "{doubt}");
    }
}
