//! A small disk of its own: an ext4 in a file, mounted for the time of a test.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Mounted until it is dropped, also when the test fails.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    pub(crate) fn mount(mebibytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Self { dir };
        let image = disk.dir.path().join("image");
        File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        std::fs::create_dir(disk.path()).unwrap();
        // No blocks set aside for root, or root's broker would find room on a disk that says it is full.
        let make = Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image).output();
        explain("mkfs.ext4 (package e2fsprogs)", make);
        let mount =
            Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.path()).output();
        explain("mount -o loop (as root, with loop devices)", mount);
        disk
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Takes all the room there is but `leave` bytes.
    pub(crate) fn fill(&self, leave: u64) {
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
        // What is written later than now might find the room that others count on.
        let _ = ballast.sync_all();
    }

    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a broker that a failing test has not ended yet must not keep it mounted for ever.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

pub(crate) fn free_bytes(path: &Path) -> u64 {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().nth(1).and_then(|line| line.trim().parse().ok()).expect("df says a number")
}

fn explain(what: &str, outcome: std::io::Result<std::process::Output>) {
    match outcome {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{what} is needed: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => panic!("{what} is needed: {error}"),
    }
}
