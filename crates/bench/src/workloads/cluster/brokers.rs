//! Brokers that share a Redis, each a process of its own, on this machine.
//!
//! All of them are killed, by their ids, when the bench ends, however it ends.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::broker::{ProcessUsage, launch, program, usage};
use crate::clock::pause;
use crate::connection::{HttpConnection, NAMESPACE};
use crate::redis::{BenchRedis, Fsync};

pub(crate) const BROKERS: usize = 3;
pub(crate) const PARTITIONS: u16 = 16;
/// How long the lease of a broker lasts after it was killed.
pub(crate) const LEASE: &str = "2s";
/// How often a condition is checked, 50 ms apart, before the bench gives up.
const ROUNDS_MAX: usize = 600;

pub(crate) struct BenchCluster {
    redis: BenchRedis,
    brokers: Vec<ClusterBroker>,
}

struct ClusterBroker {
    child: Child,
    address: String,
}

impl BenchCluster {
    /// Starts Redis and the brokers, and waits until every partition has an owner.
    pub(crate) async fn start(dir: &Path) -> anyhow::Result<Self> {
        let redis = BenchRedis::start(dir, Fsync::EverySecond).await?;
        let mut cluster = Self { redis, brokers: Vec::new() };
        for _ in 0..BROKERS {
            cluster.join().await?;
        }
        cluster.wait_until_shared().await?;
        Ok(cluster)
    }

    /// Starts one more broker.
    async fn join(&mut self) -> anyhow::Result<()> {
        let (redis, partitions) =
            (format!("redis://127.0.0.1:{}", self.redis.port()), PARTITIONS.to_string());
        let flags = ["--redis", &redis, "--partitions", &partitions, "--lease", LEASE];
        let (child, address) = launch(Command::new(program()?), flags).await?;
        self.brokers.push(ClusterBroker { child, address });
        Ok(())
    }

    /// Waits until the running brokers share all partitions evenly.
    pub(crate) async fn wait_until_shared(&self) -> anyhow::Result<()> {
        let share = usize::from(PARTITIONS) / self.brokers.len();
        for _ in 0..ROUNDS_MAX {
            let topology = self.topology().await?;
            let held = topology.iter().map(|(_, partitions)| partitions.len());
            if topology.len() == self.brokers.len()
                && held.clone().sum::<usize>() == usize::from(PARTITIONS)
                && held.clone().all(|count| count >= share)
            {
                return Ok(());
            }
            pause(50).await;
        }
        bail!("the brokers do not share the partitions");
    }

    /// Returns the brokers and their partitions.
    pub(crate) async fn topology(&self) -> anyhow::Result<Vec<(String, Vec<u64>)>> {
        let mut connection = HttpConnection::connect(&self.addresses()[0]).await?;
        let (status, body) =
            connection.request("GET", "/v1/topology", "application/json", b"").await?;
        if status != 200 {
            return Ok(Vec::new());
        }
        let answer: Value = serde_json::from_slice(body)?;
        let brokers = answer["brokers"].as_array().context("no brokers")?;
        let owned = |broker: &Value| {
            let address = broker["address"].as_str().unwrap_or_default().to_owned();
            let partitions = broker["partitions"].as_array().into_iter().flatten();
            (address, partitions.filter_map(Value::as_u64).collect())
        };
        Ok(brokers.iter().map(owned).collect())
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.brokers.iter().map(|broker| broker.address.clone()).collect()
    }

    /// What the Redis process has used.
    pub(crate) fn redis_usage(&self) -> Option<ProcessUsage> {
        usage(self.redis.pid()?)
    }

    /// The CPU time of all brokers together.
    pub(crate) fn broker_cpu(&self) -> std::time::Duration {
        let used = self.brokers.iter().filter_map(|broker| usage(broker.child.id()?));
        used.map(|usage| usage.cpu).sum()
    }

    /// Ends the last broker with a signal, and waits for it.
    pub(crate) async fn end_last(&mut self, signal: &str) -> anyhow::Result<()> {
        let mut broker = self.brokers.pop().context("no broker is left")?;
        let pid = broker.child.id().context("the broker has ended")?.to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().await?;
        ensure!(sent.success(), "cannot send {signal}");
        let ended = broker.child.wait().await?;
        ensure!(signal == "-KILL" || ended.success(), "the broker ended with {ended}");
        Ok(())
    }

    /// Starts a broker in place of one that has ended.
    pub(crate) async fn replace(&mut self) -> anyhow::Result<()> {
        self.join().await?;
        self.wait_until_shared().await
    }

    /// Ends the brokers and Redis, and removes their data.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        for broker in &mut self.brokers {
            broker.child.kill().await?;
        }
        self.redis.stop().await
    }
}

/// The partition of the task with this key.
pub(crate) fn partition(key: &str) -> anyhow::Result<u64> {
    let (namespace, key) = (Namespace::new(NAMESPACE)?, TaskKey::new(key)?);
    let partition = partition_of(&namespace, &key, Partitions::new(PARTITIONS)?);
    Ok(u64::from(partition.get()))
}
