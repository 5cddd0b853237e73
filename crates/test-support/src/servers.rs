//! Servers and clients that no package of the system has: `tools/servers` fetches them into
//! `target/servers`.

use std::path::{Path, PathBuf};

/// Returns the path of a fetched file or folder, relative to the packages of Python.
pub(crate) fn fetched(path: &str) -> PathBuf {
    found(&format!("python/{path}"))
}

/// The folder of the fetched packages of Python, for `PYTHONPATH`.
pub fn python_packages() -> PathBuf {
    found("python")
}

/// The folder of the fetched packages of Node.js, for `NODE_PATH`.
pub fn node_modules() -> PathBuf {
    found("node/node_modules") // words: allow
}

fn found(path: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = workspace.join("target/servers").join(path);
    assert!(found.exists(), "{} is missing: run tools/servers", found.display());
    found
}
