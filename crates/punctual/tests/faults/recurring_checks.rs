//! Checks of recurring tasks: series against their times, watches against the touches that were
//! acknowledged.
//!
//! The checks compare the answers to callers, the deliveries and the history. They return every
//! violation as a line, and how often each outcome happened. The same checks serve one broker and a
//! cluster.

use std::collections::{BTreeMap, HashMap, HashSet};

use punctual_test_support::{ReceivedDelivery, millis};
use serde_json::Value;

/// A fire that is this late counts as missed, and the misfire policy applies.
const MISSED_AFTER_MS: u64 = 5_000;

/// A touch without an answer takes effect no later than this: a suspended broker handles it when it
/// resumes, and calls wait three seconds for an owner.
const DONE_LATE_MAX_MS: u64 = 10_000;

/// A cron or interval task.
#[derive(Debug)]
pub(crate) struct TestSeries {
    pub(crate) key: String,
    /// The first due time, in milliseconds since 1970.
    pub(crate) first: u64,
    /// In milliseconds.
    pub(crate) interval: u64,
    pub(crate) at_most_once: bool,
    /// A fire may be skipped while the previous one is in flight.
    pub(crate) may_overlap: bool,
}

/// A watch and its touches. A watch that has fired is armed again by the next touch.
#[derive(Debug)]
pub(crate) struct TestWatch {
    pub(crate) key: String,
    pub(crate) within: u64,
    /// The first one is the call that scheduled the watch.
    pub(crate) touches: Vec<TouchCall>,
}

/// One touch, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TouchCall {
    pub(crate) sent_at: u64,
    pub(crate) answered_at: u64,
    /// The due time in the answer; `None` if there was no answer.
    pub(crate) due: Option<u64>,
}

/// The result of checks.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// What the history has about one due time.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FireFate {
    /// A dead letter `unknown`.
    Unknown,
    /// Claimed but not sent, because the lease had ended before the first byte; the series already
    /// had its next fire.
    NotSent,
    /// Skipped as missed, but not late enough for that.
    SkippedTooSoon,
    /// Skipped as missed, with the time at which that was decided.
    Missed(u64),
    Overlapped,
    /// Sent, with any outcome.
    Sent,
    Other(String),
}

impl Findings {
    fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        self.violations.extend(other.violations);
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self
    }
}

/// Checks a series against the answer to `…/fires`, for all of its times before `end`.
pub(crate) fn check_series(
    series: &TestSeries,
    got: &[ReceivedDelivery],
    page: &Value,
    end: u64,
) -> Findings {
    let TestSeries { key, first, interval, at_most_once, may_overlap } = series;
    let mut findings = Findings::default();
    let mut by_time: BTreeMap<u64, Vec<&ReceivedDelivery>> = BTreeMap::new();
    for delivery in got {
        by_time.entry(delivery.fire_at_millis).or_default().push(delivery);
    }
    for at in by_time.keys() {
        if at < first || !(at - first).is_multiple_of(*interval) {
            findings.violation(format!("{key}: {at} is not one of its times"));
        }
    }
    let fates = fates(page, *interval);
    for at in (0..).map(|n| first + n * interval).take_while(|at| *at < end) {
        let got = by_time.get(&at).map(Vec::as_slice).unwrap_or_default();
        let fate = fates.get(&at);
        check_fire(&mut findings, &format!("{key} at {at}"), at, got);
        if *at_most_once && got.len() > 1 {
            findings.violation(format!("{key}: at most once, and {got:?}"));
        }
        match (got.len(), fate) {
            (_, None) => findings.violation(format!("{key}: the history does not have {at}")),
            (0, Some(FireFate::Unknown)) if *at_most_once => findings.count("series_unknown"),
            (0, Some(FireFate::NotSent)) if *at_most_once => findings.count("series_not_sent"),
            (0, Some(FireFate::Missed(_))) => findings.count("series_missed"),
            // Its owner had sent it and was gone before the attempt was stored. The next owner came
            // when it counted as missed. At most once, a claim is stored first.
            (_, Some(FireFate::Missed(decided)))
                if !*at_most_once && got.iter().all(|it| it.at_millis <= (*decided).into()) =>
            {
                findings.count("series_missed_after_it_was_sent");
            }
            (0, Some(FireFate::Overlapped)) if *may_overlap => findings.count("series_overlapped"),
            (0, Some(fate)) => {
                findings.violation(format!("{key}: {at} was never received, and is {fate:?}"));
            }
            (_, Some(FireFate::Missed(_) | FireFate::Overlapped | FireFate::NotSent)) => {
                findings.violation(format!("{key}: {at} was skipped or not sent, and received"));
            }
            (1, Some(_)) => findings.count("series_once"),
            (_, Some(_)) => findings.count("series_again"),
        }
    }
    findings
}

/// Checks a watch that was not touched for long enough.
pub(crate) fn check_watch(watch: &TestWatch, got: &[ReceivedDelivery]) -> Findings {
    let TestWatch { key, within, touches } = watch;
    let mut findings = Findings::default();
    let mut by_time: BTreeMap<u64, Vec<&ReceivedDelivery>> = BTreeMap::new();
    for delivery in got {
        by_time.entry(delivery.fire_at_millis).or_default().push(delivery);
    }
    let may_be_due = |at: u64| {
        let from = |touch: &TouchCall| touch.sent_at + within;
        let mut open = touches.iter().filter(|touch| touch.due.is_none());
        open.any(|touch| (from(touch)..=from(touch) + DONE_LATE_MAX_MS).contains(&at))
    };
    for (at, got) in &by_time {
        check_fire(&mut findings, key, *at, got);
        let known = touches.iter().any(|touch| touch.due == Some(*at));
        if !known && !may_be_due(*at) {
            findings.violation(format!("{key}: {at} is not one of its times: {touches:?}"));
        }
        let postponed = |touch: &&TouchCall| touch.due > Some(*at) && touch.answered_at < *at;
        if let Some(touch) = touches.iter().find(postponed) {
            findings.violation(format!("{key}: {got:?}, although it was postponed: {touch:?}"));
        }
        findings.count(if known { "watch" } else { "watch_of_unanswered_touch" });
    }
    let last = touches.iter().filter_map(|touch| touch.due).max().unwrap_or_default();
    if !by_time.keys().any(|at| *at == last || (*at > last && may_be_due(*at))) {
        findings.violation(format!("{key} was not touched and did not fire: {touches:?}, {got:?}"));
    }
    findings
}

/// Checks that the deliveries of one fire have one id and are not early.
fn check_fire(findings: &mut Findings, what: &str, at: u64, got: &[&ReceivedDelivery]) {
    let ids: HashSet<_> = got.iter().map(|delivery| &delivery.fire_id).collect();
    if ids.len() > 1 {
        findings.violation(format!("{what}: several ids of one fire: {got:?}"));
    }
    if let Some(delivery) = got.iter().find(|delivery| delivery.at_millis < u128::from(at)) {
        findings.violation(format!("{what} is early: {delivery:?}"));
    }
}

/// Returns whether a fire or a dead letter has only an attempt that was not sent.
pub(crate) fn was_not_sent(fire: &Value) -> bool {
    let attempts = fire["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    matches!(attempts, [only] if only["reason"] == "it was not sent")
}

/// Returns the fate of every due time in the history.
fn fates(page: &Value, interval: u64) -> HashMap<u64, FireFate> {
    let mut fates = HashMap::new();
    for fire in page["fires"].as_array().expect("a list of fires") {
        let instant = |value: &Value| value.as_str().map(millis);
        let at = instant(&fire["fire_at"]).expect("a fire has a time");
        let last = instant(&fire["skipped"]["until"]).unwrap_or(at);
        let late = instant(&fire["ended_at"]).unwrap_or(at).saturating_sub(at);
        let fate = match (fire["end"].as_str(), fire["skipped"]["reason"].as_str()) {
            (_, Some("misfire")) if late < MISSED_AFTER_MS => FireFate::SkippedTooSoon,
            (_, Some("misfire")) => FireFate::Missed(at + late),
            (_, Some("overlap")) => FireFate::Overlapped,
            (None | Some("done"), _) => FireFate::Sent,
            (Some("dead"), _) if fire["reason"] == "unknown" => FireFate::Unknown,
            (Some("dead"), _) if was_not_sent(fire) => FireFate::NotSent,
            _ => FireFate::Other(fire.to_string()),
        };
        let step = usize::try_from(interval).expect("a short interval");
        fates.extend((at..=last).step_by(step).map(|at| (at, fate.clone())));
    }
    fates
}
