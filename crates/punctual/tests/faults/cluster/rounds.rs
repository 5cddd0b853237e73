//! The rounds of a run: one fault each under load, with its result, and a summary of all.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use punctual_test_support::network::TestNetwork;
use punctual_test_support::{RandomNumbers, TestCluster};

use crate::cluster::fault::FaultInjector;
use crate::cluster::faulted_load::FaultedLoad;
use crate::cluster::load::{LoadReceivers, LoadTask};
use crate::cluster::store::FaultyStore;

pub(crate) const BROKERS: u8 = 3;
const PARTITIONS: u16 = 12;
/// How long a partition may have no owner after a kill, in milliseconds: the lease, and the time to
/// notice and to load.
pub(crate) const TAKE_OVER_MAX_MS: u128 = 3_500;

/// A busy machine takes longer than that; more than this is a failure.
const TAKE_OVER_FAILED_MS: u128 = 2 * TAKE_OVER_MAX_MS;
/// In this many rounds of several kinds at least one write of an earlier owner must be refused.
/// Otherwise the faults test too little.
const STALE_WRITE_ROUNDS: u64 = 50;

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    KillLeader,
    KillFollower,
    /// The broker is back before its leases end.
    KillAndBack,
    KillAll,
    Suspend,
    Terminate,
    StoreKilled,
    StoreSuspended,
    StoreFull,
    StoreFailover,
    /// The memory of one broker is lost with the primary.
    FailoverAndKill,
    CutFromStore,
    CutOutgoing,
    CutIncoming,
    CutFromBrokers,
    ClockJump,
    RollingRestart,
}

impl FaultKind {
    /// All kinds, in the order of rounds.
    pub(crate) const ALL: [Self; 17] = [
        Self::KillLeader,
        Self::Suspend,
        Self::Terminate,
        Self::StoreKilled,
        Self::CutFromStore,
        Self::CutFromBrokers,
        Self::StoreFailover,
        Self::KillAndBack,
        Self::StoreFull,
        Self::KillFollower,
        Self::CutIncoming,
        Self::StoreSuspended,
        Self::KillAll,
        Self::CutOutgoing,
        Self::FailoverAndKill,
        Self::ClockJump,
        Self::RollingRestart,
    ];
}

/// A cluster and all rounds on it.
pub(crate) struct FaultRun<S: FaultyStore> {
    cluster: TestCluster<S>,
    receivers: LoadReceivers,
    seed: u64,
    random: RandomNumbers,
    violations: Vec<String>,
    totals: RunTotals,
    /// The last value of each counter, by broker.
    metrics: HashMap<(SocketAddr, &'static str), f64>,
}

/// Totals of all rounds.
#[derive(Debug, Default)]
struct RunTotals {
    rounds: BTreeMap<FaultKind, u64>,
    tasks: usize,
    counts: BTreeMap<&'static str, u64>,
    /// Milliseconds from each kill until all partitions of the killed broker had fired again.
    take_overs_ms: Vec<u128>,
    /// The largest lag of a task due during each orderly hand-over, in milliseconds.
    hand_over_lags_ms: Vec<u128>,
    stale: f64,
    rewound: f64,
}

/// What a fault reports.
#[derive(Debug, Default)]
pub(crate) struct FaultReport {
    /// The partitions of a killed broker, and when it was killed.
    pub(crate) killed: Option<(Vec<u64>, u128)>,
    /// Begin and end of an orderly hand-over.
    pub(crate) hand_over: Option<(u128, u128)>,
    pub(crate) violations: Vec<String>,
}

impl<S: FaultyStore> FaultRun<S> {
    pub(crate) fn start(seed: u64) -> Self {
        let partitions = PARTITIONS.to_string();
        // With a lower durability a failover loses acknowledged tasks, and the checks must fail.
        let durability = std::env::var("PUNCTUAL_CLUSTER_DURABILITY");
        let durability = durability.as_deref().unwrap_or(S::DURABILITY);
        let flags = ["--partitions", &partitions, "--durability", durability];
        let network = TestNetwork::make(BROKERS);
        let middle = network.middle();
        let cluster = TestCluster::over_machines(S::start(middle), BROKERS, &flags, network);
        let (_, answer) = cluster.client(0).request("GET", "/v1/whoami", "").expect("an answer");
        assert_eq!(answer["store"], S::NAME);
        let receivers = LoadReceivers::start(&cluster, middle, PARTITIONS);
        let (random, totals) = (RandomNumbers::new(seed), RunTotals::default());
        let (violations, metrics) = (Vec::new(), HashMap::new());
        Self { cluster, receivers, seed, random, violations, totals, metrics }
    }

    /// Runs one fault under load.
    pub(crate) fn round(&mut self, number: u64, kind: FaultKind) {
        let Self { cluster, receivers, random, .. } = self;
        let mut faulted =
            FaultedLoad::run(cluster, receivers, (number, self.seed), random, |cluster, random| {
                FaultInjector { cluster, random }.inject(kind)
            });
        let [acknowledged, refused, open] = faulted.outcomes();
        let mut report = std::mem::take(&mut faulted.report);
        let FaultedLoad { tasks, findings, took_ms, .. } = faulted;
        report.violations.extend(findings.violations.iter().cloned());
        let times = self.check_times(&mut report, &tasks);
        let stale = self.growth("punctual_stale_epoch_rejected_total");
        let rewound = self.growth("punctual_store_rewound_total");
        self.totals.stale += stale;
        self.totals.rewound += rewound;
        if kind == FaultKind::StoreFull && refused == 0 {
            report.violations.push("no task was refused without memory".to_owned());
        }
        println!(
            "round {number} {kind:?}: {took_ms} ms, {acknowledged} acknowledged, \
             {refused} refused, {open} open; {:?}{times}; stale {stale}, rewound {rewound}",
            findings.counts,
        );
        for blemish in findings.blemishes.iter().filter(|_| report.hand_over.is_some()) {
            println!("  orderly hand-over, but {blemish}");
        }
        for violation in &report.violations {
            println!("  VIOLATION {violation}");
        }
        self.violations.extend(
            report
                .violations
                .into_iter()
                .map(|violation| format!("{number} {kind:?}: {violation}")),
        );
        *self.totals.rounds.entry(kind).or_default() += 1;
        self.totals.tasks += tasks.len();
        for (what, count) in findings.counts {
            *self.totals.counts.entry(what).or_default() += count;
        }
    }

    /// Prints the totals. Panics if there was a violation.
    pub(crate) fn end(mut self) {
        let RunTotals { rounds, tasks, counts, take_overs_ms, hand_over_lags_ms, stale, rewound } =
            &self.totals;
        println!("{rounds:?}\n{tasks} tasks: {counts:?}");
        println!("take-over after a kill, ms: {take_overs_ms:?} (wanted: {TAKE_OVER_MAX_MS})");
        println!("largest lag in an orderly hand-over, ms: {hand_over_lags_ms:?}");
        println!("stale writes refused: {stale}; store rewound: {rewound}");
        let mixed = rounds.len() > 1;
        if mixed && rounds.values().sum::<u64>() >= STALE_WRITE_ROUNDS && *stale == 0.0 {
            self.violations.push("no stale write was refused in all rounds".to_owned());
        }
        if !self.violations.is_empty() {
            let logs = self.cluster.keep_logs();
            panic!("{:#?}\nlogs of the brokers: {}", self.violations, logs.display());
        }
        if std::env::var_os("PUNCTUAL_CLUSTER_KEEP").is_some() {
            println!("logs of the brokers: {}", self.cluster.keep_logs().display());
        }
    }

    /// Measures take-overs and hand-overs. Returns a text for the line of the round.
    fn check_times(&mut self, report: &mut FaultReport, tasks: &[LoadTask]) -> String {
        let deliveries = self.receivers.log.deliveries();
        let mut text = String::new();
        if let Some((partitions, killed_at)) = &report.killed {
            let take_overs = partitions.iter().filter_map(|partition| {
                let its_tasks = tasks.iter().filter(|task| task.partition == *partition);
                let got = its_tasks.filter_map(|task| deliveries.get(&task.key)).flatten();
                // The first 100 ms may have deliveries that the killed broker had sent.
                let after =
                    got.map(|delivery| delivery.at_millis).filter(|at| *at > killed_at + 100);
                after.min().map(|at| at - killed_at)
            });
            let slowest = take_overs.max().unwrap_or(0);
            text += &format!("; all partitions fired again {slowest} ms after the kill");
            self.totals.take_overs_ms.push(slowest);
            if slowest > TAKE_OVER_FAILED_MS {
                report.violations.push(format!("a partition had no owner for {slowest} ms"));
            }
        }
        if let Some((from, to)) = report.hand_over {
            let (before, lags) = (self.lags(tasks, 0, from), self.lags(tasks, from, to));
            let median =
                |lags: &[(u128, &LoadTask)]| lags.get(lags.len() / 2).map_or(0, |(lag, _)| *lag);
            let (median_before, median) = (median(&before), median(&lags));
            let max_before = before.last().map_or(0, |(lag, _)| *lag);
            let max = lags.last().map_or(0, |(lag, _)| *lag);
            text += &format!(
                "; {} due during the hand-over, lag median {median} ms, max {max} ms \
                 (before: {median_before}, {max_before})",
                lags.len(),
            );
            if let Some((_, task)) = lags.last() {
                text += &format!(" of p{} at {}", task.partition, task.due);
            }
            self.totals.hand_over_lags_ms.push(max);
        }
        text
    }

    /// Returns the sorted lags of tasks that were due in a span and call prompt receivers. Only
    /// the first delivery counts.
    fn lags<'a>(&self, tasks: &'a [LoadTask], from: u128, to: u128) -> Vec<(u128, &'a LoadTask)> {
        let deliveries = self.receivers.log.deliveries();
        let mut lags: Vec<_> = tasks
            .iter()
            .filter(|task| task.prompt)
            .filter_map(|task| Some((deliveries.get(&task.key)?.first()?, task)))
            .filter(|(delivery, _)| (from..to).contains(&delivery.fire_at_millis.into()))
            .map(|(delivery, task)| {
                (delivery.at_millis.saturating_sub(delivery.fire_at_millis.into()), task)
            })
            .collect();
        lags.sort_unstable_by_key(|(lag, _)| *lag);
        lags
    }

    /// Returns how much a counter has grown since the last round. A restarted broker counts from
    /// zero.
    fn growth(&mut self, name: &'static str) -> f64 {
        let mut growth = 0.0;
        for client in self.cluster.clients() {
            let now = client.metric(name).unwrap_or_default();
            let last = self.metrics.insert((client.address, name), now).unwrap_or_default();
            growth += if now < last { now } else { now - last };
        }
        growth
    }
}
