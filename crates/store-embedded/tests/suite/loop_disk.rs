//! A small disk: an ext4 file system in a file, mounted for one test.
//!
//! Needs root, `mkfs.ext4` and loop devices; a test fails with a clear message if one is missing.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// Mounted until it is dropped, also when the test fails.
pub(crate) struct LoopDisk {
    dir: TempDir,
}

impl LoopDisk {
    pub(crate) fn mount(mebibytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Self { dir };
        let image = disk.dir.path().join("image");
        File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        std::fs::create_dir(disk.mounted()).unwrap();
        // No blocks reserved for root, which could write to them on a full disk.
        let make = Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image).output();
        require("mkfs.ext4 (package e2fsprogs)", make);
        let mount =
            Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.mounted()).output();
        require("mount -o loop (as root, with loop devices)", mount);
        disk
    }

    fn mounted(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// The directory for a store.
    pub(crate) fn data(&self) -> PathBuf {
        self.mounted().join("data")
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        let megabyte = vec![1; 1 << 20];
        let mut step = megabyte.len();
        while step > 0 {
            match ballast.write(&megabyte[..step]) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => step /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        // The blocks must be taken now, not when the kernel writes them.
        let _ = ballast.sync_all();
    }

    /// Removes what `fill` wrote.
    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.mounted().join("ballast")
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // Lazily: a store that a failing test has not closed must not keep it mounted.
        let _ = Command::new("umount").arg("-l").arg(self.mounted()).output();
    }
}

fn require(what: &str, outcome: std::io::Result<std::process::Output>) {
    match outcome {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{what} is needed: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => panic!("{what} is needed: {error}"),
    }
}
