//! The schedule of a task in JSON: parsing and writing.

use punctual_core::{
    Cron, Dst, Due, Gap, Invalid, Misfire, Overlap, Schedule, Series, Twice, format_duration,
};

use super::body::TaskBody;
use super::schedule_fields::ScheduleFields;
use super::series::{DstBody, GapBody, TwiceBody};
use super::time::{TimeValue, parse_duration_field};
use super::whole_number::WholeNumber;

impl TaskBody<'_> {
    pub(super) fn schedule(&self) -> Result<Schedule, Invalid> {
        let length = |field, text: &Option<String>| {
            text.as_deref().map(|text| parse_duration_field(field, text)).transpose()
        };
        let time = |field, time: &Option<TimeValue>| {
            time.as_ref().map(|time| time.to_timestamp(field)).transpose()
        };
        let dst = self
            .dst
            .as_ref()
            .map(|dst| Dst { gap: dst.gap.map(Gap::from), overlap: dst.overlap.map(Twice::from) });
        let when = ScheduleFields {
            delay: length("in", &self.r#in)?,
            at: time("at", &self.at)?,
            cron: self.cron.as_deref(),
            every: length("every", &self.every)?,
            within: length("within", &self.within)?,
            timezone: self.timezone.as_deref(),
            dst,
            starts_at: time("starts_at", &self.starts_at)?,
            ends_at: time("ends_at", &self.ends_at)?,
            count: self.count.map(fire_count).transpose()?,
            misfire: self.misfire.map(Misfire::from),
            overlap: self.overlap.map(Overlap::from),
            jitter: length("jitter", &self.jitter)?,
            postpone_max: length("postpone_max", &self.postpone_max)?,
            on_return: self.on_return,
        };
        when.schedule()
    }

    /// Fills in the fields of a schedule, defaults included.
    pub(super) fn set_schedule(&mut self, schedule: &Schedule) {
        match schedule {
            Schedule::Once(Due::In(delay)) => self.r#in = Some(format_duration(*delay)),
            Schedule::Once(Due::At(at)) => self.at = Some(TimeValue::Text(at.to_string())),
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
        // Absent means that the expression decides, so it stays absent.
        self.dst = (gap.is_some() || overlap.is_some()).then(|| DstBody {
            gap: gap.map(GapBody::from),
            overlap: overlap.map(TwiceBody::from),
        });
    }

    fn set_series(&mut self, series: &Series) {
        let text = |at: punctual_core::Timestamp| TimeValue::Text(at.to_string());
        self.starts_at = series.starts_at.map(text);
        self.ends_at = series.ends_at.map(text);
        self.count = series.count.map(|count| WholeNumber(count.into()));
        self.misfire = Some(series.misfire.into());
        self.overlap = Some(series.overlap.into());
        self.jitter = (!series.jitter.is_zero()).then(|| format_duration(series.jitter));
    }
}

/// Reads the number of fires; the core refuses 0.
fn fire_count(WholeNumber(count): WholeNumber) -> Result<u32, Invalid> {
    u32::try_from(count).map_err(|_| {
        let problem = format!("must be from 1 to {}, is {count}", u32::MAX);
        Invalid::new("count", problem)
    })
}
