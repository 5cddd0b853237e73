//! A secret that debug output does not show.

use std::fmt;

/// A password. Its debug output shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct SqlSecret(String);

impl SqlSecret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(secret: String) -> Self {
        Self(secret)
    }

    /// Returns the secret itself, for the handshake.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SqlSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SqlSecret(…)")
    }
}
