//! The broker that is measured: a child process, or one that runs already.
//!
//! A child is killed, by its id, when the bench ends, however it ends.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::clock::{BenchTimer, pause};
use crate::connection::{HttpConnection, NAMESPACE};
use crate::store::BenchStore;

/// How often a broker that was started is asked, and how long between, in milliseconds.
const ANSWER_TRIES_MAX: u64 = 3000;
const ANSWER_EVERY_MS: u64 = 10;

/// A broker that is measured.
#[derive(Debug)]
pub(crate) struct BenchBroker {
    /// `HOST:PORT`
    pub(crate) address: String,
    /// `None` for a broker that was running already.
    own: Option<OwnProcess>,
}

#[derive(Debug)]
struct OwnProcess {
    child: Child,
    dir: PathBuf,
    flags: Vec<OsString>,
}

/// How a broker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokerEnd {
    /// By SIGKILL.
    Killed,
    /// By SIGTERM: it gives its leases back.
    Terminated,
}

/// What a process has used since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessUsage {
    /// User and system time together.
    pub(crate) cpu: Duration,
    pub(crate) resident_bytes: u64,
}

impl BenchBroker {
    /// Uses a broker that runs already.
    pub(crate) fn running(url: &str) -> anyhow::Result<Self> {
        let address = url.strip_prefix("http://").context("--broker must begin with http://")?;
        Ok(Self { address: address.trim_end_matches('/').to_owned(), own: None })
    }

    /// Starts a broker on a free port, with this store and further flags.
    pub(crate) async fn start(
        store: &BenchStore,
        dir: &Path,
        flags: &[String],
    ) -> anyhow::Result<Self> {
        let flags = [store.flags(), flags.to_vec()].concat();
        Self::launch(Command::new(program()?), dir, flags, store).await
    }

    /// Runs a command whose last word is this program as a broker with an embedded store.
    pub(crate) async fn start_by(
        command: Command,
        dir: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self::launch(command, dir, flags, &BenchStore::Embedded).await
    }

    /// An embedded store is in a new directory.
    async fn launch(
        command: Command,
        dir: &Path,
        flags: Vec<String>,
        store: &BenchStore,
    ) -> anyhow::Result<Self> {
        let dir = dir.join(format!("punctual-bench-{}", std::process::id()));
        if dir.exists() {
            std::fs::remove_dir_all(&dir)
                .context("cannot remove the data of the previous workload")?;
        }
        std::fs::create_dir_all(&dir).context("cannot create a directory for the broker")?;
        let mut all: Vec<OsString> = flags.into_iter().map(OsString::from).collect();
        if matches!(store, BenchStore::Embedded) {
            all.extend(["--data-dir".into(), dir.join("data").into()]);
        }
        let (child, address) = launch(command, &all).await?;
        let broker = Self { address, own: Some(OwnProcess { child, dir, flags: all }) };
        broker.wait_until_it_answers().await?;
        Ok(broker)
    }

    /// Ends the broker and starts it again. Returns how long it took to answer.
    pub(crate) async fn restart(&mut self, end: BrokerEnd) -> anyhow::Result<Duration> {
        let Some(own) = &mut self.own else {
            bail!("this workload ends its broker, so it needs one of its own; leave --broker out");
        };
        match end {
            BrokerEnd::Killed => own.child.kill().await.context("cannot kill the broker")?,
            BrokerEnd::Terminated => {
                let pid = own.child.id().context("the broker has ended")?.to_string();
                Command::new("kill").args(["-TERM", &pid]).status().await?;
                own.child.wait().await?;
            }
        }
        let timer = BenchTimer::start();
        let (child, address) = launch(Command::new(program()?), &own.flags).await?;
        own.child = child;
        self.address = address;
        self.wait_until_it_answers().await?;
        Ok(timer.elapsed())
    }

    /// Waits until the broker owns its partitions, which takes it a moment on a shared store.
    async fn wait_until_it_answers(&self) -> anyhow::Result<()> {
        let path = format!("/v1/{NAMESPACE}/stats");
        for _ in 0..ANSWER_TRIES_MAX {
            let mut connection = HttpConnection::connect(&self.address).await?;
            let (status, _) = connection.request("GET", &path, "application/json", b"").await?;
            // With tokens the broker asks for one before it looks for an owner.
            if matches!(status, 200 | 401) {
                return Ok(());
            }
            pause(ANSWER_EVERY_MS).await;
        }
        bail!("the broker owns no partitions after {} s", ANSWER_TRIES_MAX * ANSWER_EVERY_MS / 1000)
    }

    /// Ends a child and starts it again with an empty store. A broker that runs already is kept.
    pub(crate) async fn renew(&mut self, store: &BenchStore) -> anyhow::Result<()> {
        let Some(own) = &mut self.own else { return Ok(()) };
        own.child.kill().await.context("cannot end the broker")?;
        std::fs::remove_dir_all(&own.dir).context("cannot remove the data of the broker")?;
        std::fs::create_dir_all(&own.dir).context("cannot create a directory for the broker")?;
        store.renew().await?;
        (own.child, self.address) = launch(Command::new(program()?), &own.flags).await?;
        self.wait_until_it_answers().await
    }

    /// The id of the process, if it is a child of this process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.own.as_ref()?.child.id()
    }

    /// Returns what the broker has used, if it is a child of this process.
    pub(crate) fn usage(&self) -> Option<ProcessUsage> {
        usage(self.pid()?)
    }

    /// Returns the CPU time that the broker has used, if it is a child of this process.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        self.usage().map(|usage| usage.cpu)
    }

    /// Returns how many bytes the data of a child needs on disk.
    pub(crate) fn disk_bytes(&self) -> Option<u64> {
        Some(disk_bytes(&self.own.as_ref()?.dir))
    }

    /// Ends a child and removes its data.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        if let Some(mut own) = self.own {
            own.child.kill().await.context("cannot end the broker")?;
            std::fs::remove_dir_all(&own.dir).context("cannot remove the data of the broker")?;
        }
        Ok(())
    }
}

impl Drop for OwnProcess {
    /// Ends the process and removes its data, also if the measurement has failed.
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The path of this program, which is also that of the broker.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

/// Runs a command whose last word is this program as a broker on a free port with these flags.
/// Returns the process and its address.
pub(crate) async fn launch(
    mut command: Command,
    flags: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> anyhow::Result<(Child, String)> {
    let mut child = command
        .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json"])
        .args(flags)
        .env("RUST_LOG", "warn,punctual_server::startup=info")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a broker")?;
    let address = read_address(&mut child).await?;
    Ok((child, address))
}

/// Reads the address from the log of a broker. The rest of the log is read too, so that the broker
/// never blocks on a full pipe.
async fn read_address(child: &mut Child) -> anyhow::Result<String> {
    let stderr = child.stderr.take().context("the broker has no output")?;
    let mut lines = BufReader::new(stderr).lines();
    let address = loop {
        let Some(line) = lines.next_line().await? else {
            bail!("the broker ended before it listened");
        };
        let fields: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(listen) = fields["fields"]["listen"].as_str() {
            break listen.to_owned();
        }
    };
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            tracing::debug!(line, "broker");
        }
    });
    Ok(address)
}

/// The CPU time of a process, of those that it started and that run, and of those that have ended.
pub(crate) fn cpu_with_children(pid: u32) -> Option<Duration> {
    let [own, ended] = cpu_ticks(pid)?;
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    let running: u64 = children.filter_map(cpu_ticks).map(|[own, ended]| own + ended).sum();
    Some(Duration::from_millis((own + ended + running) * 10))
}

/// User and system time of a process, and of the children that it has waited for, in ticks of
/// 10 ms.
fn cpu_ticks(pid: u32) -> Option<[u64; 2]> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in brackets: the state, then numbers. The 12th and 13th field are user and
    // system time, the two after them those of children.
    let numbers: Vec<u64> = stat
        .rsplit(')')
        .next()?
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap_or(0))
        .collect();
    Some([numbers.get(10)? + numbers.get(11)?, numbers.get(12)? + numbers.get(13)?])
}

pub(crate) fn usage(pid: u32) -> Option<ProcessUsage> {
    let [ticks, _] = cpu_ticks(pid)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
    Some(ProcessUsage { cpu: Duration::from_millis(ticks * 10), resident_bytes: kib * 1024 })
}

pub(crate) fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(meta) = std::fs::symlink_metadata(path) else {
        return 0;
    };
    let inner = match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| disk_bytes(&entry.path())).sum(),
        Err(_) => 0,
    };
    meta.blocks() * 512 + inner
}
