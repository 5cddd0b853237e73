//! A redis-server as a child process, on a free port, with its data in a new directory.
//!
//! It is killed, by its id, and its data is removed when the bench ends, however it ends.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::clock::pause;

/// How often a connection is tried, 50 ms apart, before the bench gives up.
const TRIES_MAX: usize = 200;

/// When Redis syncs its append-only file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Before each answer, as the broker does.
    Always,
    EverySecond,
}

impl Fsync {
    fn setting(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
        }
    }
}

/// A redis-server that the bench has started.
#[derive(Debug)]
pub struct BenchRedis {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl BenchRedis {
    /// Starts a server with a new directory in `dir`, and waits until it listens. The append-only
    /// file is never rewritten, so that no background work disturbs a measurement.
    ///
    /// # Errors
    /// If redis-server is not on the `PATH`, or does not listen.
    pub async fn start(dir: &Path, fsync: Fsync) -> anyhow::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = dir.join(format!("punctual-bench-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).context("cannot create a directory for Redis")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let started = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", fsync.setting()])
            .args(["--auto-aof-rewrite-percentage", "0", "--dir"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                return Err(error).context(
                    "cannot start redis-server: install Redis so that redis-server is on the PATH",
                );
            }
        };
        let mut redis = Self { child, port, dir };
        redis.wait_until_it_listens().await?;
        Ok(redis)
    }

    async fn wait_until_it_listens(&mut self) -> anyhow::Result<()> {
        for _ in 0..TRIES_MAX {
            if TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("redis-server ended before it listened: {status}");
            }
            pause(50).await;
        }
        bail!("redis-server does not listen on port {}", self.port);
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of the process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends the process.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot end redis-server")
    }
}

impl Drop for BenchRedis {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
