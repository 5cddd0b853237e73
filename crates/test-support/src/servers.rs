//! Servers that no package of the system has: `tools/servers` fetches them into `target/servers`.

use std::path::{Path, PathBuf};

/// Returns the path of a fetched file or folder, relative to the packages.
pub(crate) fn fetched(path: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = workspace.join("target/servers/python").join(path);
    assert!(found.exists(), "{} is missing: run tools/servers", found.display());
    found
}
