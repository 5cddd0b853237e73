//! Instants in milliseconds, and the trait of clocks.
//!
//! A [`Timestamp`] is always within the range that fits a `TaskId`. Rounding is decided here: up,
//! because a fire may be late but never early. `server/clock.rs` implements [`Clock`] with the
//! clock of the machine.

use std::fmt;
use std::time::Duration;

/// The source of `now`: the clock of the machine, or one that a test sets.
///
/// `now` never goes back, whatever the clock of the machine does, and is never further ahead of
/// true time than the clock of the machine is.
pub trait Clock: Send + Sync + 'static {
    /// The current instant, rounded down to a millisecond. A task that is due in this millisecond
    /// may fire; one that is due in the next may not.
    fn now(&self) -> Timestamp;

    /// How long it is until an instant; zero if it is past. More precise than `now`, so that a wait
    /// does not end a millisecond late.
    fn until(&self, at: Timestamp) -> Duration;
}

/// An instant in milliseconds since the Unix epoch, UTC. Made only by a [`Clock`] or a codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00.000Z.
    pub const EPOCH: Self = Self(0);
    /// 9999-12-30T22:00:00.000Z: the last instant whose year has four digits in every time zone. It
    /// fits 48 bits.
    pub const MAX: Self = Self(253_402_207_200_000);

    /// Makes a timestamp of a number that is known to be valid. Larger ones become
    /// [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        if millis > Self::MAX.0 { Self::MAX } else { Self(millis) }
    }

    /// Makes a timestamp of a number from outside, which may be out of range.
    pub fn try_from_millis(millis: i128) -> Result<Self, TimestampError> {
        match u64::try_from(millis) {
            Ok(millis) if millis <= Self::MAX.0 => Ok(Self(millis)),
            _ => Err(TimestampError::OutOfRange),
        }
    }

    /// Reads RFC 3339 text with an offset. A fraction of a millisecond is rounded up, and so is a
    /// leap second, which Unix time does not have.
    pub fn parse_rfc3339(text: &str) -> Result<Self, TimestampError> {
        let instant: jiff::Timestamp = text.parse().map_err(|_| error_of(text))?;
        let nanos = instant.as_nanosecond();
        if nanos < 0 {
            return Err(TimestampError::OutOfRange);
        }
        let millis = (nanos + 999_999) / 1_000_000;
        // The parser reads a leap second as the second before.
        Self::try_from_millis(if is_leap_second(text) { millis + 1_000 } else { millis })
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The instant `delay` later, rounded up to a millisecond, and no later than
    /// [`Timestamp::MAX`].
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        let millis = delay.as_nanos().div_ceil(1_000_000);
        let sum = u128::from(self.0).saturating_add(millis);
        u64::try_from(sum).map_or(Self::MAX, Self::from_millis)
    }

    /// The instant `millis` earlier, but not before the epoch.
    #[must_use]
    pub const fn millis_before(self, millis: u64) -> Self {
        Self(self.0.saturating_sub(millis))
    }

    /// The time since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Whether the time of day in a valid text has 60 as its second.
fn is_leap_second(text: &str) -> bool {
    let time = text.split_once(['T', 't', ' ']).map_or("", |(_, time)| time);
    let clock = time.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b':');
    clock.filter(u8::is_ascii_digit).skip(4).take(2).eq(*b"60")
}

/// Why a text is no timestamp: it may be valid RFC 3339 for an instant out of range.
fn error_of(text: &str) -> TimestampError {
    match jiff::fmt::temporal::Pieces::parse(text) {
        Ok(pieces) if pieces.time().is_some() && pieces.offset().is_some() => {
            TimestampError::OutOfRange
        }
        _ => TimestampError::NotRfc3339,
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0).expect("MAX fits an i64");
        let instant = jiff::Timestamp::from_millisecond(millis).expect("MAX is within its range");
        write!(f, "{instant:.3}")
    }
}

/// Why a text or a number is no timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    /// Before 1970 or after 9999.
    #[error("must lie between 1970-01-01T00:00:00Z and 9999-12-30T22:00:00Z")]
    OutOfRange,
    /// Not RFC 3339 text with an offset.
    #[error("must be RFC 3339 with an offset, like 2030-01-31T09:00:00Z or …+01:00")]
    NotRfc3339,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_text_is_rounded_up_to_the_millisecond() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", Ok(0)),
            ("1970-01-01T00:00:00.001Z", Ok(1)),
            ("1970-01-01T00:00:00.0010000001Z", Err(TimestampError::NotRfc3339)),
            ("1970-01-01T00:00:00.001000001Z", Ok(2)),
            ("1970-01-01T01:00:00+01:00", Ok(0)),
            ("9999-12-30T22:00:00Z", Ok(Timestamp::MAX.as_millis())),
            ("9999-12-30T22:00:00.001Z", Err(TimestampError::OutOfRange)),
            ("9999-12-31T23:59:59Z", Err(TimestampError::OutOfRange)),
            ("9999-12-31T23:59:59", Err(TimestampError::NotRfc3339)),
            ("1969-12-31T23:59:59.999Z", Err(TimestampError::OutOfRange)),
            ("1972-06-30T23:59:60Z", Ok(78_796_800_000)),
            ("1972-06-30T23:59:60.25Z", Ok(78_796_800_250)),
            ("1972-07-01 00:59:60+01:00", Ok(78_796_800_000)),
            ("19720630T235960Z", Ok(78_796_800_000)),
            ("1972-06-30T23:59:59.060Z", Ok(78_796_799_060)),
            ("1972-06-30T23:59+00:00", Ok(78_796_740_000)),
            ("1970-01-01T00:00:00", Err(TimestampError::NotRfc3339)),
            ("tomorrow", Err(TimestampError::NotRfc3339)),
        ] {
            let got = Timestamp::parse_rfc3339(text).map(Timestamp::as_millis);
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn a_number_outside_the_range_is_refused() {
        for (millis, want) in [
            (0, Ok(Timestamp::EPOCH)),
            (-1, Err(TimestampError::OutOfRange)),
            (253_402_207_200_000, Ok(Timestamp::MAX)),
            (253_402_207_200_001, Err(TimestampError::OutOfRange)),
            (i128::MAX, Err(TimestampError::OutOfRange)),
        ] {
            assert_eq!(Timestamp::try_from_millis(millis), want, "{millis}");
        }
    }

    #[test]
    fn a_delay_rounds_up_and_stops_at_the_end_of_time() {
        let start = Timestamp::from_millis(10);
        assert_eq!(start.after(Duration::from_micros(1)), Timestamp::from_millis(11));
        assert_eq!(start.after(Duration::from_millis(5)), Timestamp::from_millis(15));
        assert_eq!(start.after(Duration::MAX), Timestamp::MAX);
    }

    #[test]
    fn every_timestamp_has_a_text() {
        assert_eq!(Timestamp::EPOCH.to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            Timestamp::from_millis(1_700_000_000_123).to_string(),
            "2023-11-14T22:13:20.123Z"
        );
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T22:00:00.000Z");
    }
}
