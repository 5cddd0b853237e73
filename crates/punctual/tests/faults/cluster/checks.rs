//! Checks of a round: the answers to callers against what receivers got. Every violation is a line.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use punctual_test_support::{BrokerClient, ReceivedDelivery, eventually, pause};
use serde_json::Value;

use crate::cluster::load::{CallOutcome, LoadReceivers, LoadTask};
use crate::recurring_checks::{Findings, was_not_sent};

/// The result of the checks of a round.
#[derive(Debug, Default)]
pub(crate) struct RoundFindings {
    /// What must never happen.
    pub(crate) violations: Vec<String>,
    /// How often each outcome happened.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// What may happen after a failure, but not in an orderly hand-over.
    pub(crate) blemishes: Vec<String>,
}

/// The counts of `/stats`.
pub(crate) type StatCounts = BTreeMap<&'static str, i64>;

const COUNTED: [&str; 7] =
    ["accepted", "scheduled", "firing", "paused", "done", "dead", "cancelled"];

pub(crate) fn stats(client: &BrokerClient) -> Option<StatCounts> {
    let (status, stats) = client.request("GET", "/v1/shop/stats", "")?;
    let overdue = stats["oldest_overdue_ms"].as_i64();
    let counts = COUNTED.map(|name| (name, stats[name].as_i64().unwrap_or(-1)));
    let all = counts.into_iter().chain([("overdue", overdue.unwrap_or(-1))]);
    (status == 200).then(|| all.collect())
}

/// Waits until all tasks have ended. Returns the last counts as an error if `idle_max` requests in
/// a row show no progress.
pub(crate) fn all_ended(client: &BrokerClient, idle_max: u32) -> Result<StatCounts, StatCounts> {
    let mut last = StatCounts::new();
    let mut idle = 0;
    while idle < idle_max {
        let now = eventually(|| stats(client));
        if now["scheduled"] == 0 && now["firing"] == 0 {
            return Ok(now);
        }
        idle = if now["done"] == last.get("done").copied().unwrap_or(-1) { idle + 1 } else { 0 };
        last = now;
        pause(Duration::from_millis(200));
    }
    Err(last)
}

impl RoundFindings {
    fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Checks a round whose tasks have all ended. `recurring` tasks were accepted in addition.
    pub(crate) fn of(
        tasks: &[LoadTask],
        receivers: &LoadReceivers,
        client: &BrokerClient,
        before: &StatCounts,
        recurring: usize,
    ) -> Self {
        let mut findings = Self::default();
        let deliveries = receivers.log.deliveries();
        let unknown = findings.unknown_letters(client);
        for task in tasks {
            let got = deliveries.get(&task.key).map_or([].as_slice(), Vec::as_slice);
            findings.check_times(task, got);
            findings.check_ids(task, got, receivers);
            findings.check_count(task, got, &unknown);
        }
        // A task that has ended is not found by its key.
        let ended = |key: &str| deliveries.contains_key(key) || unknown.contains(key);
        findings.check_stats(tasks, &ended, client, before, recurring);
        findings
    }

    /// Adds the result of the checks of recurring tasks.
    pub(crate) fn add(&mut self, findings: Findings) {
        self.violations.extend(findings.violations);
        self.counts.extend(findings.counts);
    }

    /// Checks that nothing is early, and that nothing fires after a cancel or at a time that was
    /// postponed.
    fn check_times(&mut self, task: &LoadTask, got: &[ReceivedDelivery]) {
        let touched = task.touch.filter(|(_, outcome, _)| *outcome != CallOutcome::NotDone);
        for delivery in got {
            let due = delivery.fire_at_millis;
            if delivery.at_millis < due.into() {
                self.violation(format!("early: {task:?} {delivery:?}"));
            }
            if due != task.due && touched.is_none_or(|(until, ..)| until != due) {
                self.violation(format!("due at a time that was never set: {task:?} {delivery:?}"));
            }
            if let Some((_, CallOutcome::Done, at)) = task.touch
                && due == task.due
                && delivery.at_millis > at
            {
                self.violation(format!("fired although postponed: {task:?} {delivery:?}"));
            }
            if let Some((CallOutcome::Done, at)) = task.cancel
                && delivery.at_millis > at
            {
                self.violation(format!("fired although cancelled: {task:?} {delivery:?}"));
            }
            if task.put == CallOutcome::NotDone {
                self.violation(format!("fired although refused: {task:?} {delivery:?}"));
            }
        }
    }

    /// Checks that a fire has one id, and one effect behind a table of ids.
    fn check_ids(&mut self, task: &LoadTask, got: &[ReceivedDelivery], receivers: &LoadReceivers) {
        let mut ids: HashMap<u64, HashSet<&str>> = HashMap::new();
        for delivery in got {
            ids.entry(delivery.fire_at_millis).or_default().insert(&delivery.fire_id);
        }
        if ids.values().any(|ids| ids.len() > 1) {
            self.violation(format!("several ids of one fire: {task:?} {got:?}"));
        }
        // Only workers have such a table.
        let effects = ids.values().flatten().map(|id| receivers.workers.effects.of(id));
        if effects.clone().any(|effects| effects > 1) {
            self.violation(format!("several effects: {task:?} {got:?}"));
        }
    }

    /// Checks how often a task was received.
    fn check_count(
        &mut self,
        task: &LoadTask,
        got: &[ReceivedDelivery],
        unknown: &HashSet<String>,
    ) {
        let cancel = task.cancel.map(|(outcome, _)| outcome);
        let may_be_cancelled = matches!(cancel, Some(CallOutcome::Done | CallOutcome::Unknown));
        let must_be_received = task.put == CallOutcome::Done && !may_be_cancelled;
        let most_once = task.guarantee == "at_most_once";
        let is_unknown = unknown.contains(&task.key);
        if is_unknown && !most_once {
            self.violation(format!("unknown, but may be sent again: {task:?} {got:?}"));
        }
        let what = match (most_once, got.len()) {
            (true, 0) if is_unknown => "most_never_unknown",
            (_, 0) if must_be_received => {
                self.violation(format!("acknowledged and never received: {task:?}"));
                "lost"
            }
            (_, 0) if cancel == Some(CallOutcome::Done) => "cancelled",
            (_, 0) if task.put == CallOutcome::NotDone => "refused",
            (_, 0) => "outcome_unknown_never",
            (true, 1) if is_unknown => "most_once_unknown",
            (true, 1) => "most_once",
            (true, _) => {
                self.violation(format!("at most once, and again: {task:?} {got:?}"));
                "most_twice"
            }
            (false, 1) => "once",
            // A worker lost it on purpose.
            (false, _) if task.key.ends_with("lost") => "again_lost",
            (false, _) => "again",
        };
        if matches!(what, "again" | "most_never_unknown") && !task.key.ends_with("lost") {
            self.blemishes.push(format!("{what}: {task:?} {got:?}"));
        }
        self.count(what);
    }

    /// Checks that everything accepted has ended, and that every end is counted once.
    fn check_stats(
        &mut self,
        tasks: &[LoadTask],
        ended: &dyn Fn(&str) -> bool,
        client: &BrokerClient,
        before: &StatCounts,
        recurring: usize,
    ) {
        let now = eventually(|| stats(client));
        let grown = |name: &str| now[name] - before[name];
        let sum: i64 = COUNTED.iter().skip(1).map(|name| now[*name]).sum();
        if sum != now["accepted"] || now["overdue"] != 0 {
            self.violation(format!("counts do not add up: {now:?}"));
        }
        let count = |is: &dyn Fn(&&LoadTask) -> bool| tasks.iter().filter(is).count();
        let acknowledged = count(&|task| task.put == CallOutcome::Done);
        // Tasks without an answer may have been accepted; refused ones must not.
        let mut found = 0;
        for open in tasks.iter().filter(|task| task.put != CallOutcome::Done) {
            let (status, answer) = eventually(|| {
                let path = format!("/v1/shop/tasks/{}", open.key);
                client.request("GET", &path, "").filter(|(status, _)| *status < 500)
            });
            let exists = status == 200 || ended(&open.key);
            if exists && open.put == CallOutcome::NotDone {
                self.violation(format!("exists although refused: {open:?} {answer}"));
            }
            found += usize::from(exists);
        }
        let accepted = i64::try_from(acknowledged + found + recurring).unwrap();
        if grown("accepted") != accepted {
            let was = grown("accepted");
            self.violation(format!(
                "{acknowledged} + {found} + {recurring} tasks, {was} accepted: {now:?}"
            ));
        }
        let sure = count(&|task| matches!(task.cancel, Some((CallOutcome::Done, _))));
        let open = count(&|task| matches!(task.cancel, Some((CallOutcome::Unknown, _))));
        let cancelled = usize::try_from(grown("cancelled")).unwrap_or(usize::MAX);
        if !(sure..=sure + open).contains(&cancelled) {
            self.violation(format!("{sure} to {} cancelled, not {cancelled}", sure + open));
        }
    }

    /// Returns the keys of all dead letters. All must have the reason `unknown`.
    fn unknown_letters(&mut self, client: &BrokerClient) -> HashSet<String> {
        let (mut keys, mut cursor) = (HashSet::new(), String::new());
        loop {
            let path = format!("/v1/shop/dead?limit=1000{cursor}");
            let (_, page) = eventually(|| {
                client.request("GET", &path, "").filter(|(status, _)| *status == 200)
            });
            for letter in page["dead"].as_array().unwrap() {
                // An at-most-once fire of a series: see `FireFate::NotSent`.
                let most_once = letter["task"]["guarantee"] == "at_most_once";
                if most_once && was_not_sent(letter) {
                    continue;
                }
                if letter["reason"] != "unknown" {
                    self.violation(format!("a dead letter: {letter}"));
                }
                keys.insert(text(&letter["task"]["key"]));
            }
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return keys,
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
