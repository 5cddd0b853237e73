//! The judge: what callers were told against what receivers got. Every difference is a line.

use crate::cluster::load::{CallOutcome, LoadReceivers, LoadTask};
use crate::recurring_checks::{Findings, was_not_sent};
use punctual_test_support::{BrokerClient, ReceivedDelivery, eventually, pause};
use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

/// What came of a round.
#[derive(Debug, Default)]
pub(crate) struct RoundFindings {
    /// What must never be.
    pub(crate) violations: Vec<String>,
    /// How often what happened.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// What may be when something fails, and should not when partitions move in good order.
    pub(crate) rough: Vec<String>,
}

/// What `/stats` counts.
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

/// Waits until everything has ended, as long as something does; otherwise says what stays.
pub(crate) fn all_ended(client: &BrokerClient, looks_max: u32) -> Result<StatCounts, StatCounts> {
    let mut last = StatCounts::new();
    let mut looks = 0;
    while looks < looks_max {
        let now = eventually(|| stats(client));
        if now["scheduled"] == 0 && now["firing"] == 0 {
            return Ok(now);
        }
        looks = if now["done"] == last.get("done").copied().unwrap_or(-1) { looks + 1 } else { 0 };
        last = now;
        pause(std::time::Duration::from_millis(200));
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

    /// Judges a round that has come to rest, in which so many tasks were accepted besides those that were asked for here.
    pub(crate) fn of(
        asked: &[LoadTask],
        receivers: &LoadReceivers,
        client: &BrokerClient,
        before: &StatCounts,
        besides: usize,
    ) -> Self {
        let mut findings = Self::default();
        let deliveries = receivers.log.deliveries();
        let unknown = findings.unknown_letters(client);
        for asked in asked {
            let got = deliveries.get(&asked.key).map_or([].as_slice(), Vec::as_slice);
            findings.times(asked, got);
            findings.ids(asked, got, receivers);
            findings.number(asked, got, &unknown);
        }
        // A task that has ended cannot be asked for by its name.
        let ended = |key: &str| deliveries.contains_key(key) || unknown.contains(key);
        findings.add_up(asked, &ended, client, before, besides);
        findings
    }

    /// What was found of tasks that go on.
    pub(crate) fn add(&mut self, findings: Findings) {
        self.violations.extend(findings.violations);
        self.counts.extend(findings.counts);
    }

    /// Nobody early, and nothing after a cancel or at a time that was put off.
    fn times(&mut self, asked: &LoadTask, got: &[ReceivedDelivery]) {
        let touched = asked.touch.filter(|(_, told, _)| *told != CallOutcome::NotDone);
        for delivery in got {
            let due = delivery.fire_at_millis;
            if delivery.at_millis < due.into() {
                self.violation(format!("early: {asked:?} {delivery:?}"));
            }
            if due != asked.due && touched.is_none_or(|(until, ..)| until != due) {
                self.violation(format!(
                    "due at a time that nobody asked for: {asked:?} {delivery:?}"
                ));
            }
            if let Some((_, CallOutcome::Done, at)) = asked.touch
                && due == asked.due
                && delivery.at_millis > at
            {
                self.violation(format!("fired although it was put off: {asked:?} {delivery:?}"));
            }
            if let Some((CallOutcome::Done, at)) = asked.cancel
                && delivery.at_millis > at
            {
                self.violation(format!("fired although cancelled: {asked:?} {delivery:?}"));
            }
            if asked.put == CallOutcome::NotDone {
                self.violation(format!("fired although refused: {asked:?} {delivery:?}"));
            }
        }
    }

    /// One fire has one id, and one effect behind a table of ids.
    fn ids(&mut self, asked: &LoadTask, got: &[ReceivedDelivery], receivers: &LoadReceivers) {
        let mut ids: HashMap<u64, HashSet<&str>> = HashMap::new();
        for delivery in got {
            ids.entry(delivery.fire_at_millis).or_default().insert(&delivery.fire_id);
        }
        if ids.values().any(|ids| ids.len() > 1) {
            self.violation(format!("several ids of one fire: {asked:?} {got:?}"));
        }
        // Receivers of webhooks have no table.
        let effects = ids.values().flatten().map(|id| receivers.workers.effects.of(id));
        if effects.clone().any(|effects| effects > 1) {
            self.violation(format!("several effects: {asked:?} {got:?}"));
        }
    }

    fn number(&mut self, asked: &LoadTask, got: &[ReceivedDelivery], unknown: &HashSet<String>) {
        let cancel = asked.cancel.map(|(told, _)| told);
        let may_be_cancelled = matches!(cancel, Some(CallOutcome::Done | CallOutcome::Unknown));
        let must_come = asked.put == CallOutcome::Done && !may_be_cancelled;
        let most_once = asked.guarantee == "at_most_once";
        let is_unknown = unknown.contains(&asked.key);
        if is_unknown && !most_once {
            self.violation(format!("unknown, but may be sent again: {asked:?} {got:?}"));
        }
        let what = match (most_once, got.len()) {
            (true, 0) if is_unknown => "most_never_unknown",
            (_, 0) if must_come => {
                self.violation(format!("acknowledged and never received: {asked:?}"));
                "lost"
            }
            (_, 0) if cancel == Some(CallOutcome::Done) => "cancelled",
            (_, 0) if asked.put == CallOutcome::NotDone => "refused",
            (_, 0) => "not_known_and_never",
            (true, 1) if is_unknown => "most_once_unknown",
            (true, 1) => "most_once",
            (true, _) => {
                self.violation(format!("at most once, and again: {asked:?} {got:?}"));
                "most_twice"
            }
            (false, 1) => "once",
            // A worker did not settle it in time.
            (false, _) if asked.key.ends_with("lost") => "again_lost",
            (false, _) => "again",
        };
        if matches!(what, "again" | "most_never_unknown") && !asked.key.ends_with("lost") {
            self.rough.push(format!("{what}: {asked:?} {got:?}"));
        }
        self.count(what);
    }

    /// Everything accepted has ended, and every end is counted once.
    fn add_up(
        &mut self,
        asked: &[LoadTask],
        ended: &dyn Fn(&str) -> bool,
        client: &BrokerClient,
        before: &StatCounts,
        besides: usize,
    ) {
        let now = eventually(|| stats(client));
        let grown = |name: &str| now[name] - before[name];
        let sum: i64 = COUNTED.iter().skip(1).map(|name| now[*name]).sum();
        if sum != now["accepted"] || now["overdue"] != 0 {
            self.violation(format!("counts do not add up: {now:?}"));
        }
        let count = |is: &dyn Fn(&&LoadTask) -> bool| asked.iter().filter(is).count();
        let acknowledged = count(&|asked| asked.put == CallOutcome::Done);
        // Those without an answer that came through all the same; and none that was refused.
        let mut came = 0;
        for open in asked.iter().filter(|asked| asked.put != CallOutcome::Done) {
            let (status, task) = eventually(|| {
                let path = format!("/v1/shop/tasks/{}", open.key);
                client.request("GET", &path, "").filter(|(status, _)| *status < 500)
            });
            let is_there = status == 200 || ended(&open.key);
            if is_there && open.put == CallOutcome::NotDone {
                self.violation(format!("there although refused: {open:?} {task}"));
            }
            came += usize::from(is_there);
        }
        let accepted = i64::try_from(acknowledged + came + besides).unwrap();
        if grown("accepted") != accepted {
            let was = grown("accepted");
            self.violation(format!(
                "{acknowledged} + {came} + {besides} came, {was} accepted: {now:?}"
            ));
        }
        let sure = count(&|asked| matches!(asked.cancel, Some((CallOutcome::Done, _))));
        let perhaps = count(&|asked| matches!(asked.cancel, Some((CallOutcome::Unknown, _))));
        let cancelled = usize::try_from(grown("cancelled")).unwrap_or(usize::MAX);
        if !(sure..=sure + perhaps).contains(&cancelled) {
            self.violation(format!("{sure} to {} cancelled, not {cancelled}", sure + perhaps));
        }
    }

    /// The keys of all dead letters: nobody knows what came of those, and of no others there should be any.
    fn unknown_letters(&mut self, client: &BrokerClient) -> HashSet<String> {
        let (mut keys, mut cursor) = (HashSet::new(), String::new());
        loop {
            let path = format!("/v1/shop/dead?limit=1000{cursor}");
            let (_, page) = eventually(|| {
                client.request("GET", &path, "").filter(|(status, _)| *status == 200)
            });
            for letter in page["dead"].as_array().unwrap() {
                // At most once of a series that had gone on: see `again::FireFate`.
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
