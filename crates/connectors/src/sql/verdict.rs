//! What an error of a database means for a delivery.
//!
//! Errors that the same values will always meet refuse the delivery: data that does not fit its
//! column, a constraint that is violated. All others fail the attempt, because the operator or time
//! may remove their cause: rights, missing tables, deadlocks, a full disk, a parent row that is
//! not there yet.

use punctual_core::AttemptResult;
use punctual_sql::{SqlError, SqlKind};

use crate::sink::{failed, refused};

/// A foreign key that is violated: the row that it refers to may come later.
const POSTGRES_FOREIGN_KEY: &str = "23503";
/// Data that MySQL never takes: null in a column without nulls, out of range, duplicate key, data
/// too long, wrong value, division by zero, check constraint of MySQL and of MariaDB, JSON text.
const MYSQL_REFUSALS: [&str; 12] = [
    "1048", "1062", "1264", "1265", "1292", "1366", "1365", "1406", "3819", "4025", "3140", "1367",
];

/// The result of a delivery whose statement the database refused.
pub(crate) fn of_error(kind: SqlKind, error: &SqlError) -> AttemptResult {
    let text = error.to_string();
    match error.code() {
        Some(code) if is_refusal(kind, code) => refused(&text),
        _ => failed(&text),
    }
}

fn is_refusal(kind: SqlKind, code: &str) -> bool {
    match kind {
        SqlKind::Postgres => {
            (code.starts_with("22") || code.starts_with("23")) && code != POSTGRES_FOREIGN_KEY
        }
        SqlKind::Mysql => MYSQL_REFUSALS.contains(&code),
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Outcome;

    use super::*;

    #[test]
    fn data_that_never_fits_is_refused_and_the_rest_is_retried() {
        use SqlKind::{Mysql, Postgres};
        for (kind, code, refuses) in [
            (Postgres, "22P02", true),
            (Postgres, "22003", true),
            (Postgres, "23505", true),
            (Postgres, "23514", true),
            (Postgres, "23503", false),
            (Postgres, "40001", false),
            (Postgres, "40P01", false),
            (Postgres, "42P01", false),
            (Postgres, "42501", false),
            (Postgres, "53100", false),
            (Mysql, "1062", true),
            (Mysql, "1406", true),
            (Mysql, "1452", false),
            (Mysql, "1213", false),
            (Mysql, "1146", false),
        ] {
            let error = SqlError::Statement { code: code.to_owned(), message: "no".to_owned() };
            let outcome = of_error(kind, &error).outcome;
            let refused = matches!(outcome, Outcome::Refused { .. });
            assert_eq!(refused, refuses, "{kind:?} {code}: {outcome:?}");
        }
    }
}
