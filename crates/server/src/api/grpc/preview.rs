//! The `Preview` call: the next fires of a cron expression.
//!
//! It is the same as its HTTP route: `http/preview` computes the fires, and nothing is read from
//! the store.

use punctual_core::{Clock as _, Cron, Invalid, Timestamp, zones_version};
use punctual_proto::v1;
use tonic::Status;

use super::convert;
use crate::api::http::preview::{COUNT_DEFAULT, COUNT_MAX, fires_after};
use crate::broker::Broker;
use crate::task_form::parse_cron;

pub(super) fn preview(
    broker: &Broker,
    request: &v1::PreviewRequest,
) -> Result<v1::PreviewResponse, Status> {
    previewed(request, broker.clock.now()).map_err(convert::invalid)
}

fn previewed(request: &v1::PreviewRequest, now: Timestamp) -> Result<v1::PreviewResponse, Invalid> {
    let sent = request.cron.as_ref().ok_or_else(|| Invalid::new("cron", "must be given"))?;
    let timezone = Some(sent.timezone.as_str()).filter(|name| !name.is_empty());
    let cron = parse_cron(&sent.expression, timezone, convert::clock_changes(sent)?)?;
    let from = request.from_ms.map(|from| convert::timestamp("from", from)).transpose()?;
    let fires = fires_after(&cron, from.unwrap_or(now), count(request.count)?);
    Ok(v1::PreviewResponse {
        cron: cron.expression().to_owned(),
        timezone: cron.zone().name().to_owned(),
        fires: fires.map(|at| preview_fire(&cron, at)).collect(),
        timezone_data: zones_version().to_owned(),
    })
}

/// The number of fires: zero means the default.
fn count(count: u32) -> Result<usize, Invalid> {
    match usize::try_from(count).unwrap_or(usize::MAX) {
        0 => Ok(COUNT_DEFAULT),
        count if count <= COUNT_MAX => Ok(count),
        _ => Err(Invalid::new("count", format!("must be a number from 1 to {COUNT_MAX}"))),
    }
}

fn preview_fire(cron: &Cron, at: Timestamp) -> v1::PreviewFire {
    v1::PreviewFire {
        fire_at_ms: at.as_millis(),
        local: cron.zone().local(at),
        note: cron.note(at).unwrap_or_default(),
    }
}
