//! A fault under load: starts the load, injects the fault, waits until the cluster has recovered
//! and everything has ended, and checks the records. The same for all kinds of Redis.

use std::time::Duration;

use punctual_test_support::cluster::SharedServer;
use punctual_test_support::{RandomNumbers, TestCluster, eventually, now_millis, pause};

use crate::cluster::checks::{RoundFindings, all_ended, stats};
use crate::cluster::load::{CallOutcome, ClusterLoad, LoadReceivers, LoadTask};
use crate::cluster::recurring::RecurringLoad;

const OWNED_METRIC: &str = "punctual_partitions_held";

/// The result of one round.
pub(crate) struct FaultedLoad<T> {
    pub(crate) tasks: Vec<LoadTask>,
    pub(crate) findings: RoundFindings,
    /// What the fault itself reports.
    pub(crate) report: T,
    pub(crate) took_ms: u128,
}

impl<T> FaultedLoad<T> {
    pub(crate) fn run<R: SharedServer>(
        cluster: &mut TestCluster<R>,
        receivers: &LoadReceivers,
        (number, seed): (u64, u64),
        random: &mut RandomNumbers,
        fault: impl FnOnce(&mut TestCluster<R>, &mut RandomNumbers) -> T,
    ) -> Self {
        let begun = now_millis();
        cluster.wait_until_whole();
        let before = eventually(|| stats(cluster.client(0)));
        let recurring = RecurringLoad::start(cluster, receivers, number, seed);
        let load = ClusterLoad::start(cluster, receivers, number, seed);
        pause(Duration::from_millis(1_200 + random.below(800)));
        let report = fault(cluster, random);
        // Some tasks are scheduled after the fault.
        pause(Duration::from_millis(500));
        let (tasks, recurring) = (load.end(), recurring.end());
        cluster.wait_until_whole();
        let client = cluster.client(random.index(cluster.brokers.len()));
        let recovered_at = recurring.pause(receivers, client);
        let ended = all_ended(client, 50);
        let mut findings = RoundFindings::of(&tasks, receivers, client, &before, recurring.count());
        match recovered_at {
            Ok(recovered_at) => findings.add(recurring.check(receivers, client, recovered_at)),
            Err(violation) => findings.violations.push(violation),
        }
        if let Err(stats) = ended {
            findings.violations.push(format!("tasks do not end: {stats:?}"));
        }
        let owned: f64 =
            cluster.clients().iter().filter_map(|client| client.metric(OWNED_METRIC)).sum();
        let partitions = cluster.partitions();
        #[allow(clippy::cast_precision_loss, reason = "the count is small")]
        if (owned - partitions as f64).abs() > 0.5 {
            findings.violations.push(format!("{owned} owners of {partitions} partitions"));
        }
        Self { tasks, findings, report, took_ms: now_millis() - begun }
    }

    /// Counts the tasks that were acknowledged, refused, and without a known outcome.
    pub(crate) fn outcomes(&self) -> [usize; 3] {
        [CallOutcome::Done, CallOutcome::NotDone, CallOutcome::Unknown]
            .map(|outcome| self.tasks.iter().filter(|task| task.put == outcome).count())
    }
}
