//! Brokers that share a Redis, each a process of its own, on this machine.
//!
//! All of them are killed, by their ids, when the bench ends however it ends.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::bench::broker::{Usage, launch, usage};
use crate::bench::clock::pause;
use crate::bench::wire::{Http, NAMESPACE};

pub(super) const BROKERS: usize = 3;
pub(super) const PARTITIONS: u16 = 16;
/// How long a partition waits for a broker that has vanished.
pub(super) const LEASE: &str = "2s";
/// Rounds of waiting for what must come, a twentieth of a second each.
const ROUNDS_MAX: usize = 600;

pub(super) struct Field {
    redis: Child,
    port: u16,
    brokers: Vec<Member>,
    dir: PathBuf,
}

struct Member {
    child: Child,
    address: String,
}

impl Field {
    /// Starts all of it, and waits until every partition has an owner.
    pub(super) async fn start(dir: &Path) -> anyhow::Result<Self> {
        let dir = dir.join(format!("punctual-bench-cluster-{}", std::process::id()));
        std::fs::create_dir_all(&dir).context("cannot make a folder for Redis")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let redis = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start redis-server; is it installed?")?;
        let mut field = Self { redis, port, brokers: Vec::new(), dir };
        field.until_redis_listens().await?;
        for _ in 0..BROKERS {
            field.join().await?;
        }
        field.until_shared().await?;
        Ok(field)
    }

    async fn until_redis_listens(&self) -> anyhow::Result<()> {
        for _ in 0..ROUNDS_MAX {
            if tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return Ok(());
            }
            pause(50).await;
        }
        bail!("redis-server does not listen");
    }

    /// Starts one more broker.
    async fn join(&mut self) -> anyhow::Result<()> {
        let (redis, partitions) =
            (format!("redis://127.0.0.1:{}", self.port), PARTITIONS.to_string());
        let settings = ["--redis", &redis, "--partitions", &partitions, "--lease", LEASE];
        let (child, address) = launch(settings).await?;
        self.brokers.push(Member { child, address });
        Ok(())
    }

    /// Waits until all partitions are shared by the brokers that run, to within one.
    pub(super) async fn until_shared(&self) -> anyhow::Result<()> {
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

    /// Who holds what.
    pub(super) async fn topology(&self) -> anyhow::Result<Vec<(String, Vec<u64>)>> {
        let mut connection = Http::connect(&self.addresses()[0]).await?;
        let (status, body) = connection.ask("GET", "/v1/topology", "application/json", b"").await?;
        if status != 200 {
            return Ok(Vec::new());
        }
        let answer: Value = serde_json::from_slice(body)?;
        let brokers = answer["brokers"].as_array().context("no brokers")?;
        let held = |broker: &Value| {
            let address = broker["address"].as_str().unwrap_or_default().to_owned();
            let partitions = broker["partitions"].as_array().into_iter().flatten();
            (address, partitions.filter_map(Value::as_u64).collect())
        };
        Ok(brokers.iter().map(held).collect())
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.brokers.iter().map(|member| member.address.clone()).collect()
    }

    /// What Redis has used.
    pub(super) fn redis_usage(&self) -> Option<Usage> {
        usage(self.redis.id()?)
    }

    /// What all brokers have used together.
    pub(super) fn broker_cpu(&self) -> std::time::Duration {
        let used = self.brokers.iter().filter_map(|member| usage(member.child.id()?));
        used.map(|usage| usage.cpu).sum()
    }

    /// Ends the last broker: at once, or well.
    pub(super) async fn end_last(&mut self, signal: &str) -> anyhow::Result<()> {
        let mut member = self.brokers.pop().context("no broker is left")?;
        let pid = member.child.id().context("it has ended")?.to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().await?;
        ensure!(sent.success(), "cannot send {signal}");
        let ended = member.child.wait().await?;
        ensure!(signal == "-KILL" || ended.success(), "the broker ended with {ended}");
        Ok(())
    }

    /// Starts another in place of one that has ended.
    pub(super) async fn replace(&mut self) -> anyhow::Result<()> {
        self.join().await?;
        self.until_shared().await
    }

    /// Ends all of it.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        for member in &mut self.brokers {
            member.child.kill().await?;
        }
        self.redis.kill().await?;
        std::fs::remove_dir_all(&self.dir).context("cannot remove the folder of Redis")
    }
}

/// The partition of a named task.
pub(super) fn partition(key: &str) -> anyhow::Result<u64> {
    let (namespace, key) = (Namespace::new(NAMESPACE)?, TaskKey::new(key)?);
    let partition = partition_of(&namespace, &key, Partitions::new(PARTITIONS)?);
    Ok(u64::from(partition.get()))
}
