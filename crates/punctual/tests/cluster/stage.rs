//! The stage: brokers that share a Redis with a replica, or another, all of them real processes, which end with the test.
//!
//! On loopback, or each broker on a machine of its own (`net`), so that links can be cut.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::field::eventually;
use crate::member::{Desk, Member};
use crate::names::Names;
use crate::net::Net;
use crate::redis::Pair;

/// How long a partition waits for a broker that has vanished.
pub(crate) const LEASE: &str = "2s";
/// On machines of their own all brokers have the same port.
const PORT: u16 = 7400;

pub(crate) struct Stage<R: Servers = Pair> {
    pub(crate) members: Vec<Member>,
    pub(crate) redis: R,
    /// Flags that all of them have.
    pub(crate) flags: Vec<String>,
    pub(crate) net: Option<Net>,
    /// Whom brokers that are started from now on ask for names, if not the machine's.
    pub(crate) names: Option<Names>,
    dir: Option<TempDir>,
}

/// What brokers share.
pub(crate) trait Servers {
    /// As the flag takes them.
    fn urls(&self) -> String;
}

impl Servers for Pair {
    fn urls(&self) -> String {
        self.urls()
    }
}

/// Who holds what, by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) leader: Option<SocketAddr>,
    pub(crate) by_broker: BTreeMap<SocketAddr, BTreeSet<u64>>,
}

impl Stage {
    /// Brokers on loopback.
    pub(crate) fn on_loopback(brokers: u8, flags: &[&str]) -> Self {
        Self::on_pair(brokers, flags, None)
    }

    /// Each broker on a machine of its own.
    pub(crate) fn on_machines(brokers: u8, flags: &[&str]) -> Self {
        let flags = [&["--insecure", "--allow-private-targets"], flags].concat();
        Self::on_pair(brokers, &flags, Some(Net::make(brokers)))
    }

    fn on_pair(brokers: u8, flags: &[&str], net: Option<Net>) -> Self {
        let middle = net.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), Net::middle);
        let redis = Pair::start(middle, [free_port(), free_port()]);
        Self::over(redis, brokers, flags, net)
    }
}

impl<R: Servers> Stage<R> {
    /// Brokers that share what is there already.
    pub(crate) fn over(redis: R, brokers: u8, flags: &[&str], net: Option<Net>) -> Self {
        let dir = tempfile::Builder::new().prefix("punctual-cluster-").tempdir().unwrap();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let members = Vec::new();
        let mut stage = Self { members, redis, flags, net, names: None, dir: Some(dir) };
        for _ in 0..brokers {
            stage.add();
        }
        for index in 0..stage.members.len() {
            stage.launch(index);
        }
        if brokers > 0 {
            stage.wait_until_whole();
        }
        stage
    }

    /// A place for one more broker, which is not started.
    pub(crate) fn add(&mut self) -> usize {
        let index = self.members.len();
        let number = u8::try_from(index).unwrap();
        let address = match &self.net {
            Some(net) => SocketAddr::new(net.address(number), PORT),
            None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free_port()),
        };
        let log = self.logs().join(format!("broker-{index}.log"));
        self.members.push(Member::new(address, log));
        index
    }

    /// Where what brokers say is kept.
    pub(crate) fn logs(&self) -> &Path {
        self.dir.as_ref().expect("it is there until the end").path()
    }

    /// What brokers said outlives the test.
    pub(crate) fn keep_logs(&mut self) -> PathBuf {
        self.dir.take().expect("it is there until the end").keep()
    }

    /// Starts a broker, and does not wait.
    pub(crate) fn launch(&mut self, index: usize) {
        self.launch_with(index, &[], &[]);
    }

    /// Starts a broker with more flags, and more in its environment.
    pub(crate) fn launch_with(&mut self, index: usize, flags: &[&str], env: &[(&str, &Path)]) {
        let mut command = match (&self.net, &self.names) {
            (Some(net), _) => net.command(u8::try_from(index).unwrap()),
            (None, Some(names)) => names.command(),
            (None, None) => Command::new("env"),
        };
        let listen = self.members[index].desk.address.to_string();
        command
            // It does not outlive the test, however that ends.
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg("env")
            .args(env.iter().map(|(name, value)| format!("{name}={}", value.display())))
            .arg(env!("CARGO_BIN_EXE_punctual"))
            .args(["serve", "--listen", &listen, "--log-format", "json", "--lease", LEASE])
            .args(["--redis", &self.redis.urls()])
            .args(&self.flags)
            .args(flags);
        self.members[index].launch(command);
    }

    /// Starts a broker, and waits until it can do its work.
    pub(crate) fn start_again(&mut self, index: usize) {
        self.launch(index);
        self.members[index].wait_until_ready();
    }

    pub(crate) fn desk(&self, index: usize) -> &Desk {
        &self.members[index].desk
    }

    pub(crate) fn desks(&self) -> Vec<Desk> {
        self.members.iter().map(|member| member.desk.clone()).collect()
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.desk.address).collect()
    }

    /// Who holds what, as a broker says.
    pub(crate) fn held(&self, index: usize) -> Option<Held> {
        let (status, topology) = self.desk(index).ask("GET", "/v1/topology", "")?;
        (status == 200).then(|| Held::of(&topology))
    }

    /// Under which epochs each broker holds what, as it says.
    pub(crate) fn epochs(&self) -> Vec<String> {
        let pages = self.members.iter().map(|member| {
            let (_, page) = eventually(|| member.desk.ask("GET", "/metrics", ""));
            let lines = page.as_str().unwrap_or_default().lines();
            let mut lines: Vec<&str> =
                lines.filter(|line| line.starts_with("punctual_partition_epoch")).collect();
            lines.sort_unstable();
            lines.join("\n")
        });
        pages.collect()
    }

    /// Which broker leads, and some broker that does not.
    pub(crate) fn leader_and_follower(&self) -> (usize, usize) {
        let leader = eventually(|| {
            let leader = self.held(0)?.leader?;
            self.members.iter().position(|member| member.desk.address == leader)
        });
        let running = |index: &usize| self.members[*index].is_running() && *index != leader;
        (leader, (0..self.members.len()).find(running).expect("there are several"))
    }

    /// Waits until all brokers that run agree that each partition has one owner, and each has its share.
    pub(crate) fn wait_until_whole(&self) -> Held {
        let running: Vec<usize> =
            (0..self.members.len()).filter(|index| self.members[*index].is_running()).collect();
        let whole = || {
            let said: Option<Vec<Held>> = running.iter().map(|index| self.held(*index)).collect();
            let said = said?;
            let first = said.first()?;
            let shares = || first.by_broker.values().map(BTreeSet::len);
            let even = shares().max()? - shares().min()? <= 1;
            let agreed = said.iter().all(|held| held == first);
            let whole = agreed
                && first.leader.is_some()
                && first.by_broker.len() == running.len()
                && even
                && first.count() == self.partitions();
            whole.then(|| first.clone())
        };
        eventually(whole)
    }

    pub(crate) fn partitions(&self) -> usize {
        let mut flags = self.flags.iter().skip_while(|flag| *flag != "--partitions");
        flags.nth(1).map_or(16, |count| count.parse().unwrap())
    }
}

impl<R: Servers> Drop for Stage<R> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            println!("what the brokers said: {}", dir.keep().display());
        }
    }
}

impl Held {
    fn of(topology: &Value) -> Self {
        let address = |text: &Value| text.as_str().and_then(|text| text.parse().ok());
        let brokers = topology["brokers"].as_array().expect("a list of brokers");
        let held = brokers.iter().map(|broker| {
            let partitions = broker["partitions"].as_array().expect("a list of partitions");
            let partitions = partitions.iter().filter_map(Value::as_u64).collect();
            (address(&broker["address"]).expect("an address"), partitions)
        });
        Self { leader: address(&topology["leader"]), by_broker: held.collect() }
    }

    /// How many partitions are held by one broker; one that two say they hold counts for none.
    fn count(&self) -> usize {
        let all: Vec<u64> = self.by_broker.values().flatten().copied().collect();
        let once = all.iter().filter(|one| all.iter().filter(|other| other == one).count() == 1);
        once.count()
    }
}

/// A port that stays ours over restarts: below those that the system gives out, and apart from those of other tests.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut ports = (0..9_000).map(|_| {
        let number = std::process::id() * 16 + NEXT.fetch_add(1, Ordering::Relaxed);
        u16::try_from(11_000 + number % 9_000).expect("it is below 20,000")
    });
    let free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    ports.find(free).expect("some port is free")
}
