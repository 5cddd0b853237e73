//! The database that a connection of the measured broker names: its tables, and the configuration.
//!
//! It is a database of the server that has the broker's store, or of a PostgreSQL of its own if the
//! store is none.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use punctual_sql::SqlKind;
use tokio::process::Command;

use crate::broker::program;
use crate::connection::{NAMESPACE, QUEUE};
use crate::store::{BenchDatabase, BenchSession, BenchStore};

const NAME: &str = "shop";

/// A database with an outbox, and with a table that a statement writes.
#[derive(Debug)]
pub(crate) struct ConnectedDatabase {
    /// The server, if no store is in it.
    _own: Option<BenchDatabase>,
    pub(crate) kind: SqlKind,
    url: String,
    config: PathBuf,
}

impl ConnectedDatabase {
    pub(crate) async fn start(store: &BenchStore, dir: &Path) -> anyhow::Result<Self> {
        let own = match store.database() {
            Some(_) => None,
            None => Some(BenchDatabase::start(SqlKind::Postgres, dir).await?),
        };
        let server = own.as_ref().or(store.database()).context("no database was started")?;
        server.create(NAME).await?;
        let (kind, word, url) = (server.kind(), server.kind_word(), server.url(NAME));
        let mut session = BenchSession::open(&url).await?;
        let schema = Command::new(program()?).args(["sql", "schema", word]).output().await?;
        ensure!(schema.status.success(), "{}", String::from_utf8_lossy(&schema.stderr));
        session.run(std::str::from_utf8(&schema.stdout)?).await?;
        session.run("CREATE TABLE effects (number BIGINT NOT NULL)").await?;
        let config = dir.join(format!("punctual-bench-{}.toml", std::process::id()));
        let text = format!(
            "[connections.shop]\nkind = \"{word}\"\nurl = \"{url}\"\n\
             namespaces = [\"{NAMESPACE}\"]\n[connections.shop.statements]\n\
             note = \"insert into effects (number) values (:number)\"\n\
             [[sources]]\nkind = \"outbox\"\nconnection = \"shop\"\n\
             namespace = \"{NAMESPACE}\"\ntarget = {{ queue = \"{QUEUE}\" }}\n"
        );
        std::fs::write(&config, text).context("cannot write the configuration")?;
        Ok(Self { _own: own, kind, url, config })
    }

    /// The flags of the broker.
    pub(crate) fn flags(&self) -> [String; 2] {
        ["--config".to_owned(), self.config.display().to_string()]
    }

    pub(crate) async fn session(&self) -> anyhow::Result<BenchSession> {
        BenchSession::open(&self.url).await
    }

    /// The name of the database product, for rows.
    pub(crate) const fn product(&self) -> &'static str {
        match self.kind {
            SqlKind::Postgres => "PostgreSQL",
            SqlKind::Mysql => "MariaDB",
        }
    }
}

impl Drop for ConnectedDatabase {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.config);
    }
}
