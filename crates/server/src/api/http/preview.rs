//! The preview: the next fire times of a cron expression, before a task is scheduled with it.
//!
//! It is computed from the time zone data of this binary; nothing is read from the store. So the
//! command line does it without a broker, with [`offline`]. gRPC uses `fires_after`.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock, Cron, Dst, Gap, Invalid, Timestamp, Twice, zones_version};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::request::QueryParams;
use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::clock::SystemClock;
use crate::problem::Problem;
use crate::schema::{self, CronText, ZoneText, at_every, count, documented, reference};
use crate::task_form::{InstantText, TimeValue, parse_cron, parse_time_field};

/// Fires in one response: more than a year of weeks.
pub(crate) const COUNT_MAX: usize = 100;
pub(crate) const COUNT_DEFAULT: usize = 5;

const GAPS: [(&str, Gap); 2] = [("after", Gap::After), ("skip", Gap::Skip)];
const OVERLAPS: [(&str, Twice); 2] = [("once", Twice::Once), ("both", Twice::Both)];

/// The next fires of a cron expression.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Preview)]
struct PreviewAnswer {
    /// The expression with one space between fields.
    cron: String,
    /// The IANA name of the time zone.
    timezone: String,
    /// The next fires; fewer than `count` if the expression has no more.
    fires: Vec<Upcoming>,
    /// The release of the IANA time zone database that this broker uses.
    timezone_data: &'static str,
}

/// One future fire.
#[derive(Debug, Serialize, ToSchema)]
struct Upcoming {
    /// When it is due.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// The same time in the time zone.
    local: String,
    /// How a clock change affects this fire, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

documented!(
    /// Fires in one response.
    PreviewCount,
    "PreviewCount",
    count(1, COUNT_MAX, COUNT_DEFAULT)
);
documented!(
    /// A cron expression that is not an interval.
    PreviewCron,
    "PreviewCron",
    json!({"allOf": [reference::<CronText>(), {"not": {"pattern": at_every()}}]})
);
documented!(
    /// When a local time fires that the clocks skip.
    GapName,
    "GapName",
    schema::one_of(GAPS.map(|(name, _)| name))
);
documented!(
    /// When a local time fires that the clocks show twice.
    TwiceName,
    "TwiceName",
    schema::one_of(OVERLAPS.map(|(name, _)| name))
);

/// Preview a cron expression
///
/// Shows the next fire times of a cron expression. Nothing is scheduled.
#[utoipa::path(
    get, path = "/v1/preview", tag = "tasks", operation_id = "preview_cron",
    params(
        ("cron" = inline(PreviewCron), Query, description =
            "The cron expression. `@every`, which is an interval, has no preview."),
        ("timezone" = inline(Option<ZoneText>), Query, description =
            "Its time zone. Default: UTC."),
        ("count" = inline(Option<PreviewCount>), Query, description = "Fires to show."),
        ("from" = inline(Option<TimeValue>), Query, description =
            "Only fires after this time. Default: now."),
        ("dst_gap" = inline(Option<GapName>), Query, description =
            "Local times that a clock change skips: `after` fires right after the gap, `skip` not \
             at all. Default: decided by the expression."),
        ("dst_overlap" = inline(Option<TwiceName>), Query, description =
            "Local times that a clock change repeats: `once` or `both`. Default: decided by the \
             expression."),
    ),
    responses((status = 200, description = "The fires in order.", body = PreviewAnswer))
)]
pub(crate) async fn preview(State(broker): State<Arc<Broker>>, params: QueryParams) -> ApiResult {
    response::ok(&PreviewAnswer::of(params, &*broker.clock)?)
}

/// Why the preview was refused, as the broker answers it.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub struct PreviewError {
    detail: String,
    status: u16,
    problem: serde_json::Value,
}

impl PreviewError {
    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The problem document.
    #[must_use]
    pub const fn problem(&self) -> &serde_json::Value {
        &self.problem
    }
}

/// Returns the same JSON without a broker; `query` has the parameters of the route.
pub fn offline(query: Vec<(String, String)>) -> Result<serde_json::Value, PreviewError> {
    let preview = PreviewAnswer::of(QueryParams::new(query), &SystemClock::start());
    let preview = preview.map_err(|problem| PreviewError {
        detail: problem.detail().to_owned(),
        status: problem.parts().1.as_u16(),
        problem: serde_json::to_value(&problem).unwrap_or_default(),
    })?;
    Ok(serde_json::to_value(preview).expect("times and texts always serialize"))
}

/// Returns the next fires of an expression, at most `count`.
pub(crate) fn fires_after(
    cron: &Cron,
    from: Timestamp,
    count: usize,
) -> impl Iterator<Item = Timestamp> {
    std::iter::successors(cron.next_after(from), |at| cron.next_after(*at)).take(count)
}

impl PreviewAnswer {
    fn of(mut params: QueryParams, clock: &impl Clock) -> Result<Self, Problem> {
        let expression =
            params.take("cron")?.ok_or_else(|| Invalid::new("cron", "must be given"))?;
        let timezone = params.take("timezone")?;
        let count = params.count("count", COUNT_DEFAULT, COUNT_MAX)?;
        let from = params.take("from")?.map(|text| parse_time_field("from", &text)).transpose()?;
        let dst = Dst {
            gap: one_of(&mut params, "dst_gap", GAPS)?,
            overlap: one_of(&mut params, "dst_overlap", OVERLAPS)?,
        };
        params.end()?;
        let cron = parse_cron(&expression, timezone.as_deref(), dst)?;
        let fires = fires_after(&cron, from.unwrap_or_else(|| clock.now()), count);
        let fires = fires.map(|at| Upcoming {
            fire_at: at.to_string(),
            local: cron.zone().local(at),
            note: cron.note(at),
        });
        Ok(Self {
            cron: cron.expression().to_owned(),
            timezone: cron.zone().name().to_owned(),
            fires: fires.collect(),
            timezone_data: zones_version(),
        })
    }
}

fn one_of<T>(
    params: &mut QueryParams,
    name: &str,
    known: [(&str, T); 2],
) -> Result<Option<T>, Problem> {
    let Some(text) = params.take(name)? else {
        return Ok(None);
    };
    let allowed = format!("must be {} or {}", known[0].0, known[1].0);
    let found = known.into_iter().find(|(known, _)| *known == text);
    Ok(Some(found.ok_or_else(|| Invalid::new(name, allowed))?.1))
}
