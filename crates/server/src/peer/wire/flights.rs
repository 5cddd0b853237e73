//! Flights: deliveries that are under way when their partition moves, and the reports that follow them.

use punctual_core::{AttemptNo, Namespace};
use punctual_engine::{InFlight, Report, StoredAs};
use punctual_store::codec::{
    CodecError, Reader, put_bytes, put_fire_id, put_outcome, put_timestamp, put_varint,
    read_outcome,
};

use super::{Read, Result, list_of, read_list};

/// Deliveries of one partition that are under way: sixteen workers with all the credit that there is.
const FLIGHTS_MAX: usize = 1 << 20;
/// Reports in one message. Whoever has more sends several.
pub(crate) const REPORTS_MAX: usize = 10_000;

const FILED: u8 = 0;
/// With a bit for each of what is to be known of it.
const CLAIMED: u8 = 0b100;
const CLAIMED_TASK_CONTINUES: u8 = 0b001;
const CLAIMED_KEY_REUSED: u8 = 0b010;

/// Writes flights.
pub(crate) fn put_flights(flights: &[InFlight]) -> Vec<u8> {
    list_of(flights, put_flight)
}

/// Reads flights.
pub(crate) fn read_flights(bytes: &[u8]) -> Read<Vec<InFlight>> {
    read_list(bytes, FLIGHTS_MAX, read_flight)
}

fn put_flight(out: &mut Vec<u8>, flight: &InFlight) {
    put_fire_id(out, flight.fire_id);
    put_bytes(out, flight.namespace.as_str().as_bytes());
    put_varint(out, u64::from(flight.attempt.get()));
    put_timestamp(out, flight.fired_at);
    put_timestamp(out, flight.until);
    out.push(match flight.stands {
        StoredAs::Filed => FILED,
        StoredAs::Claimed { task_continues, key_reused } => {
            let bit = |bit: u8, set: bool| if set { bit } else { 0 };
            CLAIMED
                | bit(CLAIMED_TASK_CONTINUES, task_continues)
                | bit(CLAIMED_KEY_REUSED, key_reused)
        }
    });
}

fn read_flight(reader: &mut Reader<'_>) -> Result<InFlight> {
    Ok(InFlight {
        fire_id: reader.fire_id()?,
        // Punctual's own tasks fire as well.
        namespace: Namespace::from_stored(reader.text()?)
            .map_err(|_| CodecError::Invalid("namespace"))?,
        attempt: AttemptNo::new(reader.small("attempt")?),
        fired_at: reader.timestamp()?,
        until: reader.timestamp()?,
        stands: match reader.byte()? {
            FILED => StoredAs::Filed,
            code @ CLAIMED..=0b111 => StoredAs::Claimed {
                task_continues: code & CLAIMED_TASK_CONTINUES != 0,
                key_reused: code & CLAIMED_KEY_REUSED != 0,
            },
            _ => return Err(CodecError::Invalid("flight")),
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
            put_outcome(out, outcome);
        }
    })
}

/// Reads reports.
pub(crate) fn read_reports(bytes: &[u8]) -> Read<Vec<Report>> {
    read_list(bytes, REPORTS_MAX, |reader| {
        let fire_id = reader.fire_id()?;
        let attempt = AttemptNo::new(reader.small("attempt")?);
        let fired_at = reader.timestamp()?;
        let outcome = match reader.byte()? {
            0 => None,
            1 => Some(read_outcome(reader)?),
            _ => return Err(CodecError::Invalid("report")),
        };
        Ok(Report::of(fire_id, attempt, fired_at, outcome))
    })
}
