//! Tasks that go on, and their judge: series against their times, watches against what was acknowledged last.
//!
//! In: what callers were told, what receivers got, and what the history says. Out: every difference as a line, and how often what happened.
//! One judge for one broker and for many.

use punctual_test_support::{ReceivedDelivery, millis};
use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

/// A time that is so much late at its turn is missed, and what comes of it is the policy's.
const MISSED_AFTER_MS: u64 = 5_000;

/// A touch without an answer is done no later than this: a broker that was held takes it up when it wakes, and calls wait three seconds
/// for an owner.
const DONE_LATE_MAX_MS: u64 = 10_000;

/// One that fires again and again.
#[derive(Debug)]
pub(crate) struct TestSeries {
    pub(crate) key: String,
    pub(crate) first: u64,
    pub(crate) interval: u64,
    pub(crate) at_most_once: bool,
    /// What comes while the one before is not over may be left out.
    pub(crate) apart: bool,
}

/// One that is touched, or is not any more. One that has fired is armed again by the next touch.
#[derive(Debug)]
pub(crate) struct TestWatch {
    pub(crate) key: String,
    pub(crate) within: u64,
    /// How it was asked for is the first.
    pub(crate) touches: Vec<TouchCall>,
}

/// One touch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TouchCall {
    pub(crate) asked_at: u64,
    pub(crate) answered_at: u64,
    /// When it is due since then; `None` if it is not known whether it was done.
    pub(crate) due: Option<u64>,
}

/// What a judge has to say.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// What the history says of one time.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FireFate {
    /// Nobody knows what came of it.
    Unknown,
    /// Claimed, and certainly not sent, because the lease was over by then; the series had gone on.
    NotSent,
    /// Nothing was missed for long enough when it was left out.
    LeftOutTooSoon,
    Missed,
    Overlapped,
    /// Sent, to whatever end.
    Sent,
    Else(String),
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

/// Judges a series by `…/fires` of it, over all of its times before an end.
pub(crate) fn check_series(
    series: &TestSeries,
    got: &[ReceivedDelivery],
    page: &Value,
    end: u64,
) -> Findings {
    let TestSeries { key, first, interval, at_most_once, apart } = series;
    let mut findings = Findings::default();
    let mut by_time: BTreeMap<u64, Vec<&ReceivedDelivery>> = BTreeMap::new();
    for delivery in got {
        by_time.entry(delivery.fire_at_millis).or_default().push(delivery);
    }
    for at in by_time.keys() {
        if at < first || !(at - first).is_multiple_of(*interval) {
            findings.violation(format!("{key}: {at} is none of its times"));
        }
    }
    let fates = fates(page, *interval);
    for at in (0..).map(|beat| first + beat * interval).take_while(|at| *at < end) {
        let got = by_time.get(&at).map(Vec::as_slice).unwrap_or_default();
        let fate = fates.get(&at);
        check_fire(&mut findings, &format!("{key} at {at}"), at, got);
        if *at_most_once && got.len() > 1 {
            findings.violation(format!("{key}: at most once, and {got:?}"));
        }
        match (got.len(), fate) {
            (_, None) => findings.violation(format!("{key}: nobody knows what became of {at}")),
            (0, Some(FireFate::Unknown)) if *at_most_once => findings.count("series_unknown"),
            (0, Some(FireFate::NotSent)) if *at_most_once => findings.count("series_not_sent"),
            (0, Some(FireFate::Missed)) => findings.count("series_missed"),
            (0, Some(FireFate::Overlapped)) if *apart => findings.count("series_overlapped"),
            (0, Some(fate)) => {
                findings.violation(format!("{key}: {at} was never received, and is {fate:?}"));
            }
            (_, Some(FireFate::Missed | FireFate::Overlapped | FireFate::NotSent)) => {
                findings.violation(format!("{key}: {at} was left out or not sent, and received"));
            }
            (1, Some(_)) => findings.count("series_once"),
            (_, Some(_)) => findings.count("series_again"),
        }
    }
    findings
}

/// Judges a watch that has been silent for long enough.
pub(crate) fn check_watch(watch: &TestWatch, got: &[ReceivedDelivery]) -> Findings {
    let TestWatch { key, within, touches } = watch;
    let mut findings = Findings::default();
    let mut by_time: BTreeMap<u64, Vec<&ReceivedDelivery>> = BTreeMap::new();
    for delivery in got {
        by_time.entry(delivery.fire_at_millis).or_default().push(delivery);
    }
    let doubtful = |at: u64| {
        let from = |touch: &TouchCall| touch.asked_at + within;
        let mut open = touches.iter().filter(|touch| touch.due.is_none());
        open.any(|touch| (from(touch)..=from(touch) + DONE_LATE_MAX_MS).contains(&at))
    };
    for (at, got) in &by_time {
        check_fire(&mut findings, key, *at, got);
        let known = touches.iter().any(|touch| touch.due == Some(*at));
        if !known && !doubtful(*at) {
            findings.violation(format!("{key}: {at} is no time of it: {touches:?}"));
        }
        let away = |touch: &&TouchCall| touch.due > Some(*at) && touch.answered_at < *at;
        if let Some(touch) = touches.iter().find(away) {
            findings.violation(format!("{key}: {got:?}, from which it was put off: {touch:?}"));
        }
        findings.count(if known { "watch" } else { "watch_in_doubt" });
    }
    let last = touches.iter().filter_map(|touch| touch.due).max().unwrap_or_default();
    if !by_time.keys().any(|at| *at == last || (*at > last && doubtful(*at))) {
        findings.violation(format!("{key} fell silent, and nobody was told: {touches:?}, {got:?}"));
    }
    findings
}

/// One fire has one id, and is not early.
fn check_fire(findings: &mut Findings, what: &str, at: u64, got: &[&ReceivedDelivery]) {
    let ids: HashSet<_> = got.iter().map(|delivery| &delivery.fire_id).collect();
    if ids.len() > 1 {
        findings.violation(format!("{what}: one fire, one id: {got:?}"));
    }
    if let Some(delivery) = got.iter().find(|delivery| delivery.at_millis < u128::from(at)) {
        findings.violation(format!("{what} is early: {delivery:?}"));
    }
}

/// Whether a fire, or the letter of one, says that its only attempt was none.
pub(crate) fn was_not_sent(fire: &Value) -> bool {
    let attempts = fire["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    matches!(attempts, [only] if only["answer"] == "it was not sent")
}

/// What became of every time that the history knows of.
fn fates(page: &Value, interval: u64) -> HashMap<u64, FireFate> {
    let mut fates = HashMap::new();
    for fire in page["fires"].as_array().expect("a list of fires") {
        let instant = |value: &Value| value.as_str().map(millis);
        let at = instant(&fire["fire_at"]).expect("a fire has its time");
        let last = instant(&fire["skipped"]["until"]).unwrap_or(at);
        let late = instant(&fire["ended_at"]).unwrap_or(at).saturating_sub(at);
        let fate = match (fire["end"].as_str(), fire["skipped"]["reason"].as_str()) {
            (_, Some("misfire")) if late < MISSED_AFTER_MS => FireFate::LeftOutTooSoon,
            (_, Some("misfire")) => FireFate::Missed,
            (_, Some("overlap")) => FireFate::Overlapped,
            (None | Some("done"), _) => FireFate::Sent,
            (Some("dead"), _) if fire["reason"] == "unknown" => FireFate::Unknown,
            (Some("dead"), _) if was_not_sent(fire) => FireFate::NotSent,
            _ => FireFate::Else(fire.to_string()),
        };
        let step = usize::try_from(interval).expect("it is short");
        fates.extend((at..=last).step_by(step).map(|at| (at, fate.clone())));
    }
    fates
}
