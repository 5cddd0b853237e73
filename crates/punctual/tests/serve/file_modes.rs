//! Only the broker's own user can read what it stores or exports.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use punctual_test_support::{BrokerProcess, TestBroker, punctual_binary, task};

/// Returns a directory and everything in it, each with its mode.
fn modes(path: &Path) -> Vec<(PathBuf, u32)> {
    let metadata = fs::symlink_metadata(path).unwrap();
    let mut found = vec![(path.to_owned(), metadata.permissions().mode() & 0o7777)];
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            found.extend(modes(&entry.unwrap().path()));
        }
    }
    found
}

fn assert_private(dir: &Path) {
    let all = modes(dir);
    assert!(all.len() > 8, "a journal, a catalog and their files: {all:?}");
    for (path, mode) in all {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, wanted, "{} has mode {mode:o}", path.display());
    }
}

/// Puts tasks until the journal has begun another file, of 16 MiB.
fn fill(broker: &TestBroker) {
    let payload = "x".repeat(200_000);
    for number in 0..90 {
        let url = "http://127.0.0.1:9/";
        let body = task(r#""in": "1h""#, url).replace(r#"{"order": 1}"#, &format!("\"{payload}\""));
        assert_eq!(broker.put(&format!("large-{number}"), body).0, 201);
    }
}

fn run(args: &[&str], paths: &[&Path]) {
    let output = Command::new("sh")
        .args(["-c", r#"umask 022; exec "$0" "$@""#])
        .arg(punctual_binary())
        .args(args)
        .args(paths)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_files_of_a_store_and_of_an_export_are_private() {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = Arc::new(tempfile::tempdir_in(parent.path()).unwrap());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let broker = TestBroker::start_on(Arc::clone(&dir), &[]);
    fill(&broker);
    assert_private(dir.path());
    broker.signal("-TERM");
    assert!(broker.end().success());
    assert_private(dir.path());
    // An export of it, over an older file that everyone can read.
    let export = parent.path().join("export.ndjson");
    let unfinished = parent.path().join("export.ndjson.unfinished");
    for path in [&export, &unfinished] {
        fs::write(path, "old").unwrap();
    }
    run(&["export", "--out"], &[&export, Path::new("--data-dir"), dir.path()]);
    assert_eq!(modes(&export)[0].1, 0o600);
    assert!(!unfinished.exists());
    // And an import of that into a new store.
    let imported = parent.path().join("imported");
    run(&["import", "--data-dir"], &[&imported, Path::new("--in"), &export]);
    assert_private(&imported);
}

#[test]
fn a_store_that_others_can_read_is_made_private_with_a_warning() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let (process, _) = BrokerProcess::start(&dir);
    let warning = "others could access the data directory; its modes were tightened";
    assert_eq!(process.count_logged(warning), 0, "a new store is private");
    process.kill();
    for (path, _) in modes(&dir) {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let (process, _) = BrokerProcess::start(&dir);
    assert_private(&dir);
    let fields = process.logged(warning).expect("a warning");
    assert!(fields["paths"].as_u64().unwrap() > 8, "{fields}");
    process.kill();
    let (process, _) = BrokerProcess::start(&dir);
    assert_eq!(process.count_logged(warning), 0, "once");
}
