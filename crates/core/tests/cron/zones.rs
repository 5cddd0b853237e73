//! Unusual clock changes, one by one, with well-known dates. The oracle tests cover all zones.

use punctual_core::{Cron, Dst, Gap, Timestamp, Twice, Zone};

const DEFAULT: Dst = Dst { gap: None, overlap: None };
const SKIP: Dst = Dst { gap: Some(Gap::Skip), overlap: None };
const BOTH: Dst = Dst { gap: None, overlap: Some(Twice::Both) };

fn cron(zone: &str, expression: &str, dst: Dst) -> Cron {
    Cron::new(expression, Zone::new(zone).unwrap(), dst).unwrap()
}

/// The fires after an instant, in local time without the name of the zone.
fn fires(cron: &Cron, after: &str, count: usize) -> Vec<String> {
    let after = Timestamp::parse_rfc3339(after).unwrap();
    std::iter::successors(cron.next_after(after), |at| cron.next_after(*at))
        .take(count)
        .map(|at| cron.zone().local(at))
        .map(|at| at.split('[').next().unwrap().to_owned())
        .collect()
}

#[test]
fn unusual_clock_changes_are_handled() {
    for (zone, expression, dst, after, want) in [
        // A whole day is missing: 2011-12-30. Its fires come at the beginning of the 31st.
        (
            "Pacific/Apia",
            "0 9 * * *",
            DEFAULT,
            "2011-12-29T12:00:00Z",
            ["2011-12-29T09:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"],
        ),
        (
            "Pacific/Apia",
            "0 9 * * *",
            SKIP,
            "2011-12-29T12:00:00Z",
            ["2011-12-29T09:00:00-10:00", "2011-12-31T09:00:00+14:00", "2012-01-01T09:00:00+14:00"],
        ),
        (
            "Pacific/Kwajalein",
            "0 */8 * * *",
            DEFAULT,
            "1993-08-21T00:00:00Z",
            ["1993-08-20T16:00:00-12:00", "1993-08-22T00:00:00+12:00", "1993-08-22T08:00:00+12:00"],
        ),
        // A change by half an hour.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            DEFAULT,
            "2026-10-02T20:00:00Z",
            ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00", "2026-10-06T02:15:00+11:00"],
        ),
        (
            "Australia/Lord_Howe",
            "*/20 * * * *",
            DEFAULT,
            "2026-04-04T14:30:00Z",
            ["2026-04-05T01:40:00+11:00", "2026-04-05T01:40:00+10:30", "2026-04-05T02:00:00+10:30"],
        ),
        // A change by two hours.
        (
            "Antarctica/Troll",
            "0,30 1,2 * * *",
            DEFAULT,
            "2026-03-28T03:00:00Z",
            ["2026-03-29T03:00:00+02:00", "2026-03-30T01:00:00+02:00", "2026-03-30T01:30:00+02:00"],
        ),
        // Midnight is missing.
        (
            "Africa/Cairo",
            "0 0 * * *",
            DEFAULT,
            "2026-04-23T12:00:00Z",
            ["2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00", "2026-04-26T00:00:00+03:00"],
        ),
        (
            "Asia/Beirut",
            "@daily",
            DEFAULT,
            "2026-03-28T12:00:00Z",
            ["2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00", "2026-03-31T00:00:00+03:00"],
        ),
        (
            "America/Havana",
            "30 0 * * SUN",
            DEFAULT,
            "2026-03-07T12:00:00Z",
            ["2026-03-08T01:00:00-04:00", "2026-03-15T00:30:00-04:00", "2026-03-22T00:30:00-04:00"],
        ),
        // The hour before or after midnight is shown twice.
        (
            "Africa/Cairo",
            "30 23 * * *",
            BOTH,
            "2026-10-29T12:00:00Z",
            ["2026-10-29T23:30:00+03:00", "2026-10-29T23:30:00+02:00", "2026-10-30T23:30:00+02:00"],
        ),
        (
            "Africa/Cairo",
            "0 0 * * *",
            BOTH,
            "2026-10-29T12:00:00Z",
            ["2026-10-30T00:00:00+02:00", "2026-10-31T00:00:00+02:00", "2026-11-01T00:00:00+02:00"],
        ),
        (
            "America/Havana",
            "0 0 * * *",
            DEFAULT,
            "2026-10-31T12:00:00Z",
            ["2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00", "2026-11-03T00:00:00-05:00"],
        ),
        // Summer time is the standard time.
        (
            "Europe/Dublin",
            "30 1 * * *",
            DEFAULT,
            "2026-03-28T12:00:00Z",
            ["2026-03-29T02:00:00+01:00", "2026-03-30T01:30:00+01:00", "2026-03-31T01:30:00+01:00"],
        ),
        // One hour back during Ramadan.
        (
            "Africa/Casablanca",
            "30 2 * * *",
            DEFAULT,
            "2025-02-22T12:00:00Z",
            ["2025-02-23T02:30:00+01:00", "2025-02-24T02:30:00+00:00", "2025-02-25T02:30:00+00:00"],
        ),
        (
            "Africa/Casablanca",
            "30 2 * * *",
            DEFAULT,
            "2025-04-05T12:00:00Z",
            ["2025-04-06T03:00:00+01:00", "2025-04-07T02:30:00+01:00", "2025-04-08T02:30:00+01:00"],
        ),
        // The last change of this zone: summer time since then.
        (
            "America/Asuncion",
            "0 0 6 10 *",
            DEFAULT,
            "2024-01-01T00:00:00Z",
            ["2024-10-06T01:00:00-03:00", "2025-10-06T00:00:00-03:00", "2026-10-06T00:00:00-03:00"],
        ),
        // Half an hour forward across midnight, permanently.
        (
            "Asia/Pyongyang",
            "45 23 * * *",
            DEFAULT,
            "2018-05-04T12:00:00Z",
            ["2018-05-05T00:00:00+09:00", "2018-05-05T23:45:00+09:00", "2018-05-06T23:45:00+09:00"],
        ),
        // An offset with seconds until 1972: 44 minutes and 30 seconds behind.
        (
            "Africa/Monrovia",
            "15 0 * * *",
            DEFAULT,
            "1972-01-05T12:00:00Z",
            ["1972-01-06T00:15:00-00:45", "1972-01-07T00:44:30+00:00", "1972-01-08T00:15:00+00:00"],
        ),
    ] {
        let got = fires(&cron(zone, expression, dst), after, 3);
        assert_eq!(got, want, "{expression} in {zone}");
    }
}

#[test]
fn a_time_that_always_falls_into_a_gap_never_fires_if_gaps_are_skipped() {
    let after = Timestamp::parse_rfc3339("2026-01-01T00:00:00Z").unwrap();
    assert_eq!(cron("Europe/Berlin", "30 2 ? 3 0L", SKIP).next_after(after), None);
    assert_eq!(cron("America/New_York", "30 2 ? 3 0#2", SKIP).next_after(after), None);
    // The 29th of March is the last Sunday in 2026, but not in 2027.
    assert_eq!(
        fires(&cron("Europe/Berlin", "30 2 29 3 *", SKIP), "2026-01-01T00:00:00Z", 1),
        ["2027-03-29T02:30:00+02:00"]
    );
}

#[test]
fn a_search_that_starts_within_repeated_local_times_does_not_repeat_a_fire() {
    // 02:10 for the second time; 02:30 has fired.
    let after = "2026-10-25T01:10:00Z";
    assert_eq!(
        fires(&cron("Europe/Berlin", "30 2 * * *", DEFAULT), after, 1),
        ["2026-10-26T02:30:00+01:00"]
    );
    assert_eq!(
        fires(&cron("Europe/Berlin", "30 2 * * *", BOTH), after, 1),
        ["2026-10-25T02:30:00+01:00"]
    );
}

#[test]
fn the_last_year_of_an_expression_includes_repeated_local_times() {
    let cron = cron("Europe/Berlin", "0 30 2 25 10 ? 2026", BOTH);
    assert_eq!(
        fires(&cron, "2026-01-01T00:00:00Z", 3),
        ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]
    );
}

#[test]
fn a_distant_fire_is_found_across_centuries_of_clock_changes() {
    let cron = cron("Europe/Berlin", "0 30 2 1 7 ? 2999", DEFAULT);
    let want = ["2999-07-01T02:30:00+02:00"];
    assert_eq!(fires(&cron, "1970-01-01T00:00:00Z", 2), want);
    assert_eq!(fires(&cron, "2026-10-25T00:30:00Z", 2), want);
}

#[test]
fn notes_show_dates_if_a_clock_change_affects_two_days() {
    for (zone, expression, at, want) in [
        (
            "Pacific/Apia",
            "0 9 * * *",
            "2011-12-30T10:00:00Z",
            "2011-12-30 09:00 does not exist: \
             the clocks go forward from 2011-12-30 00:00 to 2011-12-31 00:00",
        ),
        (
            "Africa/Cairo",
            "30 23 * * *",
            "2026-10-29T20:30:00Z",
            "first of two 2026-10-29 23:30, the second is left out: \
             the clocks go back from 2026-10-30 00:00 to 2026-10-29 23:00",
        ),
        (
            "Africa/Monrovia",
            "30 15 0 * * *",
            "1972-01-07T00:44:30Z",
            "00:15:30 does not exist on this day: the clocks go forward from 00:00 to 00:44:30",
        ),
    ] {
        let note = cron(zone, expression, DEFAULT).note(Timestamp::parse_rfc3339(at).unwrap());
        assert_eq!(note.as_deref(), Some(want), "{zone}");
    }
}
