//! The preview: when a cron expression fires next, before anything is scheduled by it.
//!
//! In: an expression, a time zone, from when on. Out: the next fire times with their local times and, where the clocks change, why.
//! Nothing is read or written: it is a calculation of the core, with the time zone data of this binary. So the command line makes
//! it without a broker, by [`offline`].

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock, Dst, Gap, Invalid, Twice, zones_version};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::error::Problem;
use super::request::Asked;
use super::task::instant;
use super::when;
use crate::broker::Broker;
use crate::clock::SystemClock;

/// Fires of one answer: a year of weeks, and some.
const COUNT_MAX: usize = 100;
const COUNT_DEFAULT: usize = 5;

/// The next fires of an expression.
#[derive(Debug, Serialize, ToSchema)]
struct Preview {
    /// As it was read: with one blank between fields.
    cron: String,
    timezone: String,
    /// Fewer than asked for if no more are to come.
    fires: Vec<Upcoming>,
    /// The release of the time zone database that this broker goes by.
    timezone_data: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
struct Upcoming {
    fire_at: String,
    /// What a clock on the wall shows.
    local: String,
    /// What a change of the clocks has to do with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The next fire times of a cron expression.
#[utoipa::path(
    get, path = "/v1/preview", tag = "tasks",
    params(
        ("cron" = String, Query, description = "the expression"),
        ("timezone" = Option<String>, Query, description = "an IANA name; UTC unless given"),
        ("count" = Option<u32>, Query, description = "1 to 100; 5 unless given"),
        ("from" = Option<String>, Query, description = "fires after this time; now unless given"),
        ("dst_gap" = Option<String>, Query, description = "`after` or `skip`; by the kind of the expression unless given"),
        ("dst_overlap" = Option<String>, Query, description = "`once` or `both`; by the kind of the expression unless given"),
    ),
    responses((status = 200, description = "in their order", body = Preview))
)]
pub(crate) async fn preview(State(broker): State<Arc<Broker>>, asked: Asked) -> Answer {
    answer::ok(&Preview::of(asked, &*broker.clock)?)
}

/// Why there is no preview: one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoPreview(String);

/// The same without a broker; `asked` is what its query would be.
pub fn offline(asked: Vec<(String, String)>) -> Result<serde_json::Value, NoPreview> {
    let preview = Preview::of(Asked::new(asked), &SystemClock::start());
    let preview = preview.map_err(|problem| NoPreview(problem.parts().2.to_owned()))?;
    serde_json::to_value(preview).map_err(|error| NoPreview(error.to_string()))
}

impl Preview {
    fn of(mut asked: Asked, clock: &impl Clock) -> Result<Self, Problem> {
        let expression =
            asked.take("cron")?.ok_or_else(|| Invalid::new("cron", "must be given"))?;
        let timezone = asked.take("timezone")?;
        let count = asked.count("count", COUNT_DEFAULT, COUNT_MAX)?;
        let from = asked.take("from")?.map(|text| instant("from", &text)).transpose()?;
        let gap = [("after", Gap::After), ("skip", Gap::Skip)];
        let overlap = [("once", Twice::Once), ("both", Twice::Both)];
        let dst = Dst {
            gap: one_of(&mut asked, "dst_gap", gap)?,
            overlap: one_of(&mut asked, "dst_overlap", overlap)?,
        };
        asked.end()?;
        let cron = when::cron(&expression, timezone.as_deref(), dst)?;
        let first = cron.next_after(from.unwrap_or_else(|| clock.now()));
        let fires = std::iter::successors(first, |at| cron.next_after(*at)).take(count);
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

fn one_of<T>(asked: &mut Asked, name: &str, known: [(&str, T); 2]) -> Result<Option<T>, Problem> {
    let Some(text) = asked.take(name)? else {
        return Ok(None);
    };
    let allowed = format!("must be {} or {}", known[0].0, known[1].0);
    let found = known.into_iter().find(|(known, _)| *known == text);
    Ok(Some(found.ok_or_else(|| Invalid::new(name, allowed))?.1))
}
