//! Which days of a month an expression matches, by day of month and by weekday.
//!
//! The rule is that of crontab(5) as Vixie cron has it. If both fields restrict the days, a day
//! matches if either field matches: `1,15 * MON` is the 1st, the 15th and every Monday. A field
//! that begins with `*` or `?` does not restrict in this sense, whatever follows. Then both fields
//! must match: `*/2 * MON` is every Monday on an odd day, and `* * MON` is every Monday.

use jiff::civil::Date;

/// The two fields that decide about days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Days {
    pub(super) month_days: MonthDays,
    pub(super) weekdays: Weekdays,
}

/// The field for days of the month. Bits are days 1 to 31.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MonthDays {
    /// The text begins with `*` or `?`.
    pub(super) star: bool,
    /// By number.
    pub(super) days: u64,
    /// Counted back from the last day, which is bit 0: `L-3` is bit 3.
    pub(super) from_last: u64,
    /// `15W`: the working day nearest to a day, in the same month.
    pub(super) near_working_day: u64,
    /// `LW`: the last working day.
    pub(super) last_working_day: bool,
}

/// The field for weekdays. Bits are 0 (Sunday) to 6.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Weekdays {
    /// The text begins with `*` or `?`.
    pub(super) star: bool,
    /// Every such weekday.
    pub(super) every: u8,
    /// `5L`: the last one in the month.
    pub(super) last: u8,
    /// `5#2`: the first to the fifth one in the month.
    pub(super) nth: [u8; 5],
}

/// One month of one year.
#[derive(Debug, Clone, Copy)]
struct Month {
    /// How many days it has.
    length: u32,
    /// The weekday of its first day; 0 is Sunday.
    first: u32,
}

impl Days {
    /// Every day, as `* * *` has it.
    pub(super) fn all() -> Self {
        Self {
            month_days: MonthDays { star: true, days: u64::MAX, ..MonthDays::default() },
            weekdays: Weekdays { star: true, every: 0x7f, ..Weekdays::default() },
        }
    }

    /// The days of a month that match: bits 1 to 31.
    pub(super) fn of(&self, year: i16, month: i8) -> u32 {
        let first = Date::new(year, month, 1).expect("callers pass months of the calendar");
        let month = Month {
            length: u32::from(first.days_in_month().unsigned_abs()),
            first: u32::from(first.weekday().to_sunday_zero_offset().unsigned_abs()),
        };
        let (by_day, by_weekday) = (self.month_days.of(month), self.weekdays.of(month));
        if self.month_days.star || self.weekdays.star {
            by_day & by_weekday
        } else {
            by_day | by_weekday
        }
    }
}

impl MonthDays {
    fn of(&self, month: Month) -> u32 {
        let mut days = low_32(self.days);
        // Reversed, the last day is bit 31; shift it to the last day of this month.
        days |= low_32(self.from_last).reverse_bits() >> (31 - month.length);
        for day in ones(low_32(self.near_working_day)).filter(|day| *day <= month.length) {
            days |= 1 << month.working_day_near(day);
        }
        if self.last_working_day {
            days |= 1 << month.working_day_near(month.length);
        }
        days & month.all()
    }
}

impl Weekdays {
    fn of(&self, month: Month) -> u32 {
        let mut days = month.every(self.every);
        days |= month.every(self.last) & month.all() & !month.up_to(month.length - 7);
        for (week, weekdays) in (0..).zip(self.nth) {
            let seven_days = month.up_to(7) << (7 * week);
            days |= month.every(weekdays) & seven_days;
        }
        days & month.all()
    }
}

impl Month {
    fn all(self) -> u32 {
        self.up_to(self.length)
    }

    /// Bits 1 to `day`.
    fn up_to(self, day: u32) -> u32 {
        low_32((1 << (day + 1)) - 2)
    }

    /// Every day that is one of these weekdays, as if the month had 31 days.
    fn every(self, weekdays: u8) -> u32 {
        if weekdays == 0 {
            return 0;
        }
        // Seven weeks in a row of seven bits each; bit 0 is a Sunday.
        let weeks = u64::from(weekdays) * 0x0408_1020_4081;
        // The first of the month is bit `first` of that row, and bit 1 of the result.
        low_32(weeks >> self.first << 1)
    }

    /// The day itself, or the Friday before it or the Monday after it, within the month.
    fn working_day_near(self, day: u32) -> u32 {
        match (self.first + day - 1) % 7 {
            6 if day == 1 => 3,
            6 => day - 1,
            0 if day == self.length => day - 2,
            0 => day + 1,
            _ => day,
        }
    }
}

fn low_32(bits: u64) -> u32 {
    u32::try_from(bits & u64::from(u32::MAX)).expect("32 bits are left")
}

/// The positions of the set bits, lowest first.
fn ones(mut bits: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(lowest)
    })
}
