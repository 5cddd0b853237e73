//! Turns the local times of an expression into instants, across the clock changes of a zone.
//!
//! Between two changes the offset is subtracted. When the clocks go forward, local times in the gap
//! fire at its end or not at all ([`Gap`]). When they go back, local times that are shown twice
//! fire the first time only or both times ([`Twice`]). Instants are strictly increasing.

use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};

use crate::zone::{ClockChange, Zone};

use super::calendar::Fields;
use super::{Gap, Twice};

/// How long before a local time the search must consider every clock change. More than the offsets
/// of any two zones differ, so that the search can skip everything before it.
const NEAR: SignedDuration = SignedDuration::from_hours(72);

/// How many local times in a row may fall into gaps and be skipped. A zone has about one gap a
/// year; a time that falls into all of them (02:30 on the last Sunday of March in Berlin) never
/// fires.
const GAPS_MAX: u32 = 64;

/// The first fire time strictly after an instant.
pub(super) fn next_after(
    fields: &Fields,
    zone: &Zone,
    gap: Gap,
    twice: Twice,
    after: Timestamp,
) -> Option<Timestamp> {
    // Fire times are whole seconds.
    let start = Timestamp::from_second(after.as_second().checked_add(1)?).ok()?;
    let mut period = zone.period_at(after);
    let mut from = period.offset.to_datetime(start);
    if twice == Twice::Once
        && let Some(change) = zone.change_shortly_before(after, period.offset)
    {
        // The local times before the clocks went back were shown already.
        from = from.max(change.local_before());
    }
    let mut gaps = 0;
    while gaps < GAPS_MAX {
        let local = fields.first_from(from);
        let Some(change) = period.end else {
            return period.offset.to_timestamp(local?).ok();
        };
        let (before, after) = (change.local_before(), change.local_after());
        if let Some(local) = local.filter(|local| *local < before) {
            return period.offset.to_timestamp(local).ok();
        }
        // Nothing is left in this period.
        period = zone.period_after(&change);
        if after < before && twice == Twice::Both {
            from = after;
            continue;
        }
        from = local?;
        if from < after {
            match gap {
                Gap::After => return Some(change.at),
                Gap::Skip => (from, gaps) = (after, gaps + 1),
            }
        } else if let Some(near) = shortly_before(from).filter(|near| *near > change.at) {
            period = zone.period_at(near);
        }
    }
    None
}

/// An instant that is before a local time in every zone.
fn shortly_before(local: DateTime) -> Option<Timestamp> {
    let in_utc = jiff::tz::Offset::UTC.to_timestamp(local).ok()?;
    in_utc.checked_sub(NEAR).ok()
}

/// Explains how a clock change affects the fire at an instant; `None` if it does not.
pub(super) fn note(
    fields: &Fields,
    zone: &Zone,
    gap: Gap,
    twice: Twice,
    at: Timestamp,
) -> Option<String> {
    let period = zone.period_at(at);
    let local = period.offset.to_datetime(at);
    if let Some(change) = zone.change_shortly_before(at, period.offset) {
        let (before, after) = (change.local_before(), change.local_after());
        if gap == Gap::After
            && change.at == at
            && let Some(missing) = fields.first_from(before).filter(|missing| *missing < after)
        {
            let day = if before.date() == after.date() { " on this day" } else { "" };
            let missing = clock(missing, &change);
            return Some(format!("{missing} does not exist{day}: {}", moved(&change)));
        }
        if after <= local && local < before {
            let local = clock(local, &change);
            return Some(format!("second of two {local}: {}", moved(&change)));
        }
    }
    let change = period.end?;
    if local < change.local_after() || change.local_before() <= local {
        return None;
    }
    let local = clock(local, &change);
    let second = match twice {
        Twice::Once => "the second is left out",
        Twice::Both => "both fire",
    };
    Some(format!("first of two {local}, {second}: {}", moved(&change)))
}

/// `the clocks go forward from 02:00 to 03:00`.
fn moved(change: &ClockChange) -> String {
    let (before, after) = (change.local_before(), change.local_after());
    let direction = if before < after { "forward" } else { "back" };
    let (before, after) = (clock(before, change), clock(after, change));
    format!("the clocks go {direction} from {before} to {after}")
}

/// A local time near a change: without seconds if they are 0, and with the date if the change
/// affects two days.
fn clock(local: DateTime, change: &ClockChange) -> String {
    let one_day = change.local_before().date() == change.local_after().date();
    let format = match (one_day, local.second()) {
        (true, 0) => "%H:%M",
        (true, _) => "%H:%M:%S",
        (false, 0) => "%Y-%m-%d %H:%M",
        (false, _) => "%Y-%m-%d %H:%M:%S",
    };
    local.strftime(format).to_string()
}
