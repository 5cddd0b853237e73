//! Reads of tasks, letters, records and counts that have one answer. Pages are in `pages`.

use punctual_core::{
    DeadLetter, FireId, FireRecord, Namespace, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
};
use punctual_sql::tokio_postgres::Row;
use punctual_store::codec::{self, CodecError, Decoded};
use punctual_store::{Counts, Head, Position, StoreError};

use crate::batch::LaterTime;
use crate::postgres::values::{SqlId, bigint, fire_columns};
use crate::store::PostgresStore;

/// Tasks, keys or fires of one statement.
const ITEMS_MAX: usize = 1000;
/// The largest number of tasks of one load statement.
const LOADED_MAX: usize = 4096;

const LOAD: &str = "(SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
        WHERE p = $1 AND id > $2 AND id < $3 AND NOT moved AND scheduled ORDER BY id LIMIT $7)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
        WHERE p = $1 AND moved AND scheduled AND (fire_at, id) > ($4, $5) AND fire_at < $6
        ORDER BY fire_at, id LIMIT $7)";
const GET: &str = "SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
    WHERE p = $1 AND id = ANY($2)";
const FIND: &str = "SELECT task.id, fire_at, scheduled, late_version, late_updated, body, named.n
    FROM unnest($3::bytea[]) WITH ORDINALITY AS named (key, n)
    JOIN task ON task.p = $1 AND task.ns = $2 AND task.key = named.key";
const LETTERS: &str = "SELECT letter.task, letter.nominal, letter FROM letter
    JOIN unnest($2::uuid[], $3::bigint[]) AS wanted (task, nominal)
    ON letter.p = $1 AND letter.task = wanted.task AND letter.nominal = wanted.nominal";
const HISTORY: &str = "SELECT task, nominal, record FROM fire WHERE p = $1 AND task = $2
    ORDER BY nominal DESC LIMIT $3";
const LAST_FIRES: &str = "SELECT last.task, last.nominal, last.record, named.n
    FROM unnest($3::bytea[]) WITH ORDINALITY AS named (key, n)
    CROSS JOIN LATERAL (SELECT task, nominal, record FROM fire
        WHERE p = $1 AND ns = $2 AND key = named.key
        ORDER BY ended_at DESC, task DESC, nominal DESC LIMIT 1) AS last";
const COUNTS: &str = "SELECT scheduled, paused, done, dead, cancelled, dead_letters FROM counts
    WHERE p = $1 AND ns = $2";

/// The range of ids of tasks that are due at their first time, after a position: `id` is above it.
pub(crate) fn above(after: Position) -> SqlId {
    let floor = TaskId::floor(after.fire_at).as_u128();
    let own = after.id.due();
    let above = if own == after.fire_at {
        after.id.as_u128()
    } else if own < after.fire_at {
        // Every task that is due then has a larger id.
        floor.wrapping_sub(1)
    } else {
        // None has.
        floor | u128::MAX >> 48
    };
    SqlId(above)
}

pub(crate) fn read_counts(row: &Row, from: usize) -> Counts {
    let number = |index: usize| row.get::<_, i64>(from + index);
    Counts {
        scheduled: number(0),
        paused: number(1),
        done: number(2),
        dead: number(3),
        cancelled: number(4),
        dead_letters: number(5),
    }
}

pub(crate) fn rows_limit(limit: usize, most: usize) -> i64 {
    bigint(limit.min(most))
}

fn time(millis: i64) -> Decoded<Timestamp> {
    let time = Timestamp::try_from_millis(i128::from(millis));
    time.map_err(|_| CodecError::Invalid("time"))
}

fn postponed(row: &Row, fire_at: Timestamp) -> Decoded<Option<LaterTime>> {
    let (version, updated): (Option<i64>, Option<i64>) = (row.get(3), row.get(4));
    let Some((version, updated)) = version.zip(updated) else { return Ok(None) };
    let number = u64::try_from(version).map_err(|_| CodecError::Invalid("version"))?;
    let (version, updated_at) = (Version::new(number), time(updated)?);
    Ok(Some(LaterTime { fire_at, version, updated_at }))
}

impl PostgresStore {
    /// Reads a task from the columns id, fire_at, scheduled, late_version, late_updated, body.
    pub(crate) fn read_task(&self, p: i16, row: &Row) -> Result<Task, StoreError> {
        let decode = || {
            let id = TaskId::try_from_u128(row.get::<_, SqlId>(0).0);
            let id = id.map_err(|_| CodecError::Invalid("id"))?;
            let fire_at = time(row.get(1))?;
            let task = codec::read_body(id, fire_at, row.get(5), &self.interner)?;
            if (task.state == TaskState::Scheduled) != row.get::<_, bool>(2) {
                return Err(CodecError::Invalid("state"));
            }
            Ok(match postponed(row, fire_at)? {
                Some(postponed) => postponed.of_task(task),
                None => task,
            })
        };
        decode().map_err(|error| self.damaged_task(p, row, error))
    }

    fn damaged_task(&self, p: i16, row: &Row, error: CodecError) -> StoreError {
        let id: SqlId = row.get(0);
        self.damage.found("the task", format!("table task, p = {p}, id = '{id}'"), error)
    }

    fn read_head(&self, p: i16, row: &Row) -> Result<Head, StoreError> {
        let decode = || {
            let id = TaskId::try_from_u128(row.get::<_, SqlId>(0).0);
            let id = id.map_err(|_| CodecError::Invalid("id"))?;
            let fire_at = time(row.get(1))?;
            let mut head = codec::read_summary(id, fire_at, row.get(5))?.head;
            if let Some(postponed) = postponed(row, fire_at)? {
                head.nominal_at = fire_at;
                head.version = postponed.version;
            }
            Ok(head)
        };
        decode().map_err(|error| self.damaged_task(p, row, error))
    }

    /// Reads a record from the columns task, nominal, record.
    pub(crate) fn read_record(&self, p: i16, row: &Row) -> Result<FireRecord, StoreError> {
        let columns: (SqlId, i64) = (row.get(0), row.get(1));
        let read = codec::read_record(row.get(2), &self.interner);
        let read = read.and_then(|record| match fire_columns(record.fire_id) == columns {
            true => Ok(record),
            false => Err(CodecError::Invalid("fire")),
        });
        read.map_err(|error| {
            let (task, nominal) = columns;
            let place = format!("table fire, p = {p}, task = '{task}', nominal = {nominal}");
            self.damage.found("the record of a fire", place, error)
        })
    }

    /// Reads a letter from the columns task, nominal, letter.
    pub(crate) fn read_letter(&self, p: i16, row: &Row) -> Result<DeadLetter, StoreError> {
        let columns: (SqlId, i64) = (row.get(0), row.get(1));
        let read = codec::read_letter(row.get(2), &self.interner);
        let read = read.and_then(|letter| match fire_columns(letter.fire_id()) == columns {
            true => Ok(letter),
            false => Err(CodecError::Invalid("fire")),
        });
        read.map_err(|error| {
            let (task, nominal) = columns;
            let place = format!("table letter, p = {p}, task = '{task}', nominal = {nominal}");
            self.damage.found("the dead letter", place, error)
        })
    }

    pub(crate) async fn read_due(
        &self,
        p: i16,
        mut after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        let end = SqlId(TaskId::floor(until).as_u128());
        let until = bigint(until.as_millis());
        let mut tasks = Vec::new();
        while tasks.len() < limit {
            let wanted = (limit - tasks.len()).min(LOADED_MAX);
            let rows_max = rows_limit(wanted, LOADED_MAX);
            let (fire_at, id) = (bigint(after.fire_at.as_millis()), SqlId::from(after.id));
            let mut rows = self
                .loads
                .call(
                    &self.options,
                    LOAD,
                    &[&p, &above(after), &end, &fire_at, &id, &until, &rows_max],
                )
                .await?;
            // Two ordered ranges, each with as many rows as wanted: the first of both are complete.
            rows.sort_by_key(|row| (row.get::<_, i64>(1), row.get::<_, SqlId>(0)));
            rows.truncate(wanted);
            let full = rows.len() == wanted;
            if let Some(last) = rows.last() {
                after = position_of(last, after);
            }
            // What is damaged is logged and counted.
            tasks.extend(rows.iter().filter_map(|row| self.read_task(p, row).ok()));
            if !full {
                break;
            }
        }
        Ok(tasks)
    }

    pub(crate) async fn read_tasks(
        &self,
        p: i16,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        let mut tasks = Vec::with_capacity(ids.len());
        for ids in ids.chunks(ITEMS_MAX) {
            let wanted: Vec<SqlId> = ids.iter().map(|id| (*id).into()).collect();
            let rows = self.lookups.call(&self.options, GET, &[&p, &wanted]).await?;
            let mut found = std::collections::HashMap::with_capacity(rows.len());
            for row in &rows {
                let task = self.read_task(p, row)?;
                found.insert(task.id, task);
            }
            tasks.extend(ids.iter().map(|id| found.get(id).cloned()));
        }
        Ok(tasks)
    }

    pub(crate) async fn read_heads(
        &self,
        p: i16,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        let mut heads = Vec::with_capacity(keys.len());
        for keys in keys.chunks(ITEMS_MAX) {
            let named: Vec<&[u8]> = keys.iter().map(|key| key.as_str().as_bytes()).collect();
            let namespace = namespace.as_str().as_bytes();
            let rows = self.lookups.call(&self.options, FIND, &[&p, &namespace, &named]).await?;
            let mut found: Vec<Option<Head>> = keys.iter().map(|_| None).collect();
            for row in &rows {
                let head = self.read_head(p, row)?;
                if let Some(place) = place_of(row.get(6), &mut found)
                    && place.as_ref().is_none_or(|other| other.id < head.id)
                {
                    *place = Some(head);
                }
            }
            heads.extend(found);
        }
        Ok(heads)
    }

    pub(crate) async fn read_letters(
        &self,
        p: i16,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let mut letters = Vec::with_capacity(fire_ids.len());
        for fire_ids in fire_ids.chunks(ITEMS_MAX) {
            let (tasks, nominal): (Vec<SqlId>, Vec<i64>) =
                fire_ids.iter().map(|fire_id| fire_columns(*fire_id)).unzip();
            let params: [&(dyn punctual_sql::tokio_postgres::types::ToSql + Sync); 3] =
                [&p, &tasks, &nominal];
            let rows = self.lookups.call(&self.options, LETTERS, &params).await?;
            let mut found = std::collections::HashMap::with_capacity(rows.len());
            for row in &rows {
                let letter = self.read_letter(p, row)?;
                found.insert(letter.fire_id(), letter);
            }
            letters.extend(fire_ids.iter().map(|fire_id| found.get(fire_id).cloned()));
        }
        Ok(letters)
    }

    pub(crate) async fn read_history(
        &self,
        p: i16,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        let (id, limit) = (SqlId::from(id), bigint(limit));
        let rows = self.pages.call(&self.options, HISTORY, &[&p, &id, &limit]).await?;
        rows.iter().map(|row| self.read_record(p, row)).collect()
    }

    pub(crate) async fn read_last_fires(
        &self,
        p: i16,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        let mut records = Vec::with_capacity(keys.len());
        for keys in keys.chunks(ITEMS_MAX) {
            let named: Vec<&[u8]> = keys.iter().map(|key| key.as_str().as_bytes()).collect();
            let namespace = namespace.as_str().as_bytes();
            let rows =
                self.lookups.call(&self.options, LAST_FIRES, &[&p, &namespace, &named]).await?;
            let mut found: Vec<Option<FireRecord>> = keys.iter().map(|_| None).collect();
            for row in &rows {
                let record = self.read_record(p, row)?;
                if let Some(place) = place_of(row.get(3), &mut found) {
                    *place = Some(record);
                }
            }
            records.extend(found);
        }
        Ok(records)
    }

    pub(crate) async fn read_counts(
        &self,
        p: i16,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        let namespace = namespace.as_str().as_bytes();
        let rows = self.lookups.call(&self.options, COUNTS, &[&p, &namespace]).await?;
        Ok(rows.first().map(|row| read_counts(row, 0)).unwrap_or_default())
    }
}

/// Returns the place of a number that counts from 1.
fn place_of<T>(number: i64, places: &mut [Option<T>]) -> Option<&mut Option<T>> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    places.get_mut(index)
}

/// Returns the position of a row, whether or not its task can be read. Columns that are no position
/// leave the one before.
pub(crate) fn position_of(row: &Row, before: Position) -> Position {
    let id = TaskId::try_from_u128(row.get::<_, SqlId>(0).0);
    match (id, time(row.get(1))) {
        (Ok(id), Ok(fire_at)) => Position { fire_at, id },
        (_, Ok(fire_at)) => Position { fire_at, ..before },
        _ => before,
    }
}
