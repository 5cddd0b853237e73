//! The schedule of a task in JSON, both ways.

use punctual_core::{
    Cron, Due, Gap, Invalid, Misfire, Overlap, Schedule, Series, Twice, format_duration,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::TaskBody;
use super::sent::{Instant, duration};
use crate::api::when::When;

/// What is done about local times that do not exist, and about those that exist twice.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Dst)]
#[serde(deny_unknown_fields, expecting = "an object with `gap` and `overlap`")]
pub(super) struct DstBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gap: Option<GapBody>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overlap: Option<TwiceBody>,
}

/// When a local time counts that the clocks leap over: right after the gap, or not at all.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Gap)]
#[serde(rename_all = "snake_case")]
pub(super) enum GapBody {
    After,
    Skip,
}

/// When a local time counts that the clocks show twice.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Twice)]
#[serde(rename_all = "snake_case")]
pub(super) enum TwiceBody {
    Once,
    Both,
}

/// What is done about fires that were missed.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Misfire)]
#[serde(rename_all = "snake_case")]
pub(super) enum MisfireBody {
    FireOnce,
    FireAll,
    Skip,
}

/// What is done about a fire while the one before is not over.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Overlap)]
#[serde(rename_all = "snake_case")]
pub(super) enum OverlapBody {
    Allow,
    Skip,
    QueueOne,
}

impl TaskBody<'_> {
    pub(super) fn schedule(&self) -> Result<Schedule, Invalid> {
        let length = |field, text: &Option<String>| {
            text.as_deref().map(|text| duration(field, text)).transpose()
        };
        let time = |field, time: &Option<Instant>| {
            time.as_ref().map(|time| time.to_timestamp(field)).transpose()
        };
        let dst = self.dst.as_ref();
        let when = When {
            delay: length("in", &self.r#in)?,
            at: time("at", &self.at)?,
            cron: self.cron.as_deref(),
            every: length("every", &self.every)?,
            within: length("within", &self.within)?,
            timezone: self.timezone.as_deref(),
            dst_gap: dst.and_then(|dst| dst.gap).map(Gap::from),
            dst_overlap: dst.and_then(|dst| dst.overlap).map(Twice::from),
            starts_at: time("starts_at", &self.starts_at)?,
            ends_at: time("ends_at", &self.ends_at)?,
            count: self.count,
            misfire: self.misfire.map(Misfire::from),
            overlap: self.overlap.map(Overlap::from),
            jitter: length("jitter", &self.jitter)?,
            postpone_max: length("postpone_max", &self.postpone_max)?,
            on_return: self.on_return,
        };
        when.schedule()
    }

    /// Writes a schedule down, with defaults filled in.
    pub(super) fn set_schedule(&mut self, schedule: &Schedule) {
        match schedule {
            Schedule::Once(Due::In(delay)) => self.r#in = Some(format_duration(*delay)),
            Schedule::Once(Due::At(at)) => self.at = Some(Instant::Text(at.to_string())),
            Schedule::Every { interval, series } => {
                self.every = Some(format_duration(*interval));
                self.set_series(series);
            }
            Schedule::Cron { cron, series } => {
                self.set_cron(cron);
                self.set_series(series);
            }
            Schedule::Watch { within, postpone_max, on_return } => {
                self.within = Some(format_duration(*within));
                self.postpone_max = postpone_max.map(format_duration);
                self.on_return = Some(*on_return);
            }
        }
    }

    fn set_cron(&mut self, cron: &Cron) {
        self.cron = Some(cron.expression().to_owned());
        self.timezone = Some(cron.zone().name().to_owned());
        let (gap, overlap) = (cron.dst().gap, cron.dst().overlap);
        // What the expression decides for itself was not said, and saying it would be long.
        self.dst = (gap.is_some() || overlap.is_some()).then(|| DstBody {
            gap: gap.map(GapBody::from),
            overlap: overlap.map(TwiceBody::from),
        });
    }

    fn set_series(&mut self, series: &Series) {
        let text = |at: punctual_core::Timestamp| Instant::Text(at.to_string());
        self.starts_at = series.starts_at.map(text);
        self.ends_at = series.ends_at.map(text);
        self.count = series.count;
        self.misfire = Some(series.misfire.into());
        self.overlap = Some(series.overlap.into());
        self.jitter = (!series.jitter.is_zero()).then(|| format_duration(series.jitter));
    }
}

/// Two enums with the same variants: ours of the wire, and the core's.
macro_rules! both_ways {
    ($wire:ident, $core:ident, [$($variant:ident),+]) => {
        impl From<$wire> for $core {
            fn from(wire: $wire) -> Self {
                match wire {
                    $($wire::$variant => Self::$variant,)+
                }
            }
        }

        impl From<$core> for $wire {
            fn from(core: $core) -> Self {
                match core {
                    $($core::$variant => Self::$variant,)+
                }
            }
        }
    };
}

both_ways!(GapBody, Gap, [After, Skip]);
both_ways!(TwiceBody, Twice, [Once, Both]);
both_ways!(MisfireBody, Misfire, [FireOnce, FireAll, Skip]);
both_ways!(OverlapBody, Overlap, [Allow, Skip, QueueOne]);
