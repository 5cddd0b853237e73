//! Rounds: one fault each, under load, and what came of it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::fault::Faults;
use crate::load::{Asked, Dice, House};
use crate::stage::Stage;
use crate::trial::Trial;

pub(crate) const BROKERS: u8 = 3;
const PARTITIONS: u16 = 12;
/// How long a partition may stay without its broker after a kill: the lease, and what it takes to notice and to load.
pub(crate) const TAKEN_MAX: u128 = 3_500;

/// A machine that does much else takes longer; this is too long on any.
const TAKEN_FAR_TOO_LATE: u128 = 2 * TAKEN_MAX;
/// Over so many rounds at least one write of an earlier owner is refused: else the faults are too soft.
const ROUNDS_TO_BE_STALE: u64 = 50;

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    KillLeader,
    KillFollower,
    /// It is back before its leases are over.
    KillAndBack,
    KillAll,
    Hold,
    Terminate,
    RedisKilled,
    RedisHeld,
    RedisFull,
    RedisFailover,
    /// What one broker alone knew is gone too.
    FailoverAndKill,
    CutFromRedis,
    CutWords,
    CutAnswers,
    CutFromBrokers,
    ClockJump,
    RollingRestart,
}

pub(crate) const KINDS: [Kind; 17] = [
    Kind::KillLeader,
    Kind::Hold,
    Kind::Terminate,
    Kind::RedisKilled,
    Kind::CutFromRedis,
    Kind::CutFromBrokers,
    Kind::RedisFailover,
    Kind::KillAndBack,
    Kind::RedisFull,
    Kind::KillFollower,
    Kind::CutAnswers,
    Kind::RedisHeld,
    Kind::KillAll,
    Kind::CutWords,
    Kind::FailoverAndKill,
    Kind::ClockJump,
    Kind::RollingRestart,
];

/// All rounds of a cluster.
pub(crate) struct Run {
    stage: Stage,
    house: House,
    seed: u64,
    dice: Dice,
    wrongs: Vec<String>,
    seen: Seen,
    /// As brokers counted last.
    metrics: HashMap<(SocketAddr, &'static str), f64>,
}

/// What was seen over all rounds.
#[derive(Debug, Default)]
struct Seen {
    rounds: BTreeMap<Kind, u64>,
    asked: usize,
    counts: BTreeMap<&'static str, u64>,
    /// Milliseconds from a kill until the last of the partitions of the killed one fired again.
    taken: Vec<u128>,
    /// How late, in milliseconds, the latest was that became due while brokers handed over in good order.
    handed_over: Vec<u128>,
    stale: f64,
    rewound: f64,
}

/// What a fault has to say.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// A broker that was gone with these partitions from then on.
    pub(crate) gone: Option<(Vec<u64>, u128)>,
    /// While brokers handed over in good order.
    pub(crate) handing: Option<(u128, u128)>,
    pub(crate) wrongs: Vec<String>,
}

impl Run {
    pub(crate) fn start(seed: u64) -> Self {
        let partitions = PARTITIONS.to_string();
        // With less, a failover loses what was acknowledged: that the judge sees it can be tried.
        let durability = std::env::var("PUNCTUAL_CLUSTER_DURABILITY");
        let durability = durability.as_deref().unwrap_or("replica");
        let flags = ["--partitions", &partitions, "--durability", durability];
        let stage = Stage::on_machines(BROKERS, &flags);
        let middle = stage.net.as_ref().unwrap().middle();
        let house = House::open(&stage, middle, PARTITIONS);
        let (dice, seen) = (Dice::new(seed), Seen::default());
        let (wrongs, metrics) = (Vec::new(), HashMap::new());
        Self { stage, house, seed, dice, wrongs, seen, metrics }
    }

    /// One fault under load.
    pub(crate) fn round(&mut self, number: u64, kind: Kind) {
        let Self { stage, house, dice, .. } = self;
        let mut trial = Trial::of(stage, house, (number, self.seed), dice, |stage, dice| {
            Faults { stage, dice }.make(kind)
        });
        let [yes, no, unknown] = trial.told();
        let mut story = std::mem::take(&mut trial.story);
        let Trial { asked, judgement, took_ms, .. } = trial;
        story.wrongs.extend(judgement.wrongs.iter().cloned());
        let times = self.times(&mut story, &asked);
        let stale = self.grown("punctual_stale_epoch_rejected_total");
        let rewound = self.grown("punctual_store_rewound_total");
        self.seen.stale += stale;
        self.seen.rewound += rewound;
        if kind == Kind::RedisFull && no == 0 {
            story.wrongs.push("nobody was refused without memory".to_owned());
        }
        println!(
            "round {number} {kind:?}: {took_ms} ms, {yes} acknowledged, {no} refused, {unknown} not known; {:?}{times}; stale {stale}, rewound {rewound}",
            judgement.counts,
        );
        for rough in judgement.rough.iter().filter(|_| story.handing.is_some()) {
            println!("  moved in good order, but {rough}");
        }
        for wrong in &story.wrongs {
            println!("  WRONG {wrong}");
        }
        self.wrongs
            .extend(story.wrongs.into_iter().map(|wrong| format!("{number} {kind:?}: {wrong}")));
        *self.seen.rounds.entry(kind).or_default() += 1;
        self.seen.asked += asked.len();
        for (what, count) in judgement.counts {
            *self.seen.counts.entry(what).or_default() += count;
        }
    }

    /// Says what was seen; fails if something was wrong.
    pub(crate) fn end(mut self) {
        let Seen { rounds, asked, counts, taken, handed_over, stale, rewound } = &self.seen;
        println!("{rounds:?}\n{asked} tasks: {counts:?}");
        println!("after a kill all fired again within, ms: {taken:?} (wanted: {TAKEN_MAX})");
        println!("the latest of a hand-over in good order, ms: {handed_over:?}");
        println!("stale writes refused: {stale}; store found rewound: {rewound}");
        if rounds.values().sum::<u64>() >= ROUNDS_TO_BE_STALE && *stale == 0.0 {
            self.wrongs.push("no stale write was refused in all rounds".to_owned());
        }
        if !self.wrongs.is_empty() {
            let logs = self.stage.keep_logs();
            panic!("{:#?}\nwhat the brokers said: {}", self.wrongs, logs.display());
        }
        if std::env::var_os("PUNCTUAL_CLUSTER_KEEP").is_some() {
            println!("what the brokers said: {}", self.stage.keep_logs().display());
        }
    }

    /// How long it took, where that is promised.
    fn times(&mut self, story: &mut Story, asked: &[Asked]) -> String {
        let receipts = self.house.ledger.receipts();
        let mut says = String::new();
        if let Some((partitions, gone_at)) = &story.gone {
            let again = partitions.iter().filter_map(|partition| {
                let theirs = asked.iter().filter(|asked| asked.partition == *partition);
                let got = theirs.filter_map(|asked| receipts.get(&asked.key)).flatten();
                // What was on its way from the killed one when it was killed is not the successor's.
                let after = got.map(|receipt| receipt.at_millis).filter(|at| *at > gone_at + 100);
                after.min().map(|at| at - gone_at)
            });
            let taken = again.max().unwrap_or(0);
            says += &format!("; all fired again {taken} ms after the kill");
            self.seen.taken.push(taken);
            if taken > TAKEN_FAR_TOO_LATE {
                story.wrongs.push(format!("a partition stood still for {taken} ms"));
            }
        }
        if let Some((from, to)) = story.handing {
            let (before, lags) = (self.lags(asked, 0, from), self.lags(asked, from, to));
            let middle = |lags: &[(u128, &Asked)]| lags.get(lags.len() / 2).map_or(0, |it| it.0);
            let (half_before, half) = (middle(&before), middle(&lags));
            let most_before = before.last().map_or(0, |it| it.0);
            let latest = lags.last().map_or(0, |it| it.0);
            says += &format!(
                "; due while handing over {}, half within {half} ms, the latest {latest} ms (before: {half_before}, {most_before})",
                lags.len(),
            );
            if let Some((_, asked)) = lags.last() {
                says += &format!(" of p{} at {}", asked.partition, asked.due);
            }
            self.seen.handed_over.push(latest);
        }
        says
    }

    /// How late prompt receivers were called first, of what was due in a span, sorted.
    fn lags<'a>(&self, asked: &'a [Asked], from: u128, to: u128) -> Vec<(u128, &'a Asked)> {
        let receipts = self.house.ledger.receipts();
        let mut lags: Vec<_> = asked
            .iter()
            .filter(|asked| asked.prompt)
            .filter_map(|asked| Some((receipts.get(&asked.key)?.first()?, asked)))
            .filter(|(receipt, _)| (from..to).contains(&receipt.fire_at_millis.into()))
            .map(|(receipt, asked)| {
                (receipt.at_millis.saturating_sub(receipt.fire_at_millis.into()), asked)
            })
            .collect();
        lags.sort_unstable_by_key(|(lag, _)| *lag);
        lags
    }

    /// What was counted in this round. A broker that started again counts from zero.
    fn grown(&mut self, name: &'static str) -> f64 {
        let mut grown = 0.0;
        for desk in self.stage.desks() {
            let now = desk.metric(name).unwrap_or_default();
            let last = self.metrics.insert((desk.address, name), now).unwrap_or_default();
            grown += if now < last { now } else { now - last };
        }
        grown
    }
}
