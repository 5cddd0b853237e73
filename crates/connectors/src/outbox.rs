//! The outbox: rows of a table that become calls to Punctual.
//!
//! An application inserts rows in its own transactions. A round locks the first rows, gives their
//! commands to the [`Intake`], deletes those that are done, moves aside those that were rejected,
//! and commits. A row is given again after a crash or an error, under the same id, so it makes no
//! second task. One broker at a time reads an outbox, by a lock of the database that ends with the
//! round; so rows are applied in the order of their ids, however many brokers share the outbox.

mod mysql;
mod postgres;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use punctual_sql::{Pauses, SqlError, SqlKind};
use tokio::time::timeout;

use crate::sink::DynFuture;
use crate::source::{Applied, Intake, SourceCommand, SourceStatus, Verb, apply_in_order, digest};
use crate::source_settings::OutboxSettings;

/// How long a broker that hangs keeps the rows of a round: the database ends its session then.
const ROUND_MAX: Duration = Duration::from_secs(30);
/// The pause after the broker has refused commands.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// The pause after a notification: rows that are committed at the same time are read together.
const NOTIFIED_PAUSE: Duration = Duration::from_millis(5);

/// A row of an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OutboxRow {
    id: i64,
    verb: String,
    key: Option<String>,
    task: Option<String>,
    /// In microseconds. With the id it tells a row from one of a table that was made anew.
    created_at: i64,
    /// How long it has waited, in milliseconds.
    age_ms: i64,
}

/// What to do with the rows of a round.
#[derive(Debug, Default, PartialEq, Eq)]
struct RoundEnd {
    done: Vec<i64>,
    rejected: Vec<(i64, String)>,
    /// Why rows stay, if some do.
    refused: Option<String>,
}

/// A session with the database of an outbox.
trait OutboxSession: Send {
    /// Begins a round and locks at most `max` rows. `None` if another broker has a round.
    fn begin(&mut self, max: usize) -> DynFuture<'_, Result<Option<Vec<OutboxRow>>, SqlError>>;

    /// Ends the round: deletes and moves rows, and commits.
    fn end<'a>(&'a mut self, end: &'a RoundEnd) -> DynFuture<'a, Result<(), SqlError>>;

    /// Waits until the database reports new rows. Never returns if it does not.
    fn notified(&mut self) -> DynFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// Reads one outbox.
pub struct OutboxSource {
    settings: OutboxSettings,
    intake: Arc<dyn Intake>,
    status: Arc<SourceStatus>,
}

impl fmt::Debug for OutboxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxSource").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl OutboxSource {
    /// A source that does not run yet.
    #[must_use]
    pub const fn new(
        settings: OutboxSettings,
        intake: Arc<dyn Intake>,
        status: Arc<SourceStatus>,
    ) -> Self {
        Self { settings, intake, status }
    }

    /// Reads the outbox. Never returns; dropped between two awaits, it loses nothing.
    pub async fn run(&self) {
        let mut pauses = Pauses::default();
        loop {
            wait(pauses.current()).await;
            let error = match self.connect().await {
                Ok(mut session) => loop {
                    match self.round(&mut *session).await {
                        Ok(pause) => {
                            pauses.succeeded();
                            self.status.works();
                            self.wait_for_rows(&mut *session, pause).await;
                        }
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            pauses.failed();
            self.status.failed(error.to_string());
        }
    }

    /// Waits for `pause`, or less if the database reports new rows.
    async fn wait_for_rows(&self, session: &mut dyn OutboxSession, pause: Duration) {
        let notified = timeout(pause, session.notified()).await.is_ok();
        if notified && pause > NOTIFIED_PAUSE {
            wait(NOTIFIED_PAUSE).await;
        }
    }

    async fn connect(&self) -> Result<Box<dyn OutboxSession>, SqlError> {
        let mut options = self.settings.options.clone();
        options.statement_timeout = ROUND_MAX;
        let table = self.settings.table.clone();
        Ok(match options.kind {
            SqlKind::Postgres => {
                let notify = self.settings.notify;
                Box::new(postgres::PostgresOutbox::open(&options, table, notify).await?)
            }
            SqlKind::Mysql => Box::new(mysql::MysqlOutbox::open(&options, table).await?),
        })
    }

    /// Reads rows once. Returns how long to wait until the next round.
    async fn round(&self, session: &mut dyn OutboxSession) -> Result<Duration, SqlError> {
        let OutboxSettings { batch, poll, .. } = self.settings;
        let Some(rows) = within(session.begin(batch)).await? else {
            return Ok(poll);
        };
        self.status.read();
        let full = rows.len() >= batch;
        let age = rows.iter().map(|row| row.age_ms).max().unwrap_or_default();
        let lag = Duration::from_millis(u64::try_from(age).unwrap_or_default());
        let end = self.apply(rows).await;
        within(session.end(&end)).await?;
        let (applied, rejected) = (end.done.len(), end.rejected.len());
        self.status.settled(applied, rejected, lag, end.refused.as_deref());
        Ok(match end.refused {
            Some(_) => REFUSED_PAUSE.max(poll),
            None if full => Duration::ZERO,
            None => poll,
        })
    }

    async fn apply(&self, rows: Vec<OutboxRow>) -> RoundEnd {
        let mut end = RoundEnd::default();
        let (mut ids, mut commands) = (Vec::new(), Vec::new());
        for row in rows {
            match self.command(&row) {
                Ok(command) => {
                    ids.push(row.id);
                    commands.push(command);
                }
                Err(problem) => end.rejected.push((row.id, problem)),
            }
        }
        let applied = apply_in_order(&*self.intake, commands, ROUND_MAX / 2).await;
        for (id, applied) in ids.into_iter().zip(applied) {
            match applied {
                Applied::Done => end.done.push(id),
                Applied::Rejected(problem) => end.rejected.push((id, problem)),
                Applied::Later(why) => end.refused = Some(why),
            }
        }
        end
    }

    fn command(&self, row: &OutboxRow) -> Result<SourceCommand, String> {
        let OutboxSettings { connection, table, namespace, .. } = &self.settings;
        let Some(verb) = Verb::parse(&row.verb) else {
            let verbs = Verb::ALL.map(Verb::as_str).join(", ");
            return Err(format!("verb: must be one of {verbs}, is {:?}", row.verb));
        };
        Ok(SourceCommand {
            id: format!("{connection}/{table}/{}/{}", row.id, row.created_at),
            digest: digest(row.task.as_deref().unwrap_or_default().as_bytes()),
            namespace: namespace.clone(),
            verb,
            key: row.key.clone(),
            task: row.task.clone(),
            create: None,
        })
    }
}

async fn wait(pause: Duration) {
    // An await that never completes, bounded by the pause.
    let _ = timeout(pause, std::future::pending::<()>()).await;
}

async fn within<T>(statements: impl Future<Output = Result<T, SqlError>>) -> Result<T, SqlError> {
    match timeout(ROUND_MAX, statements).await {
        Ok(result) => result,
        Err(_) => Err(SqlError::Silent(ROUND_MAX)),
    }
}
