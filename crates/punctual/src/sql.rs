//! `punctual sql`: what Punctual needs in a database of the user.

use punctual_connectors::sql::schema::{notify_schema, schema};
use punctual_sql::SqlKind;

use crate::cli::print_bytes;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum SqlCommand {
    /// Print the tables of the outbox and of fire ids, to create them in your database
    #[command(after_help = "Examples:
  punctual sql schema postgres | psql shop
  punctual sql schema postgres --notify | psql shop
  punctual sql schema mysql | mysql shop")]
    Schema {
        /// The kind of database
        kind: Dialect,

        /// With the trigger that notifies brokers of new rows, for sources with `notify = true`;
        /// PostgreSQL only
        #[arg(long)]
        notify: bool,
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
        let Self::Schema { kind, notify } = self;
        let kind = match kind {
            Dialect::Postgres => SqlKind::Postgres,
            Dialect::Mysql => SqlKind::Mysql,
        };
        if *notify && kind != SqlKind::Postgres {
            anyhow::bail!("--notify needs PostgreSQL: MySQL has no notifications");
        }
        print_bytes(schema(kind).as_bytes())?;
        if *notify {
            print_bytes(notify_schema().as_bytes())?;
        }
        Ok(())
    }
}
