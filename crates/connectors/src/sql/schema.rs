//! The tables that Punctual uses in a database, as `punctual sql schema` prints them.

use punctual_sql::SqlKind;

/// The name of the outbox unless the configuration has another.
pub const OUTBOX_TABLE: &str = "punctual_outbox";
/// What is added to the name of an outbox for the rows that were moved aside.
pub const REJECTED_SUFFIX: &str = "_rejected";
/// The name of the table of fire ids unless the configuration has another.
pub const FIRES_TABLE: &str = "punctual_fires";

/// The channel on which PostgreSQL reports new rows of an outbox.
pub const OUTBOX_CHANNEL: &str = "punctual_outbox";

const POSTGRES: &str = include_str!("schema/postgres.sql");
const NOTIFY: &str = include_str!("schema/notify.sql");
const MYSQL: &str = include_str!("schema/mysql.sql");

/// Returns the statements that create the tables. They can be run again.
#[must_use]
pub const fn schema(kind: SqlKind) -> &'static str {
    match kind {
        SqlKind::Postgres => POSTGRES,
        SqlKind::Mysql => MYSQL,
    }
}

/// Returns the statements that have PostgreSQL report new rows, for sources with `notify`.
#[must_use]
pub const fn notify_schema() -> &'static str {
    NOTIFY
}

/// Whether a text is the name of a table, with or without its schema.
pub(crate) fn is_table_name(text: &str) -> bool {
    let is_word = |word: &str| {
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        word.starts_with(is_letter) && word.chars().all(|c| is_letter(c) || c.is_ascii_digit())
    };
    text.len() <= 63 && text.split('.').count() <= 2 && text.split('.').all(is_word)
}
