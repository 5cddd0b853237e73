//! The faults of a round, injected into brokers, their store and the links between them.

use std::net::SocketAddr;
use std::time::Duration;

use punctual_test_support::cluster::ClusterBroker;
use punctual_test_support::network::LinkCut;
use punctual_test_support::{FakeClock, RandomNumbers, TestCluster, eventually, now_millis, pause};

use crate::cluster::rounds::{BROKERS, FaultKind, FaultReport, TAKE_OVER_MAX_MS};
use crate::cluster::store::FaultyStore;

/// Longer than the lease, so that other brokers take over.
const BEYOND_LEASE: Duration = Duration::from_millis(3_200);

/// Injects faults.
pub(crate) struct FaultInjector<'a, S: FaultyStore> {
    pub(crate) cluster: &'a mut TestCluster<S>,
    pub(crate) random: &'a mut RandomNumbers,
}

impl<S: FaultyStore> FaultInjector<'_, S> {
    pub(crate) fn inject(mut self, kind: FaultKind) -> FaultReport {
        let (leader, follower) = self.cluster.leader_and_follower();
        let any = self.random.index(BROKERS.into());
        match kind {
            FaultKind::KillLeader => self.kill(leader),
            FaultKind::KillFollower => self.kill(follower),
            FaultKind::KillAndBack => {
                self.cluster.brokers[any].kill();
                self.cluster.start_again(any);
                FaultReport::default()
            }
            FaultKind::KillAll => {
                self.cluster.brokers.iter_mut().for_each(ClusterBroker::kill);
                for index in 0..usize::from(BROKERS) {
                    self.cluster.launch(index);
                }
                FaultReport::default()
            }
            FaultKind::Suspend => self.suspend(any),
            FaultKind::Terminate => self.terminate(any),
            FaultKind::RollingRestart => self.restart_all(),
            FaultKind::StoreKilled => {
                let away = Duration::from_millis(200 + self.random.below(2_500));
                self.cluster.redis.crash(away);
                FaultReport::default()
            }
            FaultKind::StoreSuspended => {
                let time = Duration::from_millis(1_000 + self.random.below(2_500));
                self.cluster.redis.suspend_for(time);
                FaultReport::default()
            }
            FaultKind::StoreFull => self.fill_store(),
            FaultKind::StoreFailover => {
                let cut = Duration::from_millis(500 + self.random.below(1_000));
                self.cluster.redis.fail_over(cut, || {});
                FaultReport::default()
            }
            FaultKind::FailoverAndKill => {
                let cut = Duration::from_millis(500 + self.random.below(1_000));
                let TestCluster { redis, brokers, .. } = &mut self.cluster;
                redis.fail_over(cut, || brokers[any].kill());
                self.cluster.start_again(any);
                FaultReport::default()
            }
            FaultKind::CutFromStore => self.cut_from_store(any, LinkCut::Both),
            FaultKind::CutOutgoing => self.cut_from_store(any, LinkCut::Outgoing),
            FaultKind::CutIncoming => self.cut_from_store(any, LinkCut::Incoming),
            FaultKind::CutFromBrokers => self.cut_from_brokers(any),
            FaultKind::ClockJump => self.jump_clock(any),
        }
    }

    fn partitions_of(&self, index: usize) -> Vec<u64> {
        let address: SocketAddr = self.cluster.client(index).address;
        let owned = eventually(|| self.cluster.owned(index)).by_broker.remove(&address);
        owned.into_iter().flatten().collect()
    }

    fn kill(&mut self, index: usize) -> FaultReport {
        let partitions = self.partitions_of(index);
        self.cluster.brokers[index].kill();
        let killed_at = now_millis();
        pause(Duration::from_millis(u64::try_from(TAKE_OVER_MAX_MS).unwrap()));
        self.cluster.start_again(index);
        FaultReport { killed: Some((partitions, killed_at)), ..FaultReport::default() }
    }

    fn suspend(&mut self, index: usize) -> FaultReport {
        let broker = &self.cluster.brokers[index];
        broker.signal("-STOP");
        pause(BEYOND_LEASE);
        broker.signal("-CONT");
        FaultReport::default()
    }

    fn terminate(&mut self, index: usize) -> FaultReport {
        let mut report = FaultReport::default();
        let from = now_millis();
        let status = self.cluster.brokers[index].stop();
        if !status.success() {
            report.violations.push(format!("a broker ended with {status} after SIGTERM"));
        }
        let stopped = now_millis();
        println!("  stopped {} ms after SIGTERM", stopped - from);
        pause(Duration::from_millis(300));
        self.cluster.start_again(index);
        self.cluster.wait_until_whole();
        report.hand_over = Some((from, now_millis()));
        report
    }

    fn restart_all(&mut self) -> FaultReport {
        let mut report = FaultReport::default();
        let from = now_millis();
        for index in 0..usize::from(BROKERS) {
            report.violations.extend(self.terminate(index).violations);
        }
        report.hand_over = Some((from, now_millis()));
        report
    }

    fn cut_from_store(&mut self, index: usize, cut: LinkCut) -> FaultReport {
        let machine = u8::try_from(index).unwrap();
        let network = self.cluster.network.as_ref().unwrap();
        network.cut_from_ports(machine, &self.cluster.redis.ports(), cut);
        pause(BEYOND_LEASE);
        network.heal(machine);
        FaultReport::default()
    }

    /// Cuts the links to other brokers. The store decides ownership, so no partition moves.
    fn cut_from_brokers(&mut self, index: usize) -> FaultReport {
        let before = self.cluster.epochs();
        let network = self.cluster.network.as_ref().unwrap();
        let machine = u8::try_from(index).unwrap();
        network.cut_from_others(machine);
        pause(BEYOND_LEASE);
        network.heal(machine);
        self.check_nothing_moved(&before)
    }

    /// Takes all memory of the store. New tasks are refused; leases are still renewed, so no
    /// partition moves.
    fn fill_store(&mut self) -> FaultReport {
        let before = self.cluster.epochs();
        self.cluster.redis.fill_for(BEYOND_LEASE);
        self.check_nothing_moved(&before)
    }

    fn check_nothing_moved(&self, before: &[String]) -> FaultReport {
        let mut report = FaultReport::default();
        let after = self.cluster.epochs();
        if before != after {
            report.violations.push(format!("partitions moved: {before:?} {after:?}"));
        }
        report
    }

    /// Lets the clock of one broker jump ahead or back, and then sets it right.
    fn jump_clock(&mut self, index: usize) -> FaultReport {
        let mut report = FaultReport::default();
        let clock = FakeClock::new(self.cluster.logs(), "+0");
        let status = self.cluster.brokers[index].stop();
        if !status.success() {
            report.violations.push(format!("a broker ended with {status} after SIGTERM"));
        }
        self.cluster.launch_with(index, &[], &clock.env());
        self.cluster.brokers[index].wait_until_ready();
        self.cluster.wait_until_whole();
        let jumps = ["+1", "-1", "+3600", "-3600", "+31536000", "-31536000"];
        let jump = jumps[self.random.index(jumps.len())];
        clock.set(jump);
        pause(Duration::from_secs(3));
        clock.set("+0");
        pause(Duration::from_secs(1));
        let pid = self.cluster.brokers[index].pid();
        let status = self.cluster.brokers[index].stop();
        if !status.success() {
            report.violations.push(format!("a broker ended with {status} after SIGTERM"));
        }
        FakeClock::forget(pid);
        self.cluster.start_again(index);
        report
    }
}
