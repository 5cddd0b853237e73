//! Errors: why a store does not open, and what an error of the database means for a call.

use punctual_sql::SqlError;
use punctual_store::{Resource, StoreError};

use crate::database::SqlDatabase;

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
        "the cluster {cluster} has format {format}, and this version of Punctual reads format \
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

/// What a caller can do after the database refused a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The same call may succeed later.
    Transient,
    /// There is no space for more.
    Full,
    /// The same call fails again.
    Final,
}

/// What an error means for a caller of the store.
pub(crate) fn store_error<D: SqlDatabase>(error: SqlError) -> StoreError {
    let transient = match &error {
        SqlError::Unreachable { .. } | SqlError::Silent(_) | SqlError::Refused { .. } => true,
        SqlError::Statement { code, .. } => D::classify(code) != ErrorClass::Final,
        SqlError::Options(_) | SqlError::Unexpected(_) => false,
    };
    match transient {
        true => StoreError::Unavailable(Box::new(error)),
        false => StoreError::Broken(error.to_string()),
    }
}

/// What an error of a batch means. `grows` says whether it has new tasks.
pub(crate) fn batch_error<D: SqlDatabase>(error: SqlError, grows: BatchGrowth) -> StoreError {
    match (&error, grows) {
        (SqlError::Statement { code, message }, BatchGrowth::NewTasks)
            if D::classify(code) == ErrorClass::Full =>
        {
            StoreError::Full { resource: Resource::Disk, why: message.clone() }
        }
        _ => store_error::<D>(error),
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
    use crate::mysql::MysqlDatabase;
    use crate::postgres::PostgresDatabase;

    #[test]
    fn a_full_disk_refuses_new_tasks_and_delays_other_changes() {
        fn check<D: SqlDatabase>(code: &str) {
            let refused =
                || SqlError::Statement { code: code.to_owned(), message: "no".to_owned() };
            let new = batch_error::<D>(refused(), BatchGrowth::NewTasks);
            assert!(matches!(new, StoreError::Full { .. }));
            let other = batch_error::<D>(refused(), BatchGrowth::None);
            assert!(matches!(other, StoreError::Unavailable(_)));
        }
        check::<PostgresDatabase>("53100");
        check::<MysqlDatabase>("1114");
    }
}
