//! Which days of a month are meant, by number, by weekday, or by either.
//!
//! In: a month of a year. Out: a bit for each of its days.
//! Rule: if both fields restrict the days, a day that either names is meant, as crontab has it; if
//! one of them is `*`, `?` or `*/1`, the other decides alone. `*/2` restricts: it leaves days out.
//! (Vixie's cron takes any field that begins with a star for unrestricted and so makes `*/2` and
//! `MON` the Mondays on odd days; most that came after it, and we, take odd days and Mondays.)

use jiff::civil::Date;

/// The fields for day and weekday. Bits are days 1 to 31 or weekdays 0 (Sunday) to 6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Days {
    /// The day field restricts nothing.
    pub(super) any_day: bool,
    /// The weekday field restricts nothing.
    pub(super) any_weekday: bool,
    /// By number.
    pub(super) days: u64,
    /// Counted back from the last day, which is bit 0: `L-3` is bit 3.
    pub(super) from_last: u64,
    /// `15W`: the working day nearest to a day, in the same month.
    pub(super) near_working_day: u64,
    /// `LW`: the last working day.
    pub(super) last_working_day: bool,
    /// By weekday.
    pub(super) weekdays: u8,
    /// `5L`: the last one in the month.
    pub(super) last_weekdays: u8,
    /// `5#2`: the first to the fifth one in the month.
    pub(super) nth_weekdays: [u8; 5],
}

/// What the calendar says about a month.
#[derive(Debug, Clone, Copy)]
struct Month {
    /// How many days it has.
    length: u32,
    /// The weekday of its first, 0 is Sunday.
    first: u32,
}

impl Days {
    /// Every day.
    pub(super) fn all() -> Self {
        Self {
            any_day: true,
            any_weekday: true,
            days: 0,
            from_last: 0,
            near_working_day: 0,
            last_working_day: false,
            weekdays: 0,
            last_weekdays: 0,
            nth_weekdays: [0; 5],
        }
    }

    /// The days of a month that are meant: bits 1 to 31.
    pub(super) fn of(&self, year: i16, month: i8) -> u32 {
        let first = Date::new(year, month, 1).expect("only months of the calendar are asked for");
        let month = Month {
            length: u32::from(first.days_in_month().unsigned_abs()),
            first: u32::from(first.weekday().to_sunday_zero_offset().unsigned_abs()),
        };
        match (self.any_day, self.any_weekday) {
            (true, true) => month.all(),
            (false, true) => self.by_number(month),
            (true, false) => self.by_weekday(month),
            (false, false) => self.by_number(month) | self.by_weekday(month),
        }
    }

    fn by_number(&self, month: Month) -> u32 {
        let mut meant = low_32(self.days);
        // Reversed, the last day comes to lie on bit 31; then it goes to where the month ends.
        meant |= low_32(self.from_last).reverse_bits() >> (31 - month.length);
        for day in ones(low_32(self.near_working_day)).filter(|day| *day <= month.length) {
            meant |= 1 << month.working_day_near(day);
        }
        if self.last_working_day {
            meant |= 1 << month.working_day_near(month.length);
        }
        meant & month.all()
    }

    fn by_weekday(&self, month: Month) -> u32 {
        let mut meant = month.every(self.weekdays);
        meant |= month.every(self.last_weekdays) & month.all() & !month.up_to(month.length - 7);
        for (week, weekdays) in (0..).zip(self.nth_weekdays) {
            let seven_days = month.up_to(7) << (7 * week);
            meant |= month.every(weekdays) & seven_days;
        }
        meant & month.all()
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
        // The first of the month is bit `first` of that row, and bit 1 of the answer.
        low_32(weeks >> self.first << 1)
    }

    /// The day itself, or Friday before it or Monday after it, without leaving the month.
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

fn ones(mut bits: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(lowest)
    })
}
