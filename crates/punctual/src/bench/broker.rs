//! The broker that is measured: another process, started here or running already.
//!
//! In: a folder. Out: where it listens, and what it takes of the machine. It is killed, by its id, when the bench ends however it ends.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::clock::Stopwatch;

/// A broker under load.
#[derive(Debug)]
pub(super) struct Broker {
    /// `HOST:PORT`
    pub(super) address: String,
    own: Option<Own>,
}

#[derive(Debug)]
struct Own {
    child: Child,
    dir: PathBuf,
    partitions: u16,
}

/// What a process has used so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// User and system time.
    pub(super) cpu: Duration,
    pub(super) resident_bytes: u64,
}

impl Broker {
    /// One that runs already.
    pub(super) fn running(url: &str) -> anyhow::Result<Self> {
        let address = url.strip_prefix("http://").context("--broker must begin with http://")?;
        Ok(Self { address: address.trim_end_matches('/').to_owned(), own: None })
    }

    /// Starts one on a free port, with its data in a new folder.
    pub(super) async fn start(dir: &Path, partitions: u16) -> anyhow::Result<Self> {
        let dir = dir.join(format!("punctual-bench-{}", std::process::id()));
        if dir.exists() {
            std::fs::remove_dir_all(&dir)
                .context("cannot empty the folder of the last workload")?;
        }
        std::fs::create_dir_all(&dir).context("cannot make a folder for the broker")?;
        let (child, address) = launch(settings(&dir, partitions)).await?;
        Ok(Self { address, own: Some(Own { child, dir, partitions }) })
    }

    /// Kills it without warning and starts it again. Out: how long until it listened.
    pub(super) async fn kill_and_restart(&mut self) -> anyhow::Result<Duration> {
        let Some(own) = &mut self.own else {
            bail!("only a broker that the bench started can be killed; leave --broker out");
        };
        own.child.kill().await.context("cannot kill the broker")?;
        let stopwatch = Stopwatch::start();
        let (child, address) = launch(settings(&own.dir, own.partitions)).await?;
        let took = stopwatch.elapsed();
        own.child = child;
        self.address = address;
        Ok(took)
    }

    /// What it has used, if it is ours.
    pub(super) fn usage(&self) -> Option<Usage> {
        let pid = self.own.as_ref()?.child.id()?;
        usage(pid)
    }

    /// Bytes that its data takes on disk.
    pub(super) fn disk_bytes(&self) -> Option<u64> {
        Some(disk_bytes(&self.own.as_ref()?.dir))
    }

    /// Ends it, and removes its folder.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        if let Some(mut own) = self.own {
            own.child.kill().await.context("cannot end the broker")?;
            std::fs::remove_dir_all(&own.dir).context("cannot remove the broker's folder")?;
        }
        Ok(())
    }
}

/// Those of a broker with a store of its own.
fn settings(dir: &Path, partitions: u16) -> [OsString; 4] {
    let (data, partitions) = (dir.join("data"), partitions.to_string());
    ["--data-dir".into(), data.into(), "--partitions".into(), partitions.into()]
}

/// Starts a broker on a free port, with these settings. Out: it, and where it listens.
pub(super) async fn launch(
    settings: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> anyhow::Result<(Child, String)> {
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(exe)
        .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json"])
        .args(settings)
        .env("RUST_LOG", "warn,punctual_server::broker=info")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a broker")?;
    let address = read_address(&mut child).await?;
    Ok((child, address))
}

/// Where a broker says that it listens. What it says later is passed on, so that it never waits for a reader.
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

pub(super) fn usage(pid: u32) -> Option<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name in brackets: state, then numbers; the 12th and 13th are user and system ticks of 10 ms.
    let numbers: Vec<u64> = stat
        .rsplit(')')
        .next()?
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap_or(0))
        .collect();
    let ticks = numbers.get(10)? + numbers.get(11)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
    Some(Usage { cpu: Duration::from_millis(ticks * 10), resident_bytes: kib * 1024 })
}

fn disk_bytes(path: &Path) -> u64 {
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
