//! The schedule of a task in the file, and its conversion from and to `core`.

use std::sync::Arc;

use punctual_core::{Cron, Dst, Due, Gap, Schedule, Series, Twice, Zone};
use serde::{Deserialize, Serialize};

use super::values::{DurationText, GapName, MisfireName, OverlapName, TimeText, TwiceName};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ExportedSchedule {
    At(TimeText),
    In(DurationText),
    Every {
        interval: DurationText,
        series: ExportedSeries,
    },
    Cron {
        expression: String,
        timezone: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dst_gap: Option<GapName>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dst_overlap: Option<TwiceName>,
        series: ExportedSeries,
    },
    Watch {
        within: DurationText,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        postpone_max: Option<DurationText>,
        on_return: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedSeries {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    starts_at: Option<TimeText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends_at: Option<TimeText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    misfire: MisfireName,
    overlap: OverlapName,
    jitter: DurationText,
}

pub(crate) fn export_schedule(schedule: &Schedule) -> ExportedSchedule {
    match schedule {
        Schedule::Once(Due::At(at)) => ExportedSchedule::At(TimeText(*at)),
        Schedule::Once(Due::In(delay)) => ExportedSchedule::In(DurationText(*delay)),
        Schedule::Every { interval, series } => ExportedSchedule::Every {
            interval: DurationText(*interval),
            series: export_series(series),
        },
        Schedule::Cron { cron, series } => ExportedSchedule::Cron {
            expression: cron.expression().to_owned(),
            timezone: cron.zone().name().to_owned(),
            dst_gap: cron.dst().gap.map(GapName::from),
            dst_overlap: cron.dst().overlap.map(TwiceName::from),
            series: export_series(series),
        },
        Schedule::Watch { within, postpone_max, on_return } => ExportedSchedule::Watch {
            within: DurationText(*within),
            postpone_max: postpone_max.map(DurationText),
            on_return: *on_return,
        },
    }
}

pub(crate) fn read_schedule(exported: ExportedSchedule) -> anyhow::Result<Schedule> {
    Ok(match exported {
        ExportedSchedule::At(at) => Schedule::Once(Due::At(at.0)),
        ExportedSchedule::In(delay) => Schedule::Once(Due::In(delay.0)),
        ExportedSchedule::Every { interval, series } => {
            Schedule::Every { interval: interval.0, series: read_series(series) }
        }
        ExportedSchedule::Cron { expression, timezone, dst_gap, dst_overlap, series } => {
            let dst = Dst { gap: dst_gap.map(Gap::from), overlap: dst_overlap.map(Twice::from) };
            let cron = Cron::from_stored(&expression, Zone::from_stored(&timezone)?, dst)?;
            Schedule::Cron { cron: Arc::new(cron), series: read_series(series) }
        }
        ExportedSchedule::Watch { within, postpone_max, on_return } => Schedule::Watch {
            within: within.0,
            postpone_max: postpone_max.map(|span| span.0),
            on_return,
        },
    })
}

fn export_series(series: &Series) -> ExportedSeries {
    ExportedSeries {
        starts_at: series.starts_at.map(TimeText),
        ends_at: series.ends_at.map(TimeText),
        count: series.count,
        misfire: series.misfire.into(),
        overlap: series.overlap.into(),
        jitter: DurationText(series.jitter),
    }
}

fn read_series(exported: ExportedSeries) -> Arc<Series> {
    Arc::new(Series {
        starts_at: exported.starts_at.map(|at| at.0),
        ends_at: exported.ends_at.map(|at| at.0),
        count: exported.count,
        misfire: exported.misfire.into(),
        overlap: exported.overlap.into(),
        jitter: exported.jitter.0,
    })
}
