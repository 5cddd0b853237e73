//! The judge: what callers were told against what receivers got. Every difference is a line.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use crate::again::{Verdict, was_not_sent};
use crate::field::eventually;
use crate::load::{Asked, House, Told};
use crate::member::Desk;
use crate::witness::Receipt;

/// What came of a round.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// What must never be.
    pub(crate) wrongs: Vec<String>,
    /// How often what happened.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// What may be when something fails, and should not when partitions move in good order.
    pub(crate) rough: Vec<String>,
}

/// What `/stats` counts.
pub(crate) type Stats = BTreeMap<&'static str, i64>;

const COUNTED: [&str; 7] =
    ["accepted", "scheduled", "firing", "paused", "done", "dead", "cancelled"];

pub(crate) fn stats(desk: &Desk) -> Option<Stats> {
    let (status, stats) = desk.ask("GET", "/v1/shop/stats", "")?;
    let overdue = stats["oldest_overdue_ms"].as_i64();
    let counts = COUNTED.map(|name| (name, stats[name].as_i64().unwrap_or(-1)));
    let all = counts.into_iter().chain([("overdue", overdue.unwrap_or(-1))]);
    (status == 200).then(|| all.collect())
}

/// Waits until everything has ended, as long as something does; otherwise says what stays.
pub(crate) fn all_ended(desk: &Desk, looks_max: u32) -> Result<Stats, Stats> {
    let mut last = Stats::new();
    let mut looks = 0;
    while looks < looks_max {
        let now = eventually(|| stats(desk));
        if now["scheduled"] == 0 && now["firing"] == 0 {
            return Ok(now);
        }
        looks = if now["done"] == last.get("done").copied().unwrap_or(-1) { looks + 1 } else { 0 };
        last = now;
        crate::witness::pause(std::time::Duration::from_millis(200));
    }
    Err(last)
}

impl Judgement {
    fn wrong(&mut self, what: String) {
        self.wrongs.push(what);
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Judges a round that has come to rest, in which so many tasks were accepted besides those that were asked for here.
    pub(crate) fn of(
        asked: &[Asked],
        house: &House,
        desk: &Desk,
        before: &Stats,
        besides: usize,
    ) -> Self {
        let mut judgement = Self::default();
        let receipts = house.ledger.receipts();
        let unknown = judgement.unknown_letters(desk);
        for asked in asked {
            let got = receipts.get(&asked.key).map_or([].as_slice(), Vec::as_slice);
            judgement.times(asked, got);
            judgement.ids(asked, got, house);
            judgement.number(asked, got, &unknown);
        }
        // A task that has ended cannot be asked for by its name.
        let ended = |key: &str| receipts.contains_key(key) || unknown.contains(key);
        judgement.add_up(asked, &ended, desk, before, besides);
        judgement
    }

    /// What was found of tasks that go on.
    pub(crate) fn add(&mut self, verdict: Verdict) {
        self.wrongs.extend(verdict.wrongs);
        self.counts.extend(verdict.counts);
    }

    /// Nobody early, and nothing after a cancel or at a time that was put off.
    fn times(&mut self, asked: &Asked, got: &[Receipt]) {
        let touched = asked.touch.filter(|(_, told, _)| *told != Told::No);
        for receipt in got {
            let due = receipt.fire_at_millis;
            if receipt.at_millis < due.into() {
                self.wrong(format!("early: {asked:?} {receipt:?}"));
            }
            if due != asked.due && touched.is_none_or(|(until, ..)| until != due) {
                self.wrong(format!("due at a time that nobody asked for: {asked:?} {receipt:?}"));
            }
            if let Some((_, Told::Yes, at)) = asked.touch
                && due == asked.due
                && receipt.at_millis > at
            {
                self.wrong(format!("fired although it was put off: {asked:?} {receipt:?}"));
            }
            if let Some((Told::Yes, at)) = asked.cancel
                && receipt.at_millis > at
            {
                self.wrong(format!("fired although cancelled: {asked:?} {receipt:?}"));
            }
            if asked.put == Told::No {
                self.wrong(format!("fired although refused: {asked:?} {receipt:?}"));
            }
        }
    }

    /// One fire has one id, and one effect behind a table of ids.
    fn ids(&mut self, asked: &Asked, got: &[Receipt], house: &House) {
        let mut ids: HashMap<u64, HashSet<&str>> = HashMap::new();
        for receipt in got {
            ids.entry(receipt.fire_at_millis).or_default().insert(&receipt.fire_id);
        }
        if ids.values().any(|ids| ids.len() > 1) {
            self.wrong(format!("several ids of one fire: {asked:?} {got:?}"));
        }
        // Receivers of webhooks have no table.
        let effects = ids.values().flatten().map(|id| house.workers.effects.of(id));
        if effects.clone().any(|effects| effects > 1) {
            self.wrong(format!("several effects: {asked:?} {got:?}"));
        }
    }

    fn number(&mut self, asked: &Asked, got: &[Receipt], unknown: &HashSet<String>) {
        let cancel = asked.cancel.map(|(told, _)| told);
        let may_be_cancelled = matches!(cancel, Some(Told::Yes | Told::Unknown));
        let must_come = asked.put == Told::Yes && !may_be_cancelled;
        let most_once = asked.guarantee == "at_most_once";
        let is_unknown = unknown.contains(&asked.key);
        if is_unknown && !most_once {
            self.wrong(format!("unknown, but may be sent again: {asked:?} {got:?}"));
        }
        let what = match (most_once, got.len()) {
            (true, 0) if is_unknown => "most_never_unknown",
            (_, 0) if must_come => {
                self.wrong(format!("acknowledged and never received: {asked:?}"));
                "lost"
            }
            (_, 0) if cancel == Some(Told::Yes) => "cancelled",
            (_, 0) if asked.put == Told::No => "refused",
            (_, 0) => "not_known_and_never",
            (true, 1) if is_unknown => "most_once_unknown",
            (true, 1) => "most_once",
            (true, _) => {
                self.wrong(format!("at most once, and again: {asked:?} {got:?}"));
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
        asked: &[Asked],
        ended: &dyn Fn(&str) -> bool,
        desk: &Desk,
        before: &Stats,
        besides: usize,
    ) {
        let now = eventually(|| stats(desk));
        let grown = |name: &str| now[name] - before[name];
        let sum: i64 = COUNTED.iter().skip(1).map(|name| now[*name]).sum();
        if sum != now["accepted"] || now["overdue"] != 0 {
            self.wrong(format!("counts do not add up: {now:?}"));
        }
        let count = |is: &dyn Fn(&&Asked) -> bool| asked.iter().filter(is).count();
        let acknowledged = count(&|asked| asked.put == Told::Yes);
        // Those without an answer that came through all the same; and none that was refused.
        let mut came = 0;
        for open in asked.iter().filter(|asked| asked.put != Told::Yes) {
            let (status, task) = eventually(|| {
                let path = format!("/v1/shop/tasks/{}", open.key);
                desk.ask("GET", &path, "").filter(|(status, _)| *status < 500)
            });
            let is_there = status == 200 || ended(&open.key);
            if is_there && open.put == Told::No {
                self.wrong(format!("there although refused: {open:?} {task}"));
            }
            came += usize::from(is_there);
        }
        let accepted = i64::try_from(acknowledged + came + besides).unwrap();
        if grown("accepted") != accepted {
            let was = grown("accepted");
            self.wrong(format!(
                "{acknowledged} + {came} + {besides} came, {was} accepted: {now:?}"
            ));
        }
        let sure = count(&|asked| matches!(asked.cancel, Some((Told::Yes, _))));
        let perhaps = count(&|asked| matches!(asked.cancel, Some((Told::Unknown, _))));
        let cancelled = usize::try_from(grown("cancelled")).unwrap_or(usize::MAX);
        if !(sure..=sure + perhaps).contains(&cancelled) {
            self.wrong(format!("{sure} to {} cancelled, not {cancelled}", sure + perhaps));
        }
    }

    /// The keys of all dead letters: nobody knows what came of those, and of no others there should be any.
    fn unknown_letters(&mut self, desk: &Desk) -> HashSet<String> {
        let (mut keys, mut cursor) = (HashSet::new(), String::new());
        loop {
            let path = format!("/v1/shop/dead?limit=1000{cursor}");
            let (_, page) =
                eventually(|| desk.ask("GET", &path, "").filter(|(status, _)| *status == 200));
            for letter in page["dead"].as_array().unwrap() {
                // At most once of a series that had gone on: see `again::Fate`.
                let most_once = letter["task"]["guarantee"] == "at_most_once";
                if most_once && was_not_sent(letter) {
                    continue;
                }
                if letter["reason"] != "unknown" {
                    self.wrong(format!("a dead letter: {letter}"));
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
