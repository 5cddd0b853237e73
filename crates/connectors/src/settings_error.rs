//! Errors of the configuration, and the files that it names.
//!
//! An error names the key and never shows a secret.

use std::fmt;
use std::path::Path;

use punctual_sql::SqlSecret;
use serde::Deserialize;

/// Bytes of a file with a password or certificates. A larger one is probably the wrong file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is wrong with the configuration of a connection or a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct SettingsError {
    /// The key, like `connections.shop.url`.
    pub key: String,
    /// What is wrong and what is allowed, without any secret.
    pub problem: String,
}

impl SettingsError {
    pub(crate) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

/// A text that may hold a secret.
#[derive(Clone, Deserialize)]
pub(crate) struct HiddenText(pub(crate) String);

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl HiddenText {
    /// Reads the secret from the file that the text names.
    pub(crate) fn from_file(&self) -> Result<SqlSecret, String> {
        let Some(path) = self.0.strip_prefix('@') else {
            return Err("must be @ and the path of a file".to_owned());
        };
        Ok(SqlSecret::new(read_secret(path)?))
    }
}

/// Reads a file that has a secret: text, without the end of its last line.
pub(crate) fn read_secret(path: &str) -> Result<String, String> {
    let text = read_file(Path::new(path))?;
    let text = String::from_utf8(text).map_err(|_| format!("{path} is not UTF-8 text"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a file that the configuration names.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let size = std::fs::metadata(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if size.len() > FILE_BYTES_MAX {
        return Err(format!("{shown} has more than {FILE_BYTES_MAX} bytes"));
    }
    std::fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))
}
