//! The work of a row as statements of PostgreSQL.
//!
//! A task is a row with its name, its due time and its body, with an index by name and one by due
//! time. A batch is one prepared statement with arrays, which is the fastest way to write that
//! still names the tasks. A worker deletes the rows that it claims, and commits when they are
//! acked: if it fails before, they are there again. That writes each row once, where a lease in
//! the row would write it twice.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use punctual_sql::postgres::{PostgresClient, connect};
use punctual_sql::tokio_postgres::Statement;
use punctual_sql::tokio_postgres::types::ToSql;
use punctual_sql::{SqlKind, SqlOptions};
use tokio::task::JoinHandle;

use super::{CLAIM_TASKS_MAX, PeerTask, PeerVerb};
use crate::clock::{millis, pause};
use crate::connection::{PAYLOAD_BYTES, number_of, payload};
use crate::store::BenchDatabase;

/// The database with the tasks.
const DATABASE: &str = "beside";

const TABLE: &str = "\
CREATE TABLE task (name text PRIMARY KEY, due bigint NOT NULL, body bytea NOT NULL);
CREATE INDEX task_due ON task (due)";
const SCHEDULE: &str = "\
INSERT INTO task (name, due, body) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[])";
const TOUCH: &str = "\
UPDATE task SET due = later.due FROM unnest($1::text[], $2::bigint[]) AS later (name, due)
WHERE task.name = later.name";
const CANCEL: &str = "DELETE FROM task WHERE name = ANY($1::text[])";
const CLAIM: &str = "\
DELETE FROM task WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM task WHERE due <= $1 ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED
)) RETURNING name, body";

/// A PostgreSQL server with a table of tasks.
#[derive(Debug)]
pub(super) struct BesidePostgres(BenchDatabase);

impl BesidePostgres {
    pub(super) async fn start(dir: &Path) -> anyhow::Result<Self> {
        let server = Self(BenchDatabase::start(SqlKind::Postgres, dir).await?);
        server.renew().await?;
        Ok(server)
    }

    /// Removes all tasks.
    pub(super) async fn renew(&self) -> anyhow::Result<()> {
        self.0.create(DATABASE).await?;
        self.0.session(DATABASE).await?.run(TABLE).await
    }

    pub(super) fn url(&self) -> String {
        self.0.url(DATABASE)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.0.pid()
    }
}

async fn session(url: &str) -> anyhow::Result<Arc<PostgresClient>> {
    Ok(Arc::new(connect(&SqlOptions::from_url(url)?).await?))
}

/// The statement of a verb, prepared on one connection.
#[derive(Clone)]
struct PreparedVerb {
    client: Arc<PostgresClient>,
    verb: PeerVerb,
    statement: Statement,
}

impl PreparedVerb {
    /// Runs the statement for a batch, and checks that all of its tasks were there. Returns how
    /// many they are.
    async fn run(self, tasks: Vec<PeerTask>) -> anyhow::Result<u64> {
        let names: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
        let due = || tasks.iter().map(|task| task.due_ms.cast_signed()).collect::<Vec<i64>>();
        let (client, statement) = (&self.client, &self.statement);
        let done = match self.verb {
            PeerVerb::Schedule => {
                let bodies: Vec<_> = tasks.iter().map(|task| payload(task.number)).collect();
                client.execute(statement, &[&names, &due(), &bodies]).await?
            }
            PeerVerb::Touch => client.execute(statement, &[&names, &due()]).await?,
            PeerVerb::Cancel => client.execute(statement, &[&names]).await?,
        };
        let (verb, count) = (self.verb, tasks.len() as u64);
        ensure!(done == count, "{verb:?}: PostgreSQL has done {done} of {count}");
        Ok(count)
    }
}

pub(super) async fn send(
    url: &str,
    verb: PeerVerb,
    in_flight: usize,
    mut next: impl FnMut() -> Option<Vec<PeerTask>>,
) -> anyhow::Result<u64> {
    let client = session(url).await?;
    let statement = client.prepare(match verb {
        PeerVerb::Schedule => SCHEDULE,
        PeerVerb::Touch => TOUCH,
        PeerVerb::Cancel => CANCEL,
    });
    let prepared = PreparedVerb { statement: statement.await?, verb, client };
    if in_flight <= 1 {
        let mut done = 0;
        while let Some(tasks) = next() {
            done += prepared.clone().run(tasks).await?;
        }
        return Ok(done);
    }
    // The driver writes statements that are started on one connection without waiting.
    let mut unanswered: VecDeque<JoinHandle<anyhow::Result<u64>>> = VecDeque::new();
    let mut done = 0;
    loop {
        let batch = next();
        let keep = if batch.is_some() { in_flight - 1 } else { 0 };
        while unanswered.len() > keep {
            let Some(answer) = unanswered.pop_front() else { break };
            done += answer.await.context("a statement panicked")??;
        }
        let Some(tasks) = batch else { return Ok(done) };
        unanswered.push_back(tokio::spawn(prepared.clone().run(tasks)));
    }
}

pub(super) async fn drain(url: &str, count: u64, received: Arc<AtomicU64>) -> anyhow::Result<u64> {
    let client = session(url).await?;
    let claim = client.prepare(CLAIM).await?;
    client.batch_execute("BEGIN").await?;
    let mut done = 0;
    let limit = i64::try_from(CLAIM_TASKS_MAX)?;
    loop {
        let now = millis().cast_signed();
        // The commit of the last claim is its ack. It is written together with this claim.
        let ack = client.batch_execute("COMMIT; BEGIN");
        let params: [&(dyn ToSql + Sync); 2] = [&now, &limit];
        let (acked, rows) = tokio::join!(biased; ack, client.query(&claim, &params));
        acked?;
        let rows = rows?;
        for row in &rows {
            let (_, body): (&str, &[u8]) = (row.try_get(0)?, row.try_get(1)?);
            ensure!(body.len() == PAYLOAD_BYTES, "a body has {} bytes", body.len());
            number_of(body).context("an unknown payload")?;
        }
        let claimed = rows.len() as u64;
        let all = received.fetch_add(claimed, Ordering::Relaxed) + claimed;
        match (claimed == 0, all >= count) {
            (true, true) => return Ok(done),
            (true, false) => pause(1).await,
            (false, _) => {}
        }
        done += claimed;
    }
}
