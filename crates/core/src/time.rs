//! Instants, and the one place where a wire number becomes one.
//!
//! In: milliseconds or RFC 3339 text. Out: [`Timestamp`], always within the range that a `TaskId`
//! can carry. Rounding is decided here: up, because a fire may be late but never early.
//! Not here: the machine's clock, which is `server/clock.rs` behind [`Clock`].

use std::fmt;
use std::time::Duration;

/// Where `now` comes from. Two kinds exist: the machine's, and one that a test moves by hand.
///
/// Contract: `now` never goes back, whatever the machine's clock does, and is never ahead of true
/// time by more than the machine's own clock is.
pub trait Clock: Send + Sync + 'static {
    /// The present instant, rounded down to a whole millisecond: a task due in this very
    /// millisecond may fire, one due in the next may not.
    fn now(&self) -> Timestamp;

    /// How long it is until an instant; zero if it has come. More precise than `now`, so that who
    /// waits for a millisecond does not wait for the one after.
    fn until(&self, at: Timestamp) -> Duration;
}

/// Milliseconds since the Unix epoch, UTC. Made only by a [`Clock`] or a codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00.000Z.
    pub const EPOCH: Self = Self(0);
    /// 9999-12-30T22:00:00.000Z: the last instant that every time zone can write in four digits of
    /// year; it fits 48 bits.
    pub const MAX: Self = Self(253_402_207_200_000);

    /// From a number that the code itself made. Beyond [`Timestamp::MAX`] it stays there.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        if millis > Self::MAX.0 { Self::MAX } else { Self(millis) }
    }

    /// From a number that somebody else made.
    pub fn try_from_millis(millis: i128) -> Result<Self, TimestampError> {
        match u64::try_from(millis) {
            Ok(millis) if millis <= Self::MAX.0 => Ok(Self(millis)),
            _ => Err(TimestampError::OutOfRange),
        }
    }

    /// From RFC 3339 text with an offset. A fraction of a millisecond rounds up, and so does a leap second: Unix time has none, and
    /// the second after it is the first that is not early.
    pub fn parse_rfc3339(text: &str) -> Result<Self, TimestampError> {
        let instant: jiff::Timestamp = text.parse().map_err(|_| why_not(text))?;
        let nanos = instant.as_nanosecond();
        if nanos < 0 {
            return Err(TimestampError::OutOfRange);
        }
        let millis = (nanos + 999_999) / 1_000_000;
        // What was read has the second before in its place.
        Self::try_from_millis(if is_leap_second(text) { millis + 1_000 } else { millis })
    }

    /// The number for codecs, the wheel and arithmetic at the edges.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This instant and `delay` later, a fraction of a millisecond rounded up.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        let millis = delay.as_nanos().div_ceil(1_000_000);
        let sum = u128::from(self.0).saturating_add(millis);
        u64::try_from(sum).map_or(Self::MAX, Self::from_millis)
    }

    /// This instant and so much earlier; never before the epoch.
    #[must_use]
    pub const fn millis_before(self, millis: u64) -> Self {
        Self(self.0.saturating_sub(millis))
    }

    /// How long since `earlier`; zero if that is still to come.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Whether the time of day in a text that was read has 60 as its second.
fn is_leap_second(text: &str) -> bool {
    let time = text.split_once(['T', 't', ' ']).map_or("", |(_, time)| time);
    let clock = time.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b':');
    clock.filter(u8::is_ascii_digit).skip(4).take(2).eq(*b"60")
}

/// Why a text is no instant: it may be RFC 3339 and name a time that cannot be written in every time zone.
fn why_not(text: &str) -> TimestampError {
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
        let instant = jiff::Timestamp::from_millisecond(millis)
            .expect("MAX is the last one that can be written");
        write!(f, "{instant:.3}")
    }
}

/// Why a time that somebody sent was not taken.
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
    fn text_becomes_an_instant_rounded_up_to_the_millisecond() {
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
    fn every_instant_can_be_shown() {
        assert_eq!(Timestamp::EPOCH.to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            Timestamp::from_millis(1_700_000_000_123).to_string(),
            "2023-11-14T22:13:20.123Z"
        );
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T22:00:00.000Z");
    }
}
