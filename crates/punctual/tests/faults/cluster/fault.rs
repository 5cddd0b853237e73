//! The faults of a round: what is done to brokers, to Redis and to the links between them.

use crate::cluster::rounds::{BROKERS, FaultKind, FaultReport, TAKEN_MAX};
use punctual_test_support::cluster::ClusterBroker;
use punctual_test_support::network::LinkCut;
use punctual_test_support::{FakeClock, RandomNumbers, TestCluster, eventually, now_millis, pause};
use std::net::SocketAddr;
use std::time::Duration;

/// Longer than the lease, so that others take over.
const BEYOND_LEASE: Duration = Duration::from_millis(3_200);

/// What makes them.
pub(crate) struct FaultInjector<'a> {
    pub(crate) cluster: &'a mut TestCluster,
    pub(crate) random: &'a mut RandomNumbers,
}

impl FaultInjector<'_> {
    pub(crate) fn make(mut self, kind: FaultKind) -> FaultReport {
        let (leader, follower) = self.cluster.leader_and_follower();
        let any = usize::try_from(self.random.below(BROKERS.into())).unwrap();
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
            FaultKind::Hold => self.hold(any),
            FaultKind::Terminate => self.terminate(any),
            FaultKind::RollingRestart => self.restart_all(),
            FaultKind::RedisKilled => {
                let away = Duration::from_millis(200 + self.random.below(2_500));
                self.cluster.redis.crash(away);
                FaultReport::default()
            }
            FaultKind::RedisHeld => {
                let time = Duration::from_millis(1_000 + self.random.below(2_500));
                self.cluster.redis.hold(time);
                FaultReport::default()
            }
            FaultKind::RedisFull => self.fill_redis(),
            FaultKind::RedisFailover => {
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
            FaultKind::CutFromRedis => self.cut_from_redis(any, LinkCut::Both),
            FaultKind::CutOutgoing => self.cut_from_redis(any, LinkCut::Outgoing),
            FaultKind::CutIncoming => self.cut_from_redis(any, LinkCut::Incoming),
            FaultKind::CutFromBrokers => self.cut_from_brokers(any),
            FaultKind::ClockJump => self.jump(any),
        }
    }

    fn partitions_of(&self, index: usize) -> Vec<u64> {
        let address: SocketAddr = self.cluster.client(index).address;
        let held = eventually(|| self.cluster.owned(index)).by_broker.remove(&address);
        held.into_iter().flatten().collect()
    }

    fn kill(&mut self, index: usize) -> FaultReport {
        let partitions = self.partitions_of(index);
        self.cluster.brokers[index].kill();
        let killed_at = now_millis();
        pause(Duration::from_millis(u64::try_from(TAKEN_MAX).unwrap()));
        self.cluster.start_again(index);
        FaultReport { gone: Some((partitions, killed_at)), ..FaultReport::default() }
    }

    fn hold(&mut self, index: usize) -> FaultReport {
        let member = &self.cluster.brokers[index];
        member.signal("-STOP");
        pause(BEYOND_LEASE);
        member.signal("-CONT");
        FaultReport::default()
    }

    fn terminate(&mut self, index: usize) -> FaultReport {
        let mut report = FaultReport::default();
        let from = now_millis();
        let status = self.cluster.brokers[index].stop();
        if !status.success() {
            report.violations.push(format!("a broker that was told to stop ended with {status}"));
        }
        let stopped = now_millis();
        println!("  stopped {} ms after SIGTERM", stopped - from);
        pause(Duration::from_millis(300));
        self.cluster.start_again(index);
        self.cluster.wait_until_whole();
        report.handing = Some((from, now_millis()));
        report
    }

    fn restart_all(&mut self) -> FaultReport {
        let mut report = FaultReport::default();
        let from = now_millis();
        for index in 0..usize::from(BROKERS) {
            report.violations.extend(self.terminate(index).violations);
        }
        report.handing = Some((from, now_millis()));
        report
    }

    fn cut_from_redis(&mut self, index: usize, cut: LinkCut) -> FaultReport {
        let machine = u8::try_from(index).unwrap();
        let network = self.cluster.network.as_ref().unwrap();
        network.cut_from_ports(machine, &self.cluster.redis.ports(), cut);
        pause(BEYOND_LEASE);
        network.heal(machine);
        FaultReport::default()
    }

    /// Ownership is decided in the store: nothing moves.
    fn cut_from_brokers(&mut self, index: usize) -> FaultReport {
        let before = self.cluster.epochs();
        let network = self.cluster.network.as_ref().unwrap();
        let machine = u8::try_from(index).unwrap();
        network.cut_from_others(machine);
        pause(BEYOND_LEASE);
        network.heal(machine);
        self.nothing_moved(&before)
    }

    /// What is new is refused; what is there goes on, and leases are renewed.
    fn fill_redis(&mut self) -> FaultReport {
        let before = self.cluster.epochs();
        self.cluster.redis.fill_memory();
        pause(BEYOND_LEASE);
        self.cluster.redis.free_memory();
        self.nothing_moved(&before)
    }

    fn nothing_moved(&self, before: &[String]) -> FaultReport {
        let mut report = FaultReport::default();
        let after = self.cluster.epochs();
        if before != after {
            report.violations.push(format!("partitions moved: {before:?} {after:?}"));
        }
        report
    }

    /// The clock of one broker jumps ahead or back, and then is right again.
    fn jump(&mut self, index: usize) -> FaultReport {
        let mut report = FaultReport::default();
        let clock = FakeClock::new(self.cluster.logs(), "+0");
        let status = self.cluster.brokers[index].stop();
        if !status.success() {
            report.violations.push(format!("a broker that was told to stop ended with {status}"));
        }
        self.cluster.launch_with(index, &[], &clock.env());
        self.cluster.brokers[index].wait_until_ready();
        self.cluster.wait_until_whole();
        let jumps = ["+1", "-1", "+3600", "-3600", "+31536000", "-31536000"];
        let jump = jumps[usize::try_from(self.random.below(jumps.len() as u64)).unwrap()];
        clock.set(jump);
        pause(Duration::from_secs(3));
        clock.set("+0");
        pause(Duration::from_secs(1));
        let pid = self.cluster.brokers[index].pid();
        let status = self.cluster.brokers[index].stop();
        if !status.success() {
            report.violations.push(format!("a broker that was told to stop ended with {status}"));
        }
        FakeClock::forget(pid);
        self.cluster.start_again(index);
        report
    }
}
