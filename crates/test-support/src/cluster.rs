//! Brokers that share a store: all of them real processes, which end with the test.
//!
//! The brokers run on loopback, or each on a machine of its own ([`crate::network`]), so that links
//! can be cut. The store is a pair of Redis servers by default; it may be any [`SharedServer`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use punctual_bench::SlowNameServer;
use serde_json::Value;
use tempfile::TempDir;

use crate::broker::{punctual_binary, send_signal};
use crate::client::BrokerClient;
use crate::mariadb::MariadbServer;
use crate::network::TestNetwork;
use crate::ports::free_port;
use crate::postgres::{PostgresPair, PostgresServer};
use crate::redis::{RedisCluster, RedisPair, RedisServer};
use crate::wait::eventually;

/// The lease of the brokers: how long the partitions of a killed broker have no owner.
pub const LEASE: &str = "2s";
/// The port of all brokers that have machines of their own.
const PORT: u16 = 7400;
/// The timeout of a call: longer than any timeout inside a broker.
const CALL_MAX: Duration = Duration::from_secs(8);

/// Brokers and the Redis or database that they share.
pub struct TestCluster<R: SharedServer = RedisPair> {
    pub brokers: Vec<ClusterBroker>,
    pub redis: R,
    /// Flags of all brokers.
    pub flags: Vec<String>,
    pub network: Option<TestNetwork>,
    /// The name server of brokers that are started from now on, if not the machine's.
    pub names: Option<SlowNameServer>,
    dir: Option<TempDir>,
}

/// The servers of the store that a cluster shares.
pub trait SharedServer {
    /// The flag that names the store.
    const FLAG: &str = "--redis";

    /// Returns the value of the flag.
    fn urls(&self) -> String;
}

impl SharedServer for PostgresServer {
    const FLAG: &str = "--postgres";

    fn urls(&self) -> String {
        self.url("postgres")
    }
}

impl SharedServer for PostgresPair {
    const FLAG: &str = "--postgres";

    fn urls(&self) -> String {
        self.urls()
    }
}

/// The brokers use the database `tasks`, which a test creates.
impl SharedServer for MariadbServer {
    const FLAG: &str = "--mysql";

    fn urls(&self) -> String {
        self.url("tasks")
    }
}

impl SharedServer for RedisPair {
    fn urls(&self) -> String {
        self.urls()
    }
}

impl SharedServer for RedisServer {
    fn urls(&self) -> String {
        self.url()
    }
}

impl SharedServer for RedisCluster {
    fn urls(&self) -> String {
        self.urls().join(",")
    }
}

/// Which broker owns which partitions, by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPartitions {
    pub leader: Option<SocketAddr>,
    pub by_broker: BTreeMap<SocketAddr, BTreeSet<u64>>,
}

/// One broker of a cluster, running or not. It keeps its address and its log over restarts.
pub struct ClusterBroker {
    pub client: BrokerClient,
    log: PathBuf,
    child: Option<Child>,
}

impl ClusterBroker {
    fn new(address: SocketAddr, log: PathBuf) -> Self {
        Self { client: BrokerClient::new(address, CALL_MAX), log, child: None }
    }

    /// Runs a command whose last word is the binary, without waiting for anything.
    fn launch(&mut self, mut command: Command) {
        assert!(self.child.is_none(), "the broker runs");
        let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("ip and setpriv are needed"));
    }

    /// Waits until the broker reports that it is ready.
    pub fn wait_until_ready(&self) {
        let ready = || self.client.request("GET", "/readyz", "");
        eventually(|| ready().filter(|(status, _)| *status == 200));
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the broker runs").id()
    }

    /// Sends a signal: `-TERM`, `-STOP`, `-CONT`.
    pub fn signal(&self, name: &str) {
        send_signal(self.pid(), name);
    }

    /// Kills the broker with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the broker with SIGTERM and waits for its end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("-TERM");
        self.end()
    }

    /// Waits until the process ends.
    pub fn end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the broker runs");
        child.wait().unwrap()
    }

    /// Returns everything that the broker has logged, over all restarts.
    pub fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for ClusterBroker {
    fn drop(&mut self) {
        self.kill();
    }
}

impl TestCluster {
    /// Starts brokers on loopback, and waits until all partitions have an owner.
    pub fn on_loopback(brokers: u8, flags: &[&str]) -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let redis = RedisPair::start(loopback, [free_port(), free_port()]);
        Self::over(redis, brokers, flags, None)
    }
}

impl<R: SharedServer> TestCluster<R> {
    /// Starts each broker on a machine of its own. The servers are in the middle of the network.
    pub fn over_machines(redis: R, brokers: u8, flags: &[&str], network: TestNetwork) -> Self {
        let flags = [&["--insecure", "--allow-private-targets"], flags].concat();
        Self::over(redis, brokers, &flags, Some(network))
    }

    /// Starts brokers on servers that run already.
    pub fn over(redis: R, count: u8, flags: &[&str], network: Option<TestNetwork>) -> Self {
        let dir = tempfile::Builder::new().prefix("punctual-cluster-").tempdir().unwrap();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (brokers, names) = (Vec::new(), None);
        let mut cluster = Self { brokers, redis, flags, network, names, dir: Some(dir) };
        for _ in 0..count {
            cluster.add();
        }
        for index in 0..cluster.brokers.len() {
            cluster.launch(index);
        }
        if count > 0 {
            cluster.wait_until_whole();
        }
        cluster
    }

    /// Adds a broker without starting it. Returns its index.
    pub fn add(&mut self) -> usize {
        let index = self.brokers.len();
        let number = u8::try_from(index).unwrap();
        let address = match &self.network {
            Some(network) => SocketAddr::new(network.address(number), PORT),
            None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free_port()),
        };
        let log = self.logs().join(format!("broker-{index}.log"));
        self.brokers.push(ClusterBroker::new(address, log));
        index
    }

    /// The folder of the brokers' logs.
    pub fn logs(&self) -> &Path {
        self.dir.as_ref().expect("kept until the end").path()
    }

    /// Keeps the brokers' logs after the test. Returns their folder.
    pub fn keep_logs(&mut self) -> PathBuf {
        self.dir.take().expect("kept until the end").keep()
    }

    /// Starts a broker without waiting for it.
    pub fn launch(&mut self, index: usize) {
        self.launch_with(index, &[], &[]);
    }

    /// Starts a broker with more flags and environment variables, without waiting for it.
    pub fn launch_with(&mut self, index: usize, flags: &[&str], env: &[(&str, &Path)]) {
        let mut command = match (&self.network, &self.names) {
            (Some(network), _) => network.command(u8::try_from(index).unwrap()),
            (None, Some(names)) => names.command(),
            (None, None) => Command::new("env"),
        };
        let listen = self.brokers[index].client.address.to_string();
        command
            // The broker must not outlive the test, in whatever way the test ends.
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg("env")
            .args(env.iter().map(|(name, value)| format!("{name}={}", value.display())))
            .arg(punctual_binary())
            .args(["serve", "--listen", &listen, "--log-format", "json", "--lease", LEASE])
            .args([R::FLAG, &self.redis.urls()])
            .args(&self.flags)
            .args(flags);
        self.brokers[index].launch(command);
    }

    /// Starts a broker and waits until it is ready.
    pub fn start_again(&mut self, index: usize) {
        self.launch(index);
        self.brokers[index].wait_until_ready();
    }

    pub fn client(&self, index: usize) -> &BrokerClient {
        &self.brokers[index].client
    }

    pub fn clients(&self) -> Vec<BrokerClient> {
        self.brokers.iter().map(|broker| broker.client.clone()).collect()
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.brokers.iter().map(|broker| broker.client.address).collect()
    }

    /// Returns the owners of all partitions, as one broker reports them.
    pub fn owned(&self, index: usize) -> Option<OwnedPartitions> {
        let (status, topology) = self.client(index).request("GET", "/v1/topology", "")?;
        (status == 200).then(|| OwnedPartitions::of(&topology))
    }

    /// Returns the epochs of the partitions of each broker, as the brokers report them.
    pub fn epochs(&self) -> Vec<String> {
        let pages = self.brokers.iter().map(|broker| {
            let (_, page) = eventually(|| broker.client.request("GET", "/metrics", ""));
            let lines = page.as_str().unwrap_or_default().lines();
            let mut lines: Vec<&str> =
                lines.filter(|line| line.starts_with("punctual_partition_epoch")).collect();
            lines.sort_unstable();
            lines.join("\n")
        });
        pages.collect()
    }

    /// Returns the leader and another running broker.
    pub fn leader_and_follower(&self) -> (usize, usize) {
        let leader = eventually(|| {
            let leader = self.owned(0)?.leader?;
            self.brokers.iter().position(|broker| broker.client.address == leader)
        });
        let running = |index: &usize| self.brokers[*index].is_running() && *index != leader;
        (leader, (0..self.brokers.len()).find(running).expect("several brokers run"))
    }

    /// Waits until all running brokers agree that each partition has one owner, and that each
    /// broker has its share.
    pub fn wait_until_whole(&self) -> OwnedPartitions {
        let running: Vec<usize> =
            (0..self.brokers.len()).filter(|index| self.brokers[*index].is_running()).collect();
        let whole = || {
            let reports: Option<Vec<OwnedPartitions>> =
                running.iter().map(|index| self.owned(*index)).collect();
            let reports = reports?;
            let first = reports.first()?;
            let shares = || first.by_broker.values().map(BTreeSet::len);
            let even = shares().max()? - shares().min()? <= 1;
            let agreed = reports.iter().all(|report| report == first);
            let whole = agreed
                && first.leader.is_some()
                && first.by_broker.len() == running.len()
                && even
                && first.count() == self.partitions();
            whole.then(|| first.clone())
        };
        eventually(whole)
    }

    pub fn partitions(&self) -> usize {
        let mut flags = self.flags.iter().skip_while(|flag| *flag != "--partitions");
        flags.nth(1).map_or(16, |count| count.parse().unwrap())
    }
}

impl<R: SharedServer> Drop for TestCluster<R> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            println!("logs of the brokers: {}", dir.keep().display());
        }
    }
}

impl OwnedPartitions {
    fn of(topology: &Value) -> Self {
        let address = |text: &Value| text.as_str().and_then(|text| text.parse().ok());
        let brokers = topology["brokers"].as_array().expect("a list of brokers");
        let owned = brokers.iter().map(|broker| {
            let partitions = broker["partitions"].as_array().expect("a list of partitions");
            let partitions = partitions.iter().filter_map(Value::as_u64).collect();
            (address(&broker["address"]).expect("an address"), partitions)
        });
        Self { leader: address(&topology["leader"]), by_broker: owned.collect() }
    }

    /// Counts the partitions that have exactly one owner.
    fn count(&self) -> usize {
        let all: Vec<u64> = self.by_broker.values().flatten().copied().collect();
        let once = all.iter().filter(|one| all.iter().filter(|other| other == one).count() == 1);
        once.count()
    }
}
