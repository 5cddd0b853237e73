//! Values that flags give as text, or as the name of a file.

use std::io::Read as _;

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;

/// Reads a file; `-` is standard input.
pub(super) fn read_file(name: &str) -> anyhow::Result<Vec<u8>> {
    if name == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(name).with_context(|| format!("cannot read {name}"))
}

/// Reads the JSON of a flag, in the forms of curl: the text itself, `@FILE`, or `-` for standard
/// input.
pub(super) fn read_json_text<T: DeserializeOwned>(flag: &str, text: &str) -> anyhow::Result<T> {
    let bytes = match (text, text.strip_prefix('@')) {
        ("-", _) => read_file("-")?,
        (_, Some(file)) => read_file(file)?,
        (text, None) => text.as_bytes().to_vec(),
    };
    read_json(flag, &bytes)
}

/// Reads the JSON that a flag has given.
pub(super) fn read_json<T: DeserializeOwned>(flag: &str, bytes: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(bytes).with_context(|| format!("{flag} must be JSON"))
}

/// Reads a secret: the text itself, or after `@` the content of a file without the line break at
/// its end.
pub(super) fn read_secret(text: &str) -> anyhow::Result<String> {
    let Some(file) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    let secret = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the secret in {file}"))?;
    match secret.trim_end_matches(['\r', '\n']) {
        "" => bail!("{file} is empty; it must have a secret"),
        secret => Ok(secret.to_owned()),
    }
}
