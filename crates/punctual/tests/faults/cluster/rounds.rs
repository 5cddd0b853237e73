//! Rounds: one fault each, under load, and what came of it.

use crate::cluster::fault::FaultInjector;
use crate::cluster::faulted_load::FaultedLoad;
use crate::cluster::load::{LoadReceivers, LoadTask};
use punctual_test_support::{RandomNumbers, TestCluster};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

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
pub(crate) enum FaultKind {
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
    CutOutgoing,
    CutIncoming,
    CutFromBrokers,
    ClockJump,
    RollingRestart,
}

pub(crate) const KINDS: [FaultKind; 17] = [
    FaultKind::KillLeader,
    FaultKind::Hold,
    FaultKind::Terminate,
    FaultKind::RedisKilled,
    FaultKind::CutFromRedis,
    FaultKind::CutFromBrokers,
    FaultKind::RedisFailover,
    FaultKind::KillAndBack,
    FaultKind::RedisFull,
    FaultKind::KillFollower,
    FaultKind::CutIncoming,
    FaultKind::RedisHeld,
    FaultKind::KillAll,
    FaultKind::CutOutgoing,
    FaultKind::FailoverAndKill,
    FaultKind::ClockJump,
    FaultKind::RollingRestart,
];

/// All rounds of a cluster.
pub(crate) struct FaultRun {
    cluster: TestCluster,
    receivers: LoadReceivers,
    seed: u64,
    random: RandomNumbers,
    violations: Vec<String>,
    seen: RunTotals,
    /// As brokers counted last.
    metrics: HashMap<(SocketAddr, &'static str), f64>,
}

/// What was seen over all rounds.
#[derive(Debug, Default)]
struct RunTotals {
    rounds: BTreeMap<FaultKind, u64>,
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
pub(crate) struct FaultReport {
    /// A broker that was gone with these partitions from then on.
    pub(crate) gone: Option<(Vec<u64>, u128)>,
    /// While brokers handed over in good order.
    pub(crate) handing: Option<(u128, u128)>,
    pub(crate) violations: Vec<String>,
}

impl FaultRun {
    pub(crate) fn start(seed: u64) -> Self {
        let partitions = PARTITIONS.to_string();
        // With less, a failover loses what was acknowledged: that the judge sees it can be tried.
        let durability = std::env::var("PUNCTUAL_CLUSTER_DURABILITY");
        let durability = durability.as_deref().unwrap_or("replica");
        let flags = ["--partitions", &partitions, "--durability", durability];
        let cluster = TestCluster::on_machines(BROKERS, &flags);
        let middle = cluster.network.as_ref().unwrap().middle();
        let receivers = LoadReceivers::start(&cluster, middle, PARTITIONS);
        let (random, seen) = (RandomNumbers::new(seed), RunTotals::default());
        let (violations, metrics) = (Vec::new(), HashMap::new());
        Self { cluster, receivers, seed, random, violations, seen, metrics }
    }

    /// One fault under load.
    pub(crate) fn round(&mut self, number: u64, kind: FaultKind) {
        let Self { cluster, receivers, random, .. } = self;
        let mut faulted =
            FaultedLoad::of(cluster, receivers, (number, self.seed), random, |cluster, random| {
                FaultInjector { cluster, random }.make(kind)
            });
        let [yes, no, unknown] = faulted.outcome_of();
        let mut report = std::mem::take(&mut faulted.report);
        let FaultedLoad { asked, findings, took_ms, .. } = faulted;
        report.violations.extend(findings.violations.iter().cloned());
        let times = self.times(&mut report, &asked);
        let stale = self.grown("punctual_stale_epoch_rejected_total");
        let rewound = self.grown("punctual_store_rewound_total");
        self.seen.stale += stale;
        self.seen.rewound += rewound;
        if kind == FaultKind::RedisFull && no == 0 {
            report.violations.push("nobody was refused without memory".to_owned());
        }
        println!(
            "round {number} {kind:?}: {took_ms} ms, {yes} acknowledged, {no} refused, {unknown} not known; {:?}{times}; stale {stale}, rewound {rewound}",
            findings.counts,
        );
        for rough in findings.rough.iter().filter(|_| report.handing.is_some()) {
            println!("  moved in good order, but {rough}");
        }
        for wrong in &report.violations {
            println!("  WRONG {wrong}");
        }
        self.violations.extend(
            report.violations.into_iter().map(|wrong| format!("{number} {kind:?}: {wrong}")),
        );
        *self.seen.rounds.entry(kind).or_default() += 1;
        self.seen.asked += asked.len();
        for (what, count) in findings.counts {
            *self.seen.counts.entry(what).or_default() += count;
        }
    }

    /// Says what was seen; fails if something was wrong.
    pub(crate) fn end(mut self) {
        let RunTotals { rounds, asked, counts, taken, handed_over, stale, rewound } = &self.seen;
        println!("{rounds:?}\n{asked} tasks: {counts:?}");
        println!("after a kill all fired again within, ms: {taken:?} (wanted: {TAKEN_MAX})");
        println!("the latest of a hand-over in good order, ms: {handed_over:?}");
        println!("stale writes refused: {stale}; store found rewound: {rewound}");
        if rounds.values().sum::<u64>() >= ROUNDS_TO_BE_STALE && *stale == 0.0 {
            self.violations.push("no stale write was refused in all rounds".to_owned());
        }
        if !self.violations.is_empty() {
            let logs = self.cluster.keep_logs();
            panic!("{:#?}\nwhat the brokers said: {}", self.violations, logs.display());
        }
        if std::env::var_os("PUNCTUAL_CLUSTER_KEEP").is_some() {
            println!("what the brokers said: {}", self.cluster.keep_logs().display());
        }
    }

    /// How long it took, where that is promised.
    fn times(&mut self, report: &mut FaultReport, asked: &[LoadTask]) -> String {
        let deliveries = self.receivers.log.deliveries();
        let mut says = String::new();
        if let Some((partitions, gone_at)) = &report.gone {
            let again = partitions.iter().filter_map(|partition| {
                let theirs = asked.iter().filter(|asked| asked.partition == *partition);
                let got = theirs.filter_map(|asked| deliveries.get(&asked.key)).flatten();
                // What was on its way from the killed one when it was killed is not the successor's.
                let after = got.map(|delivery| delivery.at_millis).filter(|at| *at > gone_at + 100);
                after.min().map(|at| at - gone_at)
            });
            let taken = again.max().unwrap_or(0);
            says += &format!("; all fired again {taken} ms after the kill");
            self.seen.taken.push(taken);
            if taken > TAKEN_FAR_TOO_LATE {
                report.violations.push(format!("a partition stood still for {taken} ms"));
            }
        }
        if let Some((from, to)) = report.handing {
            let (before, lags) = (self.lags(asked, 0, from), self.lags(asked, from, to));
            let middle = |lags: &[(u128, &LoadTask)]| lags.get(lags.len() / 2).map_or(0, |it| it.0);
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
    fn lags<'a>(&self, asked: &'a [LoadTask], from: u128, to: u128) -> Vec<(u128, &'a LoadTask)> {
        let deliveries = self.receivers.log.deliveries();
        let mut lags: Vec<_> = asked
            .iter()
            .filter(|asked| asked.prompt)
            .filter_map(|asked| Some((deliveries.get(&asked.key)?.first()?, asked)))
            .filter(|(delivery, _)| (from..to).contains(&delivery.fire_at_millis.into()))
            .map(|(delivery, asked)| {
                (delivery.at_millis.saturating_sub(delivery.fire_at_millis.into()), asked)
            })
            .collect();
        lags.sort_unstable_by_key(|(lag, _)| *lag);
        lags
    }

    /// What was counted in this round. A broker that started again counts from zero.
    fn grown(&mut self, name: &'static str) -> f64 {
        let mut grown = 0.0;
        for client in self.cluster.clients() {
            let now = client.metric(name).unwrap_or_default();
            let last = self.metrics.insert((client.address, name), now).unwrap_or_default();
            grown += if now < last { now } else { now - last };
        }
        grown
    }
}
