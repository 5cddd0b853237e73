//! Schedules, with the rules of series and of clock changes.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use punctual_core::{Cron, Dst, Due, Gap, Misfire, Overlap, Schedule, Series, Twice, Zone};

use super::bytes::{Reader, put_bytes, put_duration, put_timestamp, put_varint};
use super::{CodecError, Decoded, INTERNED_MAX};

pub(super) fn put_schedule(out: &mut Vec<u8>, schedule: &Schedule) {
    match schedule {
        Schedule::Once(Due::At(at)) => {
            out.push(0);
            put_timestamp(out, *at);
        }
        Schedule::Once(Due::In(delay)) => {
            out.push(1);
            put_duration(out, *delay);
        }
        Schedule::Every { interval, series } if **series == Series::default() => {
            out.push(2);
            put_duration(out, *interval);
        }
        Schedule::Watch { within, postpone_max: None, on_return: false } => {
            out.push(3);
            put_duration(out, *within);
        }
        Schedule::Every { interval, series } => {
            out.push(4);
            put_duration(out, *interval);
            put_series(out, series);
        }
        Schedule::Cron { cron, series } => {
            out.push(5);
            put_bytes(out, cron.expression().as_bytes());
            put_bytes(out, cron.zone().name().as_bytes());
            out.push(dst_code(cron.dst()));
            put_series(out, series);
        }
        Schedule::Watch { within, postpone_max, on_return } => {
            out.extend_from_slice(&[6, u8::from(*on_return)]);
            put_duration(out, *within);
            put_duration(out, postpone_max.unwrap_or_default());
        }
    }
}

pub(super) fn read_schedule(reader: &mut Reader<'_>) -> Decoded<Schedule> {
    Ok(match reader.byte()? {
        0 => Schedule::Once(Due::At(reader.timestamp()?)),
        1 => Schedule::Once(Due::In(reader.duration()?)),
        2 => Schedule::every(reader.duration()?),
        3 => Schedule::watch(reader.duration()?),
        4 => Schedule::Every { interval: reader.duration()?, series: read_series(reader)? },
        5 => {
            let (expression, zone) = (reader.text()?, reader.text()?);
            let dst = dst_of(reader.byte()?)?;
            Schedule::Cron { cron: cron(expression, zone, dst)?, series: read_series(reader)? }
        }
        6 => {
            let on_return = match reader.byte()? {
                0 => false,
                1 => true,
                _ => return Err(CodecError::Invalid("on_return")),
            };
            let within = reader.duration()?;
            let postpone_max = Some(reader.duration()?).filter(|max| !max.is_zero());
            Schedule::Watch { within, postpone_max, on_return }
        }
        _ => return Err(CodecError::Invalid("schedule")),
    })
}

/// Returns a shared cron expression. Parsing is slow, and a hundred thousand tasks may have the
/// same expression, zone and rule.
fn cron(expression: &str, zone: &str, dst: Dst) -> Decoded<Arc<Cron>> {
    type CronCache = HashMap<(String, String, u8), Arc<Cron>>;
    static CACHE: LazyLock<Mutex<CronCache>> = LazyLock::new(Mutex::default);
    let name = (expression.to_owned(), zone.to_owned(), dst_code(dst));
    // A panic cannot leave this cache half-written.
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cron) = cache.get(&name) {
        return Ok(Arc::clone(cron));
    }
    let zone = Zone::from_stored(zone).map_err(|_| CodecError::Invalid("time zone"))?;
    let cron = Cron::from_stored(expression, zone, dst);
    let cron = cron.map_err(|_| CodecError::Invalid("cron"))?;
    let cron = Arc::new(cron);
    if cache.len() < INTERNED_MAX {
        cache.insert(name, Arc::clone(&cron));
    }
    Ok(cron)
}

fn put_series(out: &mut Vec<u8>, series: &Series) {
    let Series { starts_at, ends_at, count, misfire, overlap, jitter } = series;
    let set = |bit: u8, set: bool| if set { bit } else { 0 };
    let misfire = match misfire {
        Misfire::FireOnce => 0,
        Misfire::FireAll => 0b0100,
        Misfire::Skip => 0b1000,
    };
    let overlap = match overlap {
        Overlap::Allow => 0,
        Overlap::Skip => 0b01_0000,
        Overlap::QueueOne => 0b10_0000,
    };
    let times = set(0b01, starts_at.is_some()) | set(0b10, ends_at.is_some());
    out.push(times | misfire | overlap);
    for at in [starts_at, ends_at].into_iter().flatten() {
        put_timestamp(out, *at);
    }
    put_varint(out, u64::from(count.unwrap_or(0)));
    put_duration(out, *jitter);
}

fn read_series(reader: &mut Reader<'_>) -> Decoded<Arc<Series>> {
    let bits = reader.byte()?;
    let misfire = match bits & 0b1100 {
        0 => Misfire::FireOnce,
        0b0100 => Misfire::FireAll,
        0b1000 => Misfire::Skip,
        _ => return Err(CodecError::Invalid("misfire")),
    };
    let overlap = match bits >> 4 {
        0 => Overlap::Allow,
        1 => Overlap::Skip,
        2 => Overlap::QueueOne,
        _ => return Err(CodecError::Invalid("overlap")),
    };
    let mut at = |bit: u8| if bits & bit == 0 { Ok(None) } else { reader.timestamp().map(Some) };
    let (starts_at, ends_at) = (at(0b01)?, at(0b10)?);
    let count = Some(reader.small("count")?).filter(|count| *count != 0);
    let jitter = reader.duration()?;
    Ok(Arc::new(Series { starts_at, ends_at, count, misfire, overlap, jitter }))
}

const fn dst_code(dst: Dst) -> u8 {
    let gap = match dst.gap {
        None => 0,
        Some(Gap::After) => 1,
        Some(Gap::Skip) => 2,
    };
    let overlap = match dst.overlap {
        None => 0,
        Some(Twice::Once) => 1,
        Some(Twice::Both) => 2,
    };
    gap | overlap << 2
}

const fn dst_of(code: u8) -> Decoded<Dst> {
    let gap = match code & 0b11 {
        0 => None,
        1 => Some(Gap::After),
        2 => Some(Gap::Skip),
        _ => return Err(CodecError::Invalid("dst")),
    };
    let overlap = match code >> 2 {
        0 => None,
        1 => Some(Twice::Once),
        2 => Some(Twice::Both),
        _ => return Err(CodecError::Invalid("dst")),
    };
    Ok(Dst { gap, overlap })
}
