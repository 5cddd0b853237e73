//! Deliveries that are in flight when their partition moves, and the reports that follow them.

use punctual_core::{AttemptNo, Namespace};
use punctual_engine::{InFlight, Report, StoredAs};
use punctual_store::codec::{
    CodecError, Reader, put_bytes, put_fire_id, put_result, put_task_id, put_timestamp, put_varint,
    read_result,
};

use super::{Decoded, WireResult, list_of, read_list};

/// Deliveries in flight of one partition: sixteen workers with the largest credit.
const IN_FLIGHT_MAX: usize = 1 << 20;
/// Reports in one message; a sender with more splits them.
pub(crate) const REPORTS_MAX: usize = 10_000;

const FILED: u8 = 0;
/// Has one bit for each field of [`StoredAs::Claimed`].
const CLAIMED: u8 = 0b1000;
const CLAIMED_TASK_CONTINUES: u8 = 0b0001;
const CLAIMED_KEY_REUSED: u8 = 0b0010;
/// The id of the callback follows.
const CLAIMED_CALLBACK: u8 = 0b0100;

/// Writes deliveries in flight.
pub(crate) fn put_in_flight(deliveries: &[InFlight]) -> Vec<u8> {
    list_of(deliveries, put_one_in_flight)
}

/// Reads deliveries in flight.
pub(crate) fn read_in_flight(bytes: &[u8]) -> WireResult<Vec<InFlight>> {
    read_list(bytes, IN_FLIGHT_MAX, read_one_in_flight)
}

fn put_one_in_flight(out: &mut Vec<u8>, delivery: &InFlight) {
    put_fire_id(out, delivery.fire_id);
    put_task_id(out, delivery.task_id);
    put_bytes(out, delivery.namespace.as_str().as_bytes());
    put_varint(out, u64::from(delivery.attempt.get()));
    put_timestamp(out, delivery.fired_at);
    put_timestamp(out, delivery.until);
    match delivery.stored_as {
        StoredAs::Filed => out.push(FILED),
        StoredAs::Claimed { task_continues, key_reused, callback } => {
            let bit = |bit: u8, set: bool| if set { bit } else { 0 };
            out.push(
                CLAIMED
                    | bit(CLAIMED_TASK_CONTINUES, task_continues)
                    | bit(CLAIMED_KEY_REUSED, key_reused)
                    | bit(CLAIMED_CALLBACK, callback.is_some()),
            );
            callback.into_iter().for_each(|id| put_task_id(out, id));
        }
    }
}

fn read_one_in_flight(reader: &mut Reader<'_>) -> Decoded<InFlight> {
    Ok(InFlight {
        fire_id: reader.fire_id()?,
        task_id: reader.task_id()?,
        // Internal namespaces are valid here: their tasks fire as well.
        namespace: Namespace::from_stored(reader.text()?)
            .map_err(|_| CodecError::Invalid("namespace"))?,
        attempt: AttemptNo::new(reader.small("attempt")?),
        fired_at: reader.timestamp()?,
        until: reader.timestamp()?,
        stored_as: match reader.byte()? {
            FILED => StoredAs::Filed,
            code @ CLAIMED..=0b1111 => StoredAs::Claimed {
                task_continues: code & CLAIMED_TASK_CONTINUES != 0,
                key_reused: code & CLAIMED_KEY_REUSED != 0,
                callback: match code & CLAIMED_CALLBACK {
                    0 => None,
                    _ => Some(reader.task_id()?),
                },
            },
            _ => return Err(CodecError::Invalid("delivery")),
        },
    })
}

/// Writes reports.
pub(crate) fn put_reports(reports: &[Report]) -> Vec<u8> {
    list_of(reports, |out, report| {
        put_fire_id(out, report.fire_id);
        put_varint(out, u64::from(report.attempt.get()));
        put_timestamp(out, report.fired_at);
        out.push(u8::from(report.outcome.is_some()));
        if let Some(outcome) = &report.outcome {
            put_result(out, outcome, report.answer.as_deref());
        }
    })
}

/// Reads reports.
pub(crate) fn read_reports(bytes: &[u8]) -> WireResult<Vec<Report>> {
    read_list(bytes, REPORTS_MAX, |reader| {
        let fire_id = reader.fire_id()?;
        let attempt = AttemptNo::new(reader.small("attempt")?);
        let fired_at = reader.timestamp()?;
        let (outcome, answer) = match reader.byte()? {
            0 => (None, None),
            1 => {
                let result = read_result(reader)?;
                (Some(result.outcome), result.answer)
            }
            _ => return Err(CodecError::Invalid("report")),
        };
        Ok(Report::of(fire_id, attempt, fired_at, outcome).with_answer(answer))
    })
}
