//! `punctual sql`: what Punctual needs in a database of the user.

use punctual_connectors::sql::schema::schema;
use punctual_sql::SqlKind;

use crate::cli::print_bytes;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum SqlCommand {
    /// Print the tables of the outbox and of fire ids, to create them in your database
    #[command(after_help = "Examples:
  punctual sql schema postgres | psql shop
  punctual sql schema mysql | mysql shop")]
    Schema {
        /// The kind of database
        kind: Dialect,
    },
}

/// A kind of database.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Dialect {
    Postgres,
    Mysql,
}

impl SqlCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Self::Schema { kind } = self;
        let kind = match kind {
            Dialect::Postgres => SqlKind::Postgres,
            Dialect::Mysql => SqlKind::Mysql,
        };
        print_bytes(schema(kind).as_bytes())?;
        Ok(())
    }
}
