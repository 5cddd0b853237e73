//! From local times to instants, across the changes of a zone's clocks.
//!
//! In: the local times that an expression means, and a zone. Out: instants, each later than the one
//! before. Between two changes there is nothing to it: the offset is subtracted. At a change forward,
//! local times in the gap count at its end or not at all ([`Gap`]). At a change back, the local times
//! that come again count the first time only or both times ([`Twice`]).

use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};

use crate::zone::{Change, Zone};

use super::calendar::Fields;
use super::{Gap, Twice};

/// How close to a local time the search must look at every change of clocks: more than any two
/// zones can be apart, so that what lies further ahead can be gone to at once.
const NEAR: SignedDuration = SignedDuration::from_hours(72);

/// How many local times in a row may fall into gaps and be left out. A gap comes once a year; what
/// falls into it every time (02:30 on the last Sunday of March in Berlin) never occurs.
const GAPS_MAX: u32 = 64;

/// The first instant that is meant strictly after another.
pub(super) fn next_after(
    fields: &Fields,
    zone: &Zone,
    gap: Gap,
    twice: Twice,
    after: Timestamp,
) -> Option<Timestamp> {
    // Instants that are meant are whole seconds.
    let start = Timestamp::from_second(after.as_second().checked_add(1)?).ok()?;
    let mut stretch = zone.stretch_at(after);
    let mut from = stretch.offset.to_datetime(start);
    if twice == Twice::Once
        && let Some(change) = zone.change_shortly_before(after, stretch.offset)
    {
        // What was there before the clocks went back has had its turn.
        from = from.max(change.local_before());
    }
    let mut gaps = 0;
    while gaps < GAPS_MAX {
        let local = fields.first_from(from);
        let Some(change) = stretch.end else {
            return stretch.offset.to_timestamp(local?).ok();
        };
        let (before, after) = (change.local_before(), change.local_after());
        if let Some(local) = local.filter(|local| *local < before) {
            return stretch.offset.to_timestamp(local).ok();
        }
        // Nothing is left in this stretch.
        stretch = zone.stretch_after(&change);
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
            stretch = zone.stretch_at(near);
        }
    }
    None
}

/// An instant before which a local time has not come in any zone.
fn shortly_before(local: DateTime) -> Option<Timestamp> {
    let somewhere = jiff::tz::Offset::UTC.to_timestamp(local).ok()?;
    somewhere.checked_sub(NEAR).ok()
}

/// What the clocks have to do with a fire at this instant.
pub(super) fn note(
    fields: &Fields,
    zone: &Zone,
    gap: Gap,
    twice: Twice,
    at: Timestamp,
) -> Option<String> {
    let stretch = zone.stretch_at(at);
    let local = stretch.offset.to_datetime(at);
    if let Some(change) = zone.change_shortly_before(at, stretch.offset) {
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
    let change = stretch.end?;
    if local < change.local_after() || change.local_before() <= local {
        return None;
    }
    let local = clock(local, &change);
    let second = match twice {
        Twice::Once => "the second is left out",
        Twice::Both => "both are meant",
    };
    Some(format!("first of two {local}, {second}: {}", moved(&change)))
}

/// `the clocks go forward from 02:00 to 03:00`.
fn moved(change: &Change) -> String {
    let (before, after) = (change.local_before(), change.local_after());
    let direction = if before < after { "forward" } else { "back" };
    let (before, after) = (clock(before, change), clock(after, change));
    format!("the clocks go {direction} from {before} to {after}")
}

/// A local time near a change: without seconds if it has none, and with the date if the change
/// touches two days.
fn clock(local: DateTime, change: &Change) -> String {
    let one_day = change.local_before().date() == change.local_after().date();
    let format = match (one_day, local.second()) {
        (true, 0) => "%H:%M",
        (true, _) => "%H:%M:%S",
        (false, 0) => "%Y-%m-%d %H:%M",
        (false, _) => "%Y-%m-%d %H:%M:%S",
    };
    local.strftime(format).to_string()
}
