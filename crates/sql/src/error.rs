//! Errors of connections and statements: one variant per thing that a caller can do.

use std::time::Duration;

/// Why there is no connection, or why a statement has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SqlError {
    /// Correct the URL or a file that it names.
    #[error("{0}")]
    Options(String),

    /// Correct the credentials, the database or the rights: the server refused the connection.
    #[error("{server} refused the connection: {why}")]
    Refused {
        /// Host and port.
        server: String,
        /// The server's reason, with its code.
        why: String,
    },

    /// Retry. The server cannot be reached, or the connection broke; whether a statement that was
    /// sent has run is unknown.
    #[error("{server} is not reachable: {why}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// What failed.
        why: String,
    },

    /// Retry. The server did not answer in time; whether a statement has run is unknown.
    #[error("the database did not answer within {} ms", .0.as_millis())]
    Silent(Duration),

    /// The server refused a statement, which changed nothing.
    #[error("the database refused a statement: {message} ({code})")]
    Statement {
        /// The SQLSTATE of PostgreSQL, or the number of a MySQL error.
        code: String,
        /// The server's message without its detail, which may show values of rows.
        message: String,
    },

    /// The driver or the server broke a rule: a value of another type, for example.
    #[error("unexpected answer of the database: {0}")]
    Unexpected(String),
}

impl SqlError {
    /// Returns whether the connection is unusable after this error.
    #[must_use]
    pub const fn breaks_connection(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Silent(_))
    }

    /// Returns whether the server refused a statement with a message that has this text.
    #[must_use]
    pub fn is_of(&self, text: &str) -> bool {
        matches!(self, Self::Statement { message, .. } if message.contains(text))
    }

    /// Returns the code of a refused statement.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Statement { code, .. } => Some(code),
            _ => None,
        }
    }
}
