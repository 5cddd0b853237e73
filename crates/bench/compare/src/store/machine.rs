//! Figures of the machine: CPU time, memory, bytes written, free disk space, load.
//!
//! They come from `/proc` and from file sizes, not from the store that is measured.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
pub fn start() -> Instant {
    Instant::now()
}

/// CPU time of a process and all its threads, user and system, in steps of 10 ms.
pub fn cpu(pid: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    Duration::from_millis(ticks.map(|ticks| ticks.parse().unwrap_or(0)).sum::<u64>() * 10)
}

/// One figure of `/proc/self/status`, in MiB.
pub fn memory_mib(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

/// Bytes written so far. `write_bytes` of `/proc/self/io` is not used: since Linux 6.16 it counts a
/// whole large folio (up to 2 MiB) for a few bytes written into it, 25 times what reaches the disk.
#[derive(Debug, Clone, Copy)]
pub struct BytesWritten {
    /// Passed to write calls by this process.
    pub calls: u64,
    /// Written to the disk of the directory by all processes: an upper bound.
    pub disk: u64,
}

pub fn written(dir: &Path) -> BytesWritten {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let calls = io.lines().find_map(|line| line.strip_prefix("wchar:")?.trim().parse().ok());
    BytesWritten { calls: calls.unwrap_or(0), disk: disk_written(dir).unwrap_or(0) }
}

fn disk_written(dir: &Path) -> Option<u64> {
    let dev = std::fs::metadata(dir).ok()?.dev();
    let major = (dev >> 8) & 0xfff;
    let minor = (dev & 0xff) | ((dev >> 12) & 0xf_ff00);
    let (major, minor) = (major.to_string(), minor.to_string());
    let stats = std::fs::read_to_string("/proc/diskstats").ok()?;
    let sectors: u64 = stats.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let ours = words.next()? == major && words.next()? == minor;
        ours.then(|| words.nth(7)?.parse().ok())?
    })?;
    Some(sectors * 512)
}

/// Bytes that a directory uses on disk, in allocated blocks, journal files included.
pub fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let meta = entry.metadata().ok()?;
        Some(if meta.is_dir() { disk_bytes(&entry.path()) } else { meta.blocks() * 512 })
    };
    entries.filter_map(of).sum()
}

/// Bytes that this process may still write to the disk of a directory.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(dir).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().parse().ok()
}

/// The load averages, as the kernel prints them.
pub fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Ticks of all processors so far, and how many of them were CPU steal.
pub fn ticks() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    (ticks.iter().sum(), ticks.get(7).copied().unwrap_or(0.0))
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}
