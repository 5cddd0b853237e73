//! Deliveries to a worker that polls at another broker, and its settlements.

use std::time::Duration;

use punctual_core::{
    AttemptNo, BACKOFF_MAX, FireId, Occasion, Payload, Reason, TIMEOUT_MAX, TaskKey, Timestamp,
    Version,
};
use punctual_store::codec::{
    CodecError, Reader, occasion_code, occasion_of, put_bytes, put_duration, put_fire_id,
    put_payload, put_timestamp, put_varint, read_payload,
};

use super::{Decoded, Packed, WireResult, list_of, read_list};
use crate::courier::queue::{LeaseToken, Leased, SettleResult, Settlement, WorkerResult};

/// Deliveries of one poll.
pub(crate) const DELIVERIES_MAX: usize = 1000;
/// Settlements in one message: as many as one request of a worker may have.
const SETTLEMENTS_MAX: usize = 10_000;

/// A delivery that a poll leased, on this broker or on another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Polled {
    /// Valid at the broker that leased the delivery.
    pub(crate) token: LeaseToken,
    /// How long the worker may take.
    pub(crate) lease: Duration,
    pub(crate) fire_id: FireId,
    pub(crate) attempt: AttemptNo,
    pub(crate) fire_at: Timestamp,
    pub(crate) fired_at: Timestamp,
    pub(crate) occasion: Occasion,
    pub(crate) version: Version,
    pub(crate) key: Option<TaskKey>,
    pub(crate) payload: Payload,
    /// The fire whose end is reported, if the delivery is a callback.
    pub(crate) callback_of: Option<FireId>,
}

impl From<&Leased> for Polled {
    fn from(leased: &Leased) -> Self {
        let delivery = &leased.delivery;
        Self {
            token: leased.token,
            lease: leased.lease,
            fire_id: delivery.fire_id,
            attempt: delivery.attempt,
            fire_at: delivery.fire_at,
            fired_at: delivery.fired_at,
            occasion: delivery.occasion,
            version: delivery.version,
            key: delivery.definition.key.clone(),
            payload: delivery.definition.payload.clone(),
            callback_of: delivery.definition.callback_of,
        }
    }
}

/// Encodes deliveries in pieces of about a megabyte.
pub(crate) fn delivery_pieces(deliveries: Vec<Polled>) -> impl Iterator<Item = Vec<u8>> + Send {
    Packed { values: deliveries.into_iter(), put: put_delivery }
}

/// Reads one piece.
pub(crate) fn read_deliveries(bytes: &[u8]) -> WireResult<Vec<Polled>> {
    read_list(bytes, DELIVERIES_MAX, read_delivery)
}

fn put_delivery(out: &mut Vec<u8>, polled: &Polled) {
    put_varint(out, polled.token.0);
    put_duration(out, polled.lease);
    put_fire_id(out, polled.fire_id);
    put_varint(out, u64::from(polled.attempt.get()));
    put_timestamp(out, polled.fire_at);
    put_timestamp(out, polled.fired_at);
    out.push(occasion_code(polled.occasion));
    put_varint(out, polled.version.get());
    // A key is never empty, so an empty text means none.
    let key = polled.key.as_ref().map_or("", TaskKey::as_str);
    put_bytes(out, key.as_bytes());
    put_payload(out, &polled.payload);
    out.push(u8::from(polled.callback_of.is_some()));
    polled.callback_of.into_iter().for_each(|fire_id| put_fire_id(out, fire_id));
}

fn read_delivery(reader: &mut Reader<'_>) -> Decoded<Polled> {
    Ok(Polled {
        token: LeaseToken(reader.varint()?),
        lease: reader.duration()?,
        fire_id: reader.fire_id()?,
        attempt: AttemptNo::new(reader.small("attempt")?),
        fire_at: reader.timestamp()?,
        fired_at: reader.timestamp()?,
        occasion: occasion_of(reader.byte()?)?,
        version: Version::new(reader.varint()?),
        key: match reader.text()? {
            "" => None,
            key => Some(TaskKey::new(key).map_err(|_| CodecError::Invalid("key"))?),
        },
        payload: read_payload(reader)?,
        callback_of: match reader.byte()? {
            0 => None,
            1 => Some(reader.fire_id()?),
            _ => return Err(CodecError::Invalid("callback")),
        },
    })
}

/// Writes settlements.
pub(crate) fn put_settlements(settlements: &[(LeaseToken, Settlement)]) -> Vec<u8> {
    list_of(settlements, |out, (token, settlement)| {
        put_varint(out, token.0);
        put_settlement(out, settlement);
    })
}

/// Reads settlements.
pub(crate) fn read_settlements(bytes: &[u8]) -> WireResult<Vec<(LeaseToken, Settlement)>> {
    read_list(bytes, SETTLEMENTS_MAX, |reader| {
        Ok((LeaseToken(reader.varint()?), read_settlement(reader)?))
    })
}

fn put_settlement(out: &mut Vec<u8>, settlement: &Settlement) {
    match settlement {
        Settlement::Ack => out.push(0),
        Settlement::Fail { reason, retry_in: None } => {
            out.push(1);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Settlement::Fail { reason, retry_in: Some(retry_in) } => {
            out.push(2);
            put_bytes(out, reason.as_str().as_bytes());
            put_duration(out, *retry_in);
        }
        Settlement::Refuse { reason } => {
            out.push(3);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Settlement::Extend { lease } => {
            out.push(4);
            put_duration(out, *lease);
        }
        Settlement::Returned => out.push(5),
        Settlement::AckWith { result } => {
            out.push(6);
            put_bytes(out, result.as_bytes());
        }
    }
}

fn read_settlement(reader: &mut Reader<'_>) -> Decoded<Settlement> {
    Ok(match reader.byte()? {
        0 => Settlement::Ack,
        1 => Settlement::Fail { reason: Reason::new(reader.text()?), retry_in: None },
        2 => Settlement::Fail {
            reason: Reason::new(reader.text()?),
            retry_in: Some(read_at_most(reader, BACKOFF_MAX)?),
        },
        3 => Settlement::Refuse { reason: Reason::new(reader.text()?) },
        4 => Settlement::Extend { lease: read_at_most(reader, TIMEOUT_MAX)? },
        5 => Settlement::Returned,
        6 => {
            let result = WorkerResult::new(reader.bytes()?);
            Settlement::AckWith { result: result.map_err(|_| CodecError::Invalid("result"))? }
        }
        _ => return Err(CodecError::Invalid("settlement")),
    })
}

/// Reads a duration that must not exceed the limit for callers.
fn read_at_most(reader: &mut Reader<'_>, max: Duration) -> Decoded<Duration> {
    reader.duration().and_then(|span| match span {
        span if span <= max => Ok(span),
        _ => Err(CodecError::Invalid("duration")),
    })
}

/// Writes the results of settlements.
pub(crate) fn put_settle_results(results: &[SettleResult]) -> Vec<u8> {
    list_of(results, |out, results| {
        out.push(match results {
            SettleResult::Accepted => 0,
            SettleResult::Stale => 1,
        });
    })
}

/// Reads the results of settlements.
pub(crate) fn read_settle_results(bytes: &[u8]) -> WireResult<Vec<SettleResult>> {
    read_list(bytes, SETTLEMENTS_MAX, |reader| match reader.byte()? {
        0 => Ok(SettleResult::Accepted),
        1 => Ok(SettleResult::Stale),
        _ => Err(CodecError::Invalid("answer")),
    })
}
