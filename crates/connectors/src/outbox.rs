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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use punctual_core::{Clock, Timestamp};
use punctual_sql::{Pauses, SqlError, SqlKind};
use tokio::time::timeout;

use crate::courier::{ConnectorEvent, Observer};
use crate::sink::DynFuture;
use crate::source::{Applied, Intake, SourceCommand, Verb};
use crate::source_settings::OutboxSettings;

/// How long a broker that hangs keeps the rows of a round: the database ends its session then.
const ROUND_MAX: Duration = Duration::from_secs(30);
/// The pause after the broker has refused commands.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

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
}

/// What a source does at present, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    /// The name of the source: its connection and its table.
    pub name: String,
    /// The namespace of its tasks.
    pub namespace: String,
    /// When it last read its table, also without rows.
    pub read_at: Option<Timestamp>,
    /// Rows that this broker has applied.
    pub applied: u64,
    /// Rows that this broker has moved aside.
    pub rejected: u64,
    /// How long the oldest row of the last round had waited.
    pub lag: Duration,
    /// Why it cannot go on at present.
    pub problem: Option<String>,
}

/// Reads one outbox.
pub struct OutboxSource {
    settings: OutboxSettings,
    intake: Arc<dyn Intake>,
    clock: Arc<dyn Clock>,
    observer: Observer,
    state: Mutex<SourceState>,
}

impl fmt::Debug for OutboxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxSource").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl OutboxSource {
    /// A source that does not run yet.
    #[must_use]
    pub fn new(
        settings: OutboxSettings,
        intake: Arc<dyn Intake>,
        clock: Arc<dyn Clock>,
        observer: Observer,
    ) -> Self {
        let state = SourceState {
            name: format!("{}/{}", settings.connection, settings.table),
            namespace: settings.namespace.as_str().to_owned(),
            read_at: None,
            applied: 0,
            rejected: 0,
            lag: Duration::ZERO,
            problem: None,
        };
        Self { settings, intake, clock, observer, state: Mutex::new(state) }
    }

    /// What it does at present.
    #[must_use]
    pub fn state(&self) -> SourceState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut SourceState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
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
                            self.change(|state| state.problem = None);
                            wait(pause).await;
                        }
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            pauses.failed();
            self.problem(&error);
        }
    }

    fn problem(&self, error: &SqlError) {
        let problem = error.to_string();
        if self.state().problem.as_ref() != Some(&problem) {
            tracing::warn!(source = self.state().name, error = problem, "outbox not read");
        }
        self.change(|state| state.problem = Some(problem));
    }

    async fn connect(&self) -> Result<Box<dyn OutboxSession>, SqlError> {
        let mut options = self.settings.options.clone();
        options.statement_timeout = ROUND_MAX;
        let table = self.settings.table.clone();
        Ok(match options.kind {
            SqlKind::Postgres => Box::new(postgres::PostgresOutbox::open(&options, table).await?),
            SqlKind::Mysql => Box::new(mysql::MysqlOutbox::open(&options, table).await?),
        })
    }

    /// Reads rows once. Returns how long to wait until the next round.
    async fn round(&self, session: &mut dyn OutboxSession) -> Result<Duration, SqlError> {
        let OutboxSettings { batch, poll, .. } = self.settings;
        let Some(rows) = within(session.begin(batch)).await? else {
            return Ok(poll);
        };
        let now = self.clock.now();
        self.change(|state| state.read_at = Some(now));
        let full = rows.len() >= batch;
        let age = rows.iter().map(|row| row.age_ms).max().unwrap_or_default();
        let lag = Duration::from_millis(u64::try_from(age).unwrap_or_default());
        let end = self.apply(rows).await;
        within(session.end(&end)).await?;
        let (applied, rejected) = (end.done.len(), end.rejected.len());
        self.change(|state| {
            state.applied += applied as u64;
            state.rejected += rejected as u64;
            state.lag = lag;
            state.problem.clone_from(&end.refused);
        });
        let name = self.state().name;
        if applied + rejected > 0 {
            (self.observer)(ConnectorEvent::Taken { source: &name, applied, rejected, lag });
        }
        if rejected > 0 {
            tracing::warn!(source = name, rejected, "rows of the outbox moved aside");
        }
        Ok(match end.refused {
            Some(why) => {
                tracing::debug!(source = name, error = why, "rows of the outbox stay");
                REFUSED_PAUSE.max(poll)
            }
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
        if commands.is_empty() {
            return end;
        }
        let applied = match timeout(ROUND_MAX / 2, self.intake.apply(commands)).await {
            Ok(applied) => applied,
            Err(_) => {
                end.refused = Some("the broker did not answer in time".to_owned());
                return end;
            }
        };
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
            namespace: namespace.clone(),
            verb,
            key: row.key.clone(),
            task: row.task.clone(),
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
