//! A small disk: an ext4 file system in a file, mounted for the time of a test.
//!
//! Needs root, `mkfs.ext4` and loop devices.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Mounted until dropped.
pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    pub fn mount(mebibytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Self { dir };
        let image = disk.dir.path().join("image");
        File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        std::fs::create_dir(disk.path()).unwrap();
        // `-m 0` reserves no blocks for root. Otherwise a broker of root could still write to a
        // disk that reports itself full.
        let make = Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image).output();
        check("mkfs.ext4 (package e2fsprogs)", make);
        let mount =
            Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.path()).output();
        check("mount -o loop (as root, with loop devices)", mount);
        disk
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// A data directory for a broker on this disk.
    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Fills the disk until only `leave` bytes are free.
    pub fn fill(&self, leave: u64) {
        let mut ballast = File::create(self.ballast()).unwrap();
        let mut left = free_bytes(&self.path()).saturating_sub(leave);
        let megabyte = vec![1; 1 << 20];
        while left > 0 {
            let step = left.min(1 << 20);
            match ballast.write_all(&megabyte[..usize::try_from(step).unwrap()]) {
                Ok(()) => left -= step,
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
        // Blocks are allocated when the bytes are written back, which must not be later than now.
        let _ = ballast.sync_all();
    }

    /// Frees what `fill` took.
    pub fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the broker of a failing test may still be running and must not keep the disk
        // mounted for ever.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

pub fn free_bytes(path: &Path) -> u64 {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().nth(1).and_then(|line| line.trim().parse().ok()).expect("df prints a number")
}

fn check(what: &str, outcome: std::io::Result<std::process::Output>) {
    match outcome {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{what} is needed: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => panic!("{what} is needed: {error}"),
    }
}
