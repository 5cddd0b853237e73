//! The stores that fail: a pair of Redis servers, a pair of PostgreSQL servers, and a MariaDB.

use std::net::IpAddr;
use std::time::Duration;

use punctual_test_support::cluster::SharedServer;
use punctual_test_support::ports::free_port;
use punctual_test_support::postgres::PostgresPair;
use punctual_test_support::redis::RedisPair;
use punctual_test_support::{MariadbServer, pause};

use crate::cluster::rounds::FaultKind;

/// A store that a test can put out of order.
pub(crate) trait FaultyStore: SharedServer + Sized {
    /// As `/v1/whoami` names it.
    const NAME: &str;
    /// The durability with which no fault loses what was acknowledged.
    const DURABILITY: &str;
    /// Faults of brokers, and those that the store can have.
    const KINDS: &[FaultKind];

    fn start(address: IpAddr) -> Self;

    /// The ports of its servers.
    fn ports(&self) -> Vec<u16>;

    /// Kills the server that takes writes, and starts it again after `downtime`.
    fn crash(&mut self, downtime: Duration);

    /// Suspends the server that takes writes.
    fn suspend_for(&self, time: Duration);

    /// Cuts the replica off, kills the server that takes writes, calls `between` and makes the
    /// replica take writes.
    fn fail_over(&mut self, _cut: Duration, _between: impl FnOnce()) {
        panic!("{} has no replica here", Self::NAME);
    }

    /// Makes the store refuse new tasks for lack of memory for `time`.
    fn fill_for(&self, _time: Duration) {
        panic!("{} has no limit of memory", Self::NAME);
    }
}

impl FaultyStore for RedisPair {
    const NAME: &str = "redis";
    const DURABILITY: &str = "replica";
    const KINDS: &[FaultKind] = &FaultKind::ALL;

    fn start(address: IpAddr) -> Self {
        Self::start(address, [free_port(), free_port()])
    }

    fn ports(&self) -> Vec<u16> {
        self.ports().to_vec()
    }

    fn crash(&mut self, downtime: Duration) {
        self.crash(downtime);
    }

    fn suspend_for(&self, time: Duration) {
        self.suspend_for(time);
    }

    fn fail_over(&mut self, cut: Duration, between: impl FnOnce()) {
        self.fail_over(cut, between);
    }

    fn fill_for(&self, time: Duration) {
        self.fill_memory();
        pause(time);
        self.free_memory();
    }
}

impl FaultyStore for PostgresPair {
    const NAME: &str = "postgres";
    const DURABILITY: &str = "replica";
    const KINDS: &[FaultKind] = &[
        FaultKind::StoreKilled,
        FaultKind::Suspend,
        FaultKind::StoreFailover,
        FaultKind::CutFromStore,
        FaultKind::StoreSuspended,
        FaultKind::KillLeader,
        FaultKind::Terminate,
        FaultKind::FailoverAndKill,
        FaultKind::CutIncoming,
        FaultKind::KillAndBack,
        FaultKind::CutOutgoing,
        FaultKind::KillFollower,
        FaultKind::CutFromBrokers,
        FaultKind::KillAll,
        FaultKind::ClockJump,
        FaultKind::RollingRestart,
    ];

    fn start(address: IpAddr) -> Self {
        Self::start(address)
    }

    fn ports(&self) -> Vec<u16> {
        self.ports().to_vec()
    }

    fn crash(&mut self, downtime: Duration) {
        self.crash(downtime);
    }

    fn suspend_for(&self, time: Duration) {
        self.suspend_for(time);
    }

    fn fail_over(&mut self, cut: Duration, between: impl FnOnce()) {
        self.fail_over(cut, between);
    }
}

impl FaultyStore for MariadbServer {
    const NAME: &str = "mysql";
    const DURABILITY: &str = "fsync";
    const KINDS: &[FaultKind] = &[
        FaultKind::StoreKilled,
        FaultKind::Suspend,
        FaultKind::CutFromStore,
        FaultKind::StoreSuspended,
        FaultKind::KillLeader,
        FaultKind::CutIncoming,
        FaultKind::KillAll,
        FaultKind::CutOutgoing,
        FaultKind::Terminate,
        FaultKind::KillAndBack,
        FaultKind::CutFromBrokers,
    ];

    fn start(address: IpAddr) -> Self {
        let server = Self::start_at(address, free_port(), &[]);
        server.database("tasks");
        server
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.port]
    }

    fn crash(&mut self, downtime: Duration) {
        self.kill();
        pause(downtime);
        self.start_again();
    }

    fn suspend_for(&self, time: Duration) {
        self.suspend();
        pause(time);
        self.resume();
    }
}
