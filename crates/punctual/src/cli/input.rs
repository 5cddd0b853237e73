//! Files that flags name.

use std::io::Read as _;

use anyhow::Context as _;

/// Reads a file; `-` is standard input.
pub(super) fn read_file(name: &str) -> anyhow::Result<Vec<u8>> {
    if name == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(name).with_context(|| format!("cannot read {name}"))
}
