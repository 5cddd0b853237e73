//! Errors: why a store does not open, and what an error of the database means for a call.

use punctual_sql::SqlError;
use punctual_store::{Resource, StoreError};

/// Why a store in a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SqlOpenError {
    /// Correct the options.
    #[error("{0}")]
    Options(String),
    /// Correct the server, or choose another one.
    #[error("{0}")]
    Server(String),
    /// Use the version of Punctual that created the store, or move the tasks.
    #[error(
        "the schema {cluster} has format {format}, and this version of Punctual reads format \
         {ours}; use the version that created it, or export its tasks with that version and import \
         them into a new cluster"
    )]
    Format {
        /// The name of the cluster.
        cluster: String,
        /// The format of its tables.
        format: String,
        /// The format that this version reads.
        ours: &'static str,
    },
    /// Configure the number of partitions that the store has.
    #[error(
        "the cluster {cluster} has {made} partitions, not {configured}; the number never changes"
    )]
    Partitions {
        /// The name of the cluster.
        cluster: String,
        /// The number of partitions that it has.
        made: String,
        /// The number of partitions in the options.
        configured: u16,
    },
    /// The database does not answer, or refuses.
    #[error(transparent)]
    Sql(#[from] SqlError),
    /// A value of the store is damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Disk full, of PostgreSQL.
const DISK_FULL: &str = "53100";
/// Codes after which the same call may succeed later: the class, or the whole code.
const TRANSIENT: [&str; 6] = ["40", "53", "55", "57", "58", "25006"];
/// The server has become a replica, or is one.
pub(crate) const READ_ONLY: &str = "25006";

/// What an error means for a caller of the store.
pub(crate) fn store_error(error: SqlError) -> StoreError {
    let transient = match &error {
        SqlError::Unreachable { .. } | SqlError::Silent(_) | SqlError::Refused { .. } => true,
        SqlError::Statement { code, .. } => TRANSIENT.iter().any(|known| code.starts_with(known)),
        SqlError::Options(_) | SqlError::Unexpected(_) => false,
    };
    match transient {
        true => StoreError::Unavailable(Box::new(error)),
        false => StoreError::Broken(error.to_string()),
    }
}

/// What an error of a batch means. `grows` says whether it has new tasks.
pub(crate) fn batch_error(error: SqlError, grows: BatchGrowth) -> StoreError {
    match (&error, grows) {
        (SqlError::Statement { code, message }, BatchGrowth::NewTasks) if code == DISK_FULL => {
            StoreError::Full { resource: Resource::Disk, why: message.clone() }
        }
        _ => store_error(error),
    }
}

/// Whether a batch has tasks that callers create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchGrowth {
    None,
    NewTasks,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> SqlError {
        SqlError::Statement { code: code.to_owned(), message: "no".to_owned() }
    }

    #[test]
    fn errors_that_pass_are_unavailable_and_others_are_broken() {
        for (code, transient) in [
            ("40P01", true),
            ("53300", true),
            ("55P03", true),
            ("57014", true),
            ("58030", true),
            ("25006", true),
            ("25P02", false),
            ("42P01", false),
            ("22021", false),
        ] {
            let unavailable = matches!(store_error(refused(code)), StoreError::Unavailable(_));
            assert_eq!(unavailable, transient, "{code}");
        }
    }

    #[test]
    fn a_full_disk_refuses_new_tasks_and_delays_other_changes() {
        let new = batch_error(refused(DISK_FULL), BatchGrowth::NewTasks);
        assert!(matches!(new, StoreError::Full { .. }));
        let other = batch_error(refused(DISK_FULL), BatchGrowth::None);
        assert!(matches!(other, StoreError::Unavailable(_)));
    }
}
