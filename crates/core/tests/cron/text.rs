//! Which expressions are accepted, which times they match, and the errors for all others.
//!
//! All times are UTC, which has no clock changes.

use std::time::Duration;

use punctual_core::{CRON_BYTES_MAX, Cron, Dst, Timestamp, Zone, parse_every};

fn cron(expression: &str) -> Cron {
    Cron::new(expression, Zone::utc(), Dst::default())
        .unwrap_or_else(|error| panic!("{expression}: {error}"))
}

fn refusal(expression: &str) -> String {
    match Cron::new(expression, Zone::utc(), Dst::default()) {
        Ok(cron) => panic!("{expression:?} is accepted as {cron:?}"),
        Err(error) => error.to_string(),
    }
}

/// The fires after 2026-01-01T00:00:00Z, a Thursday, without seconds if they are 0.
fn fires(expression: &str, count: usize) -> Vec<String> {
    let cron = cron(expression);
    let start = Timestamp::parse_rfc3339("2026-01-01T00:00:00Z").unwrap();
    std::iter::successors(cron.next_after(start), |at| cron.next_after(*at))
        .take(count)
        .map(|at| at.to_string().replace(".000Z", "").replace('T', " "))
        .map(|at| at.strip_suffix(":00").map_or(at.clone(), str::to_owned))
        .collect()
}

#[test]
fn each_form_matches_the_times_of_the_table() {
    for (expression, want) in [
        ("* * * * *", ["2026-01-01 00:01", "2026-01-01 00:02", "2026-01-01 00:03"]),
        ("*/20 * * * *", ["2026-01-01 00:20", "2026-01-01 00:40", "2026-01-01 01:00"]),
        ("10/25 * * * *", ["2026-01-01 00:10", "2026-01-01 00:35", "2026-01-01 01:10"]),
        ("10-40/25 * * * *", ["2026-01-01 00:10", "2026-01-01 00:35", "2026-01-01 01:10"]),
        ("5,3,4-5 9 * * *", ["2026-01-01 09:03", "2026-01-01 09:04", "2026-01-01 09:05"]),
        ("05 009 * * *", ["2026-01-01 09:05", "2026-01-02 09:05", "2026-01-03 09:05"]),
        ("*/60 */24 * * *", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]),
        // Six fields have the second first, seven the year last.
        ("30 5 9 * * *", ["2026-01-01 09:05:30", "2026-01-02 09:05:30", "2026-01-03 09:05:30"]),
        ("*/25 0 9 * * *", ["2026-01-01 09:00", "2026-01-01 09:00:25", "2026-01-01 09:00:50"]),
        ("0 0 9 1 1 ? 2028/2", ["2028-01-01 09:00", "2030-01-01 09:00", "2032-01-01 09:00"]),
        ("0 0 9 1 1 ? *", ["2026-01-01 09:00", "2027-01-01 09:00", "2028-01-01 09:00"]),
        ("0 0 9 29 2 ? 2027-2040", ["2028-02-29 09:00", "2032-02-29 09:00", "2036-02-29 09:00"]),
        // A step beyond the range leaves only its first value.
        ("*/100 * * * *", ["2026-01-01 01:00", "2026-01-01 02:00", "2026-01-01 03:00"]),
        ("10/100 * * * *", ["2026-01-01 00:10", "2026-01-01 01:10", "2026-01-01 02:10"]),
        ("10-40/99999 9 * * *", ["2026-01-01 09:10", "2026-01-02 09:10", "2026-01-03 09:10"]),
        ("*/90 */25 * * *", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]),
        ("0 9 */32 */13 *", ["2026-01-01 09:00", "2027-01-01 09:00", "2028-01-01 09:00"]),
        ("0 9 * * */8", ["2026-01-04 09:00", "2026-01-11 09:00", "2026-01-18 09:00"]),
        // Names, and Sunday as 0 and as 7.
        ("0 9 * feb-MAR/1 MON", ["2026-02-02 09:00", "2026-02-09 09:00", "2026-02-16 09:00"]),
        ("0 9 1 Jan,JUL *", ["2026-01-01 09:00", "2026-07-01 09:00", "2027-01-01 09:00"]),
        ("0 9 * * 0", ["2026-01-04 09:00", "2026-01-11 09:00", "2026-01-18 09:00"]),
        ("0 9 * * 7", ["2026-01-04 09:00", "2026-01-11 09:00", "2026-01-18 09:00"]),
        ("0 9 * * 6-7", ["2026-01-03 09:00", "2026-01-04 09:00", "2026-01-10 09:00"]),
        ("0 9 * * SAT-SUN", ["2026-01-03 09:00", "2026-01-04 09:00", "2026-01-10 09:00"]),
        ("0 9 * * sun-mon", ["2026-01-04 09:00", "2026-01-05 09:00", "2026-01-11 09:00"]),
        ("0 9 * * 7-1", ["2026-01-04 09:00", "2026-01-05 09:00", "2026-01-11 09:00"]),
        ("0 9 * * SUN-SUN", ["2026-01-04 09:00", "2026-01-11 09:00", "2026-01-18 09:00"]),
        ("0 9 * * 5-7/2", ["2026-01-02 09:00", "2026-01-04 09:00", "2026-01-09 09:00"]),
        ("0 9 * * 1/2", ["2026-01-02 09:00", "2026-01-05 09:00", "2026-01-07 09:00"]),
        ("0 9 * * SUN/3", ["2026-01-03 09:00", "2026-01-04 09:00", "2026-01-07 09:00"]),
        // Days from the end, and working days.
        ("0 9 L * *", ["2026-01-31 09:00", "2026-02-28 09:00", "2026-03-31 09:00"]),
        ("0 9 l-3 * ?", ["2026-01-28 09:00", "2026-02-25 09:00", "2026-03-28 09:00"]),
        ("0 9 L-30 * ?", ["2026-01-01 09:00", "2026-03-01 09:00", "2026-05-01 09:00"]),
        ("0 9 L,1 * *", ["2026-01-01 09:00", "2026-01-31 09:00", "2026-02-01 09:00"]),
        ("0 9 15W * *", ["2026-01-15 09:00", "2026-02-16 09:00", "2026-03-16 09:00"]),
        // The 1st of August 2026 is a Saturday, and Friday would be July.
        ("0 9 1W 8,11 *", ["2026-08-03 09:00", "2026-11-02 09:00", "2027-08-02 09:00"]),
        // The 31st of May 2026 is a Sunday, and Monday would be June. April has no 31st.
        ("0 9 31W 3-5 *", ["2026-03-31 09:00", "2026-05-29 09:00", "2027-03-31 09:00"]),
        ("0 9 LW 2-5 *", ["2026-02-27 09:00", "2026-03-31 09:00", "2026-04-30 09:00"]),
        // Weekdays from either end of the month.
        ("0 9 * * 5L", ["2026-01-30 09:00", "2026-02-27 09:00", "2026-03-27 09:00"]),
        ("0 9 ? * fril", ["2026-01-30 09:00", "2026-02-27 09:00", "2026-03-27 09:00"]),
        ("0 9 * * 7L", ["2026-01-25 09:00", "2026-02-22 09:00", "2026-03-29 09:00"]),
        ("0 9 * * 5#2", ["2026-01-09 09:00", "2026-02-13 09:00", "2026-03-13 09:00"]),
        ("0 9 * * Thu#1", ["2026-01-01 09:00", "2026-02-05 09:00", "2026-03-05 09:00"]),
        ("0 9 * * 4#5", ["2026-01-29 09:00", "2026-04-30 09:00", "2026-07-30 09:00"]),
        ("0 9 * * 7#1,7L", ["2026-01-04 09:00", "2026-01-25 09:00", "2026-02-01 09:00"]),
        // Rare days.
        ("0 9 29 2 *", ["2028-02-29 09:00", "2032-02-29 09:00", "2036-02-29 09:00"]),
        ("0 9 * 2 5#5", ["2036-02-29 09:00", "2064-02-29 09:00", "2092-02-29 09:00"]),
        // Nicknames.
        ("@yearly", ["2027-01-01 00:00", "2028-01-01 00:00", "2029-01-01 00:00"]),
        ("@annually", ["2027-01-01 00:00", "2028-01-01 00:00", "2029-01-01 00:00"]),
        ("@monthly", ["2026-02-01 00:00", "2026-03-01 00:00", "2026-04-01 00:00"]),
        ("@weekly", ["2026-01-04 00:00", "2026-01-11 00:00", "2026-01-18 00:00"]),
        ("@Daily", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]),
        ("@midnight", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]),
        ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00", "2026-01-01 03:00"]),
    ] {
        assert_eq!(fires(expression, 3), want, "{expression}");
    }
}

#[test]
fn a_day_matches_either_field_if_both_are_restricted_and_both_fields_otherwise() {
    for (expression, want) in [
        ("0 9 13 * FRI", ["2026-01-02 09:00", "2026-01-09 09:00", "2026-01-13 09:00"]),
        ("0 9 13 * *", ["2026-01-13 09:00", "2026-02-13 09:00", "2026-03-13 09:00"]),
        ("0 9 13 * ?", ["2026-01-13 09:00", "2026-02-13 09:00", "2026-03-13 09:00"]),
        ("0 9 13 * */1", ["2026-01-13 09:00", "2026-02-13 09:00", "2026-03-13 09:00"]),
        ("0 9 ? * FRI", ["2026-01-02 09:00", "2026-01-09 09:00", "2026-01-16 09:00"]),
        ("0 9 */1 * FRI", ["2026-01-02 09:00", "2026-01-09 09:00", "2026-01-16 09:00"]),
        ("0 9 *,5 * FRI", ["2026-01-02 09:00", "2026-01-09 09:00", "2026-01-16 09:00"]),
        ("0 9 ? * ?", ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-03 09:00"]),
        // A field that begins with a star does not restrict, whatever follows.
        ("0 9 */2 * FRI", ["2026-01-09 09:00", "2026-01-23 09:00", "2026-02-13 09:00"]),
        ("0 0 */2 * MON", ["2026-01-05 00:00", "2026-01-19 00:00", "2026-02-09 00:00"]),
        ("0 0 ?/2 * MON", ["2026-01-05 00:00", "2026-01-19 00:00", "2026-02-09 00:00"]),
        ("0 0 */2,12 * MON", ["2026-01-05 00:00", "2026-01-12 00:00", "2026-01-19 00:00"]),
        ("0 0 1 * */2", ["2026-02-01 00:00", "2026-03-01 00:00", "2026-08-01 00:00"]),
        ("0 0 */2 * */2", ["2026-01-03 00:00", "2026-01-11 00:00", "2026-01-13 00:00"]),
        ("0 0 */2 * 5#2", ["2026-01-09 00:00", "2026-02-13 00:00", "2026-03-13 00:00"]),
        ("0 0 L * */2", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 1,15 * MON", ["2026-01-05 00:00", "2026-01-12 00:00", "2026-01-15 00:00"]),
        ("0 0 ? * MON", ["2026-01-05 00:00", "2026-01-12 00:00", "2026-01-19 00:00"]),
        // A field that begins otherwise restricts, even if it has all days.
        ("0 9 1-31 * FRI", ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-03 09:00"]),
        ("0 9 5,* * FRI", ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-03 09:00"]),
        ("0 9 L * 1#1", ["2026-01-05 09:00", "2026-01-31 09:00", "2026-02-02 09:00"]),
    ] {
        assert_eq!(fires(expression, 3), want, "{expression}");
    }
}

#[test]
fn the_error_names_the_field_and_what_is_allowed() {
    let weekday = "0-7 (0 and 7 are Sunday) or SUN-SAT, as 5L the last or as 5#2 the second";
    let day = "1-31, L, L-1 to L-30, 1W to 31W or LW";
    let step = "must have a step of at least 1";
    for (expression, want) in [
        ("0 25 * * *", "field 2 (hour) must be 0-23, is \"25\"".to_owned()),
        ("60 * * * *", "field 1 (minute) must be 0-59, is \"60\"".to_owned()),
        ("60 * * * * *", "field 1 (second) must be 0-59, is \"60\"".to_owned()),
        ("0 0 24 * * *", "field 3 (hour) must be 0-23, is \"24\"".to_owned()),
        ("* * 0 * *", format!("field 3 (day) must be {day}, is \"0\"")),
        ("* * 32 * *", format!("field 3 (day) must be {day}, is \"32\"")),
        ("* * 0W * *", format!("field 3 (day) must be {day}, is \"0W\"")),
        ("* * W * *", format!("field 3 (day) must be {day}, is \"W\"")),
        ("* * L-31 * *", format!("field 3 (day) must be {day}, is \"L-31\"")),
        ("* * L-0 * *", format!("field 3 (day) must be {day}, is \"L-0\"")),
        ("* * L/2 * *", format!("field 3 (day) must be {day}, is \"L/2\"")),
        ("* * 1-15W * *", format!("field 3 (day) must be {day}, is \"1-15W\"")),
        ("* * * 13 *", "field 4 (month) must be 1-12 or JAN-DEC, is \"13\"".to_owned()),
        ("* * * 0 *", "field 4 (month) must be 1-12 or JAN-DEC, is \"0\"".to_owned()),
        ("* * * JANUARY *", "field 4 (month) must be 1-12 or JAN-DEC, is \"JANUARY\"".to_owned()),
        ("* * * MON *", "field 4 (month) must be 1-12 or JAN-DEC, is \"MON\"".to_owned()),
        ("* * * * 8", format!("field 5 (weekday) must be {weekday}, is \"8\"")),
        ("* * * * L", format!("field 5 (weekday) must be {weekday}, is \"L\"")),
        ("* * * * 1-3L", format!("field 5 (weekday) must be {weekday}, is \"1-3L\"")),
        ("* * * * #2", format!("field 5 (weekday) must be {weekday}, is \"#2\"")),
        (
            "* * * * 5#6",
            "field 5 (weekday) must have #1 to #5 after the weekday, is \"5#6\"".to_owned(),
        ),
        (
            "* * * * 5#0",
            "field 5 (weekday) must have #1 to #5 after the weekday, is \"5#0\"".to_owned(),
        ),
        ("0 0 0 1 1 ? 1969", "field 7 (year) must be 1970-2999, is \"1969\"".to_owned()),
        ("0 0 0 1 1 ? 3000", "field 7 (year) must be 1970-2999, is \"3000\"".to_owned()),
        ("? * * * *", "field 1 (minute) must be 0-59; \"?\" is for day and weekday".to_owned()),
        ("-1 * * * *", "field 1 (minute) must be 0-59, is \"-1\"".to_owned()),
        ("+1 * * * *", "field 1 (minute) must be 0-59, is \"+1\"".to_owned()),
        ("1- * * * *", "field 1 (minute) must be 0-59, is \"1-\"".to_owned()),
        ("1-2-3 * * * *", "field 1 (minute) must be 0-59, is \"1-2-3\"".to_owned()),
        ("1,,2 * * * *", "field 1 (minute) must be 0-59, is \"\"".to_owned()),
        (", * * * *", "field 1 (minute) must be 0-59, is \"\"".to_owned()),
        ("/5 * * * *", "field 1 (minute) must be 0-59, is \"/5\"".to_owned()),
        ("x * * * *", "field 1 (minute) must be 0-59, is \"x\"".to_owned()),
        ("99999999999 * * * *", "field 1 (minute) must be 0-59, is \"99999999999\"".to_owned()),
        ("*/0 * * * *", format!("field 1 (minute) {step}, is \"/0\"")),
        ("*/000 * * * *", format!("field 1 (minute) {step}, is \"/000\"")),
        ("*/-1 * * * *", format!("field 1 (minute) {step}, is \"/-1\"")),
        ("*/ * * * *", format!("field 1 (minute) {step}, is \"/\"")),
        ("*/5/5 * * * *", format!("field 1 (minute) {step}, is \"/5/5\"")),
        ("* */x * * *", format!("field 2 (hour) {step}, is \"/x\"")),
        (
            "* 22-6 * * *",
            "field 2 (hour) must not have a range that runs backwards, is \"22-6\": \
             write 22-23,0-6"
                .to_owned(),
        ),
        (
            "* * * * FRI-MON",
            "field 5 (weekday) must not have a range that runs backwards, is \"FRI-MON\": \
             write FRI-6,0-MON"
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(expression), format!("cron: {want}"));
    }
}

#[test]
fn the_error_for_another_form_says_which_form_is_allowed() {
    let fields = "cron: must have 5 fields (minute hour day month weekday), 6 (second first) \
                  or 7 (second first, year last), has ";
    for (expression, want) in [
        ("", format!("{fields}0")),
        ("  ", format!("{fields}0")),
        ("* * * *", format!("{fields}4")),
        ("* * * * * * * *", format!("{fields}8")),
        ("0 9 * * Mö", "cron: must be plain ASCII".to_owned()),
        (&"0 ".repeat(129), "cron: must have at most 256 bytes, has 258".to_owned()),
        (
            "CRON_TZ=Europe/Berlin 0 9 * * *",
            "cron: must not name a time zone, which is a field of its own".to_owned(),
        ),
        ("@every 5m", "cron: @every is an interval, and has no time zone".to_owned()),
        (
            "@reboot",
            "cron: must be one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, \
             @hourly or have fields, is \"@reboot\""
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(expression), want);
    }
    assert_eq!(CRON_BYTES_MAX, 256);
}

#[test]
fn a_day_that_does_not_exist_is_refused() {
    let want = "cron: never fires: none of its months has such a day";
    for expression in [
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 30W 2 ?",
        "0 0 L-29 2 *",
        "0 0 L-30 4 *",
        // Leap years only, and none among the years.
        "0 0 0 29 2 ? 2027",
        "0 0 0 29 2 ? 1971/2",
        "0 0 0 29 2 ? 2100",
        "0 0 0 ? 2 1#5 2026",
        // Both day fields must match, because one begins with a star.
        "0 0 30 2 */2",
        "0 0 */31 2 2#2",
        "0 0 LW * */6",
    ] {
        assert_eq!(refusal(expression), want, "{expression}");
    }
    for expression in ["0 0 30 2 MON", "0 0 29 2 *", "0 0 31 1-2 *", "0 0 L-28 2 *"] {
        cron(expression);
    }
}

#[test]
fn an_expression_ends_with_its_last_year() {
    assert_eq!(fires("0 0 0 1 1 ? 2020", 3), Vec::<String>::new());
    assert_eq!(fires("0 0 9 1 1 ? 2026-2027", 3), ["2026-01-01 09:00", "2027-01-01 09:00"]);
    assert_eq!(fires("0 0 0 1 1 ? 2999", 3), ["2999-01-01 00:00"]);
    // Without a year it continues to the end of time.
    let end = cron("* * * * * *");
    let last = Timestamp::from_millis(Timestamp::MAX.as_millis() - 1);
    assert_eq!(end.next_after(last), Some(Timestamp::MAX));
    assert_eq!(end.next_after(Timestamp::MAX), None);
    assert_eq!(cron("@yearly").next_after(last), None);
}

#[test]
fn the_next_fire_is_strictly_later_to_the_millisecond() {
    let cron = cron("0 9 * * *");
    let at = |text: &str| Timestamp::parse_rfc3339(text).unwrap();
    let (today, tomorrow) = (at("2026-01-01T09:00:00Z"), at("2026-01-02T09:00:00Z"));
    for (after, want) in [
        ("2026-01-01T08:59:59.999Z", today),
        ("2026-01-01T09:00:00.000Z", tomorrow),
        ("2026-01-01T09:00:00.001Z", tomorrow),
        ("2026-01-02T08:59:59.001Z", tomorrow),
    ] {
        assert_eq!(cron.next_after(at(after)), Some(want), "{after}");
    }
    assert_eq!(cron.next_after(Timestamp::EPOCH), Some(at("1970-01-01T09:00:00Z")));
}

#[test]
fn an_expression_is_kept_as_written_except_for_blanks() {
    let cron = cron("  0\t9 * *\n fri ");
    assert_eq!(cron.expression(), "0 9 * * fri");
    assert_eq!(cron, self::cron("0 9 * * fri"));
    assert_ne!(cron, self::cron("0 9 * * thu"));
    assert_eq!((cron.zone(), cron.dst()), (&Zone::utc(), Dst::default()));
}

#[test]
fn at_every_is_read_as_an_interval() {
    for (text, want) in [
        ("@every 5m", Some(Ok(Duration::from_secs(300)))),
        (" @EVERY  1h30m ", Some(Ok(Duration::from_secs(5400)))),
        ("@every PT15S", Some(Ok(Duration::from_secs(15)))),
        (
            "@every five",
            Some(Err("cron: @every must be a duration like 500ms, 15s, 15m, 1h30m, 30d or PT15M")),
        ),
        ("@every", Some(Err("cron: @every must have one duration, like @every 5m"))),
        ("@every 1h 30m", Some(Err("cron: @every must have one duration, like @every 5m"))),
        ("@everyday", None),
        ("@daily", None),
        ("* * * * *", None),
        ("", None),
    ] {
        let got = parse_every(text).map(|every| every.map_err(|error| error.to_string()));
        assert_eq!(got, want.map(|want| want.map_err(str::to_owned)), "{text:?}");
    }
}
