//! A faulted: a fault under load, after which the cluster comes to rest and is judged. The same for every cluster.

use crate::cluster::checks::{RoundFindings, all_ended, stats};
use crate::cluster::load::{CallOutcome, ClusterLoad, LoadReceivers, LoadTask};
use crate::cluster::recurring::RecurringLoad;
use punctual_test_support::cluster::SharedRedis;
use punctual_test_support::{RandomNumbers, TestCluster, eventually, now_millis, pause};
use std::time::Duration;

const HELD: &str = "punctual_partitions_held";

/// What came of it.
pub(crate) struct FaultedLoad<T> {
    pub(crate) asked: Vec<LoadTask>,
    pub(crate) findings: RoundFindings,
    /// What the fault has to say.
    pub(crate) report: T,
    pub(crate) took_ms: u128,
}

impl<T> FaultedLoad<T> {
    pub(crate) fn of<R: SharedRedis>(
        cluster: &mut TestCluster<R>,
        receivers: &LoadReceivers,
        (number, seed): (u64, u64),
        random: &mut RandomNumbers,
        fault: impl FnOnce(&mut TestCluster<R>, &mut RandomNumbers) -> T,
    ) -> Self {
        let begun = now_millis();
        cluster.wait_until_whole();
        let before = eventually(|| stats(cluster.client(0)));
        let lasting = RecurringLoad::start(cluster, receivers, number, seed);
        let load = ClusterLoad::start(cluster, receivers, number, seed);
        pause(Duration::from_millis(1_200 + random.below(800)));
        let report = fault(cluster, random);
        // Some are asked for when all is well again.
        pause(Duration::from_millis(500));
        let (asked, lasting) = (load.end(), lasting.end());
        cluster.wait_until_whole();
        let client =
            cluster.client(usize::try_from(random.below(cluster.brokers.len() as u64)).unwrap());
        let well_at = lasting.pause(receivers, client);
        let ended = all_ended(client, 50);
        let mut findings = RoundFindings::of(&asked, receivers, client, &before, lasting.count());
        match well_at {
            Ok(well_at) => findings.add(lasting.judge(receivers, client, well_at)),
            Err(stands) => findings.violations.push(stands),
        }
        if let Err(stats) = ended {
            findings.violations.push(format!("it does not come to rest: {stats:?}"));
        }
        let held: f64 = cluster.clients().iter().filter_map(|client| client.metric(HELD)).sum();
        let partitions = cluster.partitions();
        #[allow(clippy::cast_precision_loss, reason = "there are few")]
        if (held - partitions as f64).abs() > 0.5 {
            findings.violations.push(format!("{held} owners of {partitions} partitions"));
        }
        Self { asked, findings, report, took_ms: now_millis() - begun }
    }

    /// How many were acknowledged, refused, and not known.
    pub(crate) fn outcome_of(&self) -> [usize; 3] {
        [CallOutcome::Done, CallOutcome::NotDone, CallOutcome::Unknown]
            .map(|told| self.asked.iter().filter(|asked| asked.put == told).count())
    }
}
