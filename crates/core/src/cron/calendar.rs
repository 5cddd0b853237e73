//! Finds the first local time at or after a given one that an expression matches, to the second.
//!
//! Every search is bounded. Months and years without a matching day are removed when an expression
//! is read, so one that is left has a day within [`YEARS_WITHOUT_DAY_MAX`] years, or within the
//! next of the years that it names. Whether a local time exists in a zone, or exists twice, is the
//! subject of `clock_change`.

use std::sync::Arc;

use jiff::civil::{Date, DateTime, Time};

use super::days::Days;
use super::field::{YEAR_MAX, YEAR_MIN};

/// The longest wait for a day that matches. Which days match depends on the weekday of New Year
/// and on whether the year is a leap year. The rarest of these 14 kinds of year are leap years,
/// each of which comes every 28 years, or after 40 where a century without a leap day is between.
pub(super) const YEARS_WITHOUT_DAY_MAX: i16 = 40;

/// An expression as sets of values. Bit `n` is the value `n`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u64,
    pub(super) days: Days,
    pub(super) months: u64,
    /// `None`: every year.
    pub(super) years: Option<Arc<Years>>,
    /// The minute field is written with `*`.
    pub(super) star_minute: bool,
    /// The hour field is written with `*`.
    pub(super) star_hour: bool,
}

impl Fields {
    /// Second 0 of every minute: the values of fields that are not written.
    pub(super) fn every_minute() -> Self {
        Self {
            seconds: 1,
            minutes: (1 << 60) - 1,
            hours: (1 << 24) - 1,
            days: Days::all(),
            months: (1 << 13) - 2,
            years: None,
            star_minute: true,
            star_hour: true,
        }
    }

    /// Whether the time of day is fixed: neither minute nor hour is written with `*`.
    pub(super) fn is_fixed(&self) -> bool {
        !self.star_minute && !self.star_hour
    }

    /// Removes months and years that never have a matching day.
    pub(super) fn remove_what_never_occurs(&mut self) {
        for month in 1..=12 {
            // All 14 kinds of year are among 28 in a row without a skipped leap day.
            if !(2001..2029).any(|year| self.days.of(year, month) != 0) {
                self.months &= !(1 << month);
            }
        }
        let years = self.years.as_deref().cloned();
        if let Some(mut years) = years {
            for year in YEAR_MIN..=YEAR_MAX {
                let start = Date::new(year.cast_signed(), 1, 1).expect("a year of four digits");
                if years.contains(year) && self.first_date_of_year_from(start).is_none() {
                    years.remove(year);
                }
            }
            self.years = Some(Arc::new(years));
        }
    }

    /// Whether any month and year is left.
    pub(super) fn occurs(&self) -> bool {
        let any_year = |years: &Arc<Years>| years.first_from(YEAR_MIN).is_some();
        self.months != 0 && self.years.as_ref().is_none_or(any_year)
    }

    /// The first matching local time at or after `from`.
    pub(super) fn first_from(&self, from: DateTime) -> Option<DateTime> {
        let date = self.first_date_from(from.date())?;
        if date > from.date() {
            return Some(date.to_datetime(self.first_time()));
        }
        if let Some(time) = self.first_time_from(from.time()) {
            return Some(date.to_datetime(time));
        }
        let date = self.first_date_from(date.tomorrow().ok()?)?;
        Some(date.to_datetime(self.first_time()))
    }

    fn first_date_from(&self, from: Date) -> Option<Date> {
        let mut from = from;
        let year_max = from.year().saturating_add(YEARS_WITHOUT_DAY_MAX);
        loop {
            let year = match &self.years {
                Some(years) => years.first_from(u16::try_from(from.year()).ok()?)?.cast_signed(),
                None => Some(from.year()).filter(|year| *year <= year_max)?,
            };
            if year > from.year() {
                from = Date::new(year, 1, 1).ok()?;
            }
            if let Some(date) = self.first_date_of_year_from(from) {
                return Some(date);
            }
            from = Date::new(year.checked_add(1)?, 1, 1).ok()?;
        }
    }

    /// The first matching day at or after `from` in the same year.
    fn first_date_of_year_from(&self, from: Date) -> Option<Date> {
        let year = from.year();
        let mut day = from.day();
        let mut months = self.months >> from.month() << from.month();
        while months != 0 {
            let month = number(months.trailing_zeros());
            if month > from.month() {
                day = 1;
            }
            let days = self.days.of(year, month) >> day << day;
            if days != 0 {
                let day = number(days.trailing_zeros());
                return Some(Date::new(year, month, day).expect("a month has only its own days"));
            }
            months &= months - 1;
        }
        None
    }

    fn first_time(&self) -> Time {
        time(self.hours.trailing_zeros(), self.first_minute(), self.first_second())
    }

    fn first_minute(&self) -> u32 {
        self.minutes.trailing_zeros()
    }

    fn first_second(&self) -> u32 {
        self.seconds.trailing_zeros()
    }

    fn first_time_from(&self, from: Time) -> Option<Time> {
        let hour = from.hour().unsigned_abs().into();
        let minute = from.minute().unsigned_abs().into();
        let second = from.second().unsigned_abs().into();
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = first_bit_from(self.seconds, second)
            {
                return Some(time(hour, minute, second));
            }
            if let Some(minute) = first_bit_from(self.minutes, minute + 1) {
                return Some(time(hour, minute, self.first_second()));
            }
        }
        let hour = first_bit_from(self.hours, hour + 1)?;
        Some(time(hour, self.first_minute(), self.first_second()))
    }
}

/// A set of years from [`YEAR_MIN`] to [`YEAR_MAX`], one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Years([u64; 17]);

impl Years {
    pub(super) fn none() -> Self {
        Self([0; 17])
    }

    pub(super) fn insert(&mut self, year: u16) {
        let (word, bit) = Self::position(year);
        self.0[word] |= 1 << bit;
    }

    fn remove(&mut self, year: u16) {
        let (word, bit) = Self::position(year);
        self.0[word] &= !(1 << bit);
    }

    fn contains(&self, year: u16) -> bool {
        let (word, bit) = Self::position(year);
        self.0[word] >> bit & 1 == 1
    }

    /// The first year of the set at or after `year`.
    fn first_from(&self, year: u16) -> Option<u16> {
        if year > YEAR_MAX {
            return None;
        }
        let (start, bit) = Self::position(year.max(YEAR_MIN));
        let rest = self.0[start] >> bit << bit;
        std::iter::once(rest)
            .chain(self.0[start + 1..].iter().copied())
            .zip(start..)
            .find(|(bits, _)| *bits != 0)
            .and_then(|(bits, word)| u16::try_from(word * 64).ok().zip(bits_low(bits)))
            .map(|(words, bit)| YEAR_MIN + words + bit)
    }

    fn position(year: u16) -> (usize, u32) {
        let index = u32::from(year - YEAR_MIN);
        ((index / 64) as usize, index % 64)
    }
}

fn bits_low(bits: u64) -> Option<u16> {
    u16::try_from(bits.trailing_zeros()).ok()
}

fn has(bits: u64, value: u32) -> bool {
    bits >> value & 1 == 1
}

fn first_bit_from(bits: u64, value: u32) -> Option<u32> {
    let rest = bits.checked_shr(value)?.checked_shl(value)?;
    (rest != 0).then(|| rest.trailing_zeros())
}

fn time(hour: u32, minute: u32, second: u32) -> Time {
    Time::new(number(hour), number(minute), number(second), 0)
        .expect("fields hold only values of a clock")
}

fn number(value: u32) -> i8 {
    i8::try_from(value).expect("only years are above 59")
}

#[cfg(test)]
mod tests {
    use super::super::parse::{check_occurs, read};
    use super::*;

    fn parse(text: &str) -> Result<Fields, crate::Invalid> {
        read(text).and_then(check_occurs)
    }

    /// Every form of a day, alone.
    fn day_forms() -> Vec<String> {
        let numbers = (1..=31).flat_map(|day| [format!("{day} * ?"), format!("{day}W * ?")]);
        let from_last = (1..=30).map(|before| format!("L-{before} * ?"));
        let weekdays = (0..7).flat_map(|weekday| {
            let nth = (1..=5).map(move |nth| format!("? * {weekday}#{nth}"));
            nth.chain([format!("? * {weekday}"), format!("? * {weekday}L")])
        });
        let last = ["L * ?", "LW * ?"].map(str::to_owned);
        numbers.chain(from_last).chain(weekdays).chain(last).collect()
    }

    #[test]
    fn every_kind_of_year_comes_again_within_the_bound_of_the_search() {
        // The calendar repeats after 400 years.
        let kind_of = |year: i16| {
            let new_year = Date::new(year, 1, 1).unwrap();
            (new_year.in_leap_year(), new_year.weekday().to_sunday_zero_offset())
        };
        let mut last_of_kind = std::collections::BTreeMap::new();
        let mut longest = 0;
        for year in 2000..2400 + YEARS_WITHOUT_DAY_MAX * 2 {
            if let Some(last) = last_of_kind.insert(kind_of(year), year) {
                longest = longest.max(year - last);
            }
        }
        assert_eq!((last_of_kind.len(), longest), (14, YEARS_WITHOUT_DAY_MAX));
    }

    #[test]
    fn no_form_of_a_day_waits_longer_than_the_bound_of_the_search() {
        let mut longest = 0;
        for days in day_forms() {
            for month in 1..=12 {
                let text = format!("0 0 {}", days.replace("* ", &format!("{month} ")));
                let Ok(fields) = parse(&text) else {
                    continue;
                };
                // The calendar repeats after 400 years.
                let years = (2000..2400 + YEARS_WITHOUT_DAY_MAX * 2)
                    .filter(|year| fields.days.of(*year, month) != 0)
                    .collect::<Vec<i16>>();
                let waits = years.windows(2).map(|pair| pair[1] - pair[0]);
                longest = waits.max().unwrap_or(i16::MAX).max(longest);
            }
        }
        assert_eq!(longest, YEARS_WITHOUT_DAY_MAX);
    }

    #[test]
    fn a_refused_day_is_in_none_of_400_years() {
        let mut refused = 0;
        for days in day_forms() {
            for month in 1..=12 {
                let text = format!("0 0 {}", days.replace("* ", &format!("{month} ")));
                if parse(&text).is_ok() {
                    continue;
                }
                refused += 1;
                let mut fields = parse(&format!("0 0 {days}")).unwrap();
                fields.months = 1 << month;
                assert!((2000..2400).all(|year| fields.days.of(year, month) == 0), "{text}");
            }
        }
        // 30, 31, 30W, 31W, L-29 and L-30 in February; 31, 31W and L-30 in four other months.
        assert_eq!(refused, 6 + 4 * 3);
    }
}
