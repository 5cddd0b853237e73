//! Gauges of the owners of a broker.

use punctual_engine::{Gauges, Skips};
use punctual_store::codec::{CodecError, put_timestamp, put_varint};

use super::{VERSION, WireResult, open};

/// Skipped fires since a broker started: a million a second for eight years.
const SKIPS_MAX: u64 = 1 << 48;

/// Writes gauges.
pub(crate) fn put_gauges(gauges: &Gauges) -> Vec<u8> {
    let Gauges {
        loaded,
        queued,
        in_flight,
        firing,
        claimed,
        claimed_unsent,
        claimed_overlapping,
        lanes,
        parked_lanes,
        oldest_overdue,
        unread_since,
        skips: Skips { misfire, overlap, paused },
    } = *gauges;
    let mut out = vec![VERSION];
    let claims = [claimed, claimed_unsent, claimed_overlapping];
    for count in [loaded, queued, in_flight, firing].into_iter().chain(claims) {
        put_varint(&mut out, count as u64);
    }
    for count in [lanes, parked_lanes] {
        put_varint(&mut out, count as u64);
    }
    for count in [misfire, overlap, paused] {
        put_varint(&mut out, count);
    }
    for time in [oldest_overdue, unread_since] {
        out.push(u8::from(time.is_some()));
        if let Some(time) = time {
            put_timestamp(&mut out, time);
        }
    }
    out
}

/// Reads gauges.
pub(crate) fn read_gauges(bytes: &[u8]) -> WireResult<Gauges> {
    let mut reader = open(bytes)?;
    // Bounded, so that the sum over all brokers cannot overflow.
    let mut count = || reader.small::<u32>("count").map(|count| count as usize);
    let mut gauges = Gauges {
        loaded: count()?,
        queued: count()?,
        in_flight: count()?,
        firing: count()?,
        claimed: count()?,
        claimed_unsent: count()?,
        claimed_overlapping: count()?,
        lanes: count()?,
        parked_lanes: count()?,
        oldest_overdue: None,
        unread_since: None,
        skips: Skips::default(),
    };
    let mut skips = || match reader.varint()? {
        count if count <= SKIPS_MAX => Ok(count),
        _ => Err(CodecError::Invalid("count")),
    };
    gauges.skips = Skips { misfire: skips()?, overlap: skips()?, paused: skips()? };
    for time in [&mut gauges.oldest_overdue, &mut gauges.unread_since] {
        *time = match reader.byte()? {
            0 => None,
            1 => Some(reader.timestamp()?),
            _ => return Err(CodecError::Invalid("gauges").into()),
        };
    }
    reader.end()?;
    Ok(gauges)
}
