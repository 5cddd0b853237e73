//! Reads of tasks, letters, records and counts that have one answer. Pages are in `pages`.

use std::collections::HashMap;

use punctual_core::{
    DeadLetter, FireId, FireRecord, Namespace, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
};
use punctual_store::codec::{self, CodecError, Decoded};
use punctual_store::{Counts, Head, Position, StoreError};

use crate::batch::LaterTime;
use crate::database::{SqlDatabase, SqlRole};
use crate::store::SqlStore;
use crate::values::{Columns, SqlId, StatementParam, bigint, fire_columns};

/// The largest number of tasks of one load statement.
const LOADED_MAX: usize = 4096;

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

pub(crate) fn read_counts(row: &impl Columns, from: usize) -> Counts {
    let number = |index: usize| row.int(from + index);
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

fn postponed(row: &impl Columns, fire_at: Timestamp) -> Decoded<Option<LaterTime>> {
    let late = row.int_or_null(3).zip(row.int_or_null(4));
    let Some((version, updated)) = late else { return Ok(None) };
    let number = u64::try_from(version).map_err(|_| CodecError::Invalid("version"))?;
    let (version, updated_at) = (Version::new(number), time(updated)?);
    Ok(Some(LaterTime { fire_at, version, updated_at }))
}

impl<D: SqlDatabase> SqlStore<D> {
    /// Reads a task from the columns id, fire_at, scheduled, late_version, late_updated, body.
    pub(crate) fn read_task(&self, p: i16, row: &D::Row) -> Result<Task, StoreError> {
        let decode = || {
            let id = TaskId::try_from_u128(row.id(0).0);
            let id = id.map_err(|_| CodecError::Invalid("id"))?;
            let fire_at = time(row.int(1))?;
            let task = codec::read_body(id, fire_at, row.bytes(5), &self.interner)?;
            if (task.state == TaskState::Scheduled) != row.flag(2) {
                return Err(CodecError::Invalid("state"));
            }
            Ok(match postponed(row, fire_at)? {
                Some(postponed) => postponed.of_task(task),
                None => task,
            })
        };
        decode().map_err(|error| self.damaged_task(p, row, error))
    }

    fn damaged_task(&self, p: i16, row: &D::Row, error: CodecError) -> StoreError {
        let (table, id) = (self.database.table("task"), D::show_id(row.id(0)));
        self.damage.found("the task", format!("{table}, p = {p}, id = {id}"), error)
    }

    fn read_head(&self, p: i16, row: &D::Row) -> Result<Head, StoreError> {
        let decode = || {
            let id = TaskId::try_from_u128(row.id(0).0);
            let id = id.map_err(|_| CodecError::Invalid("id"))?;
            let fire_at = time(row.int(1))?;
            let mut head = codec::read_summary(id, fire_at, row.bytes(5))?.head;
            if let Some(postponed) = postponed(row, fire_at)? {
                head.nominal_at = fire_at;
                head.version = postponed.version;
            }
            Ok(head)
        };
        decode().map_err(|error| self.damaged_task(p, row, error))
    }

    fn fire_place(&self, table: &str, p: i16, (task, nominal): (SqlId, i64)) -> String {
        let (table, task) = (self.database.table(table), D::show_id(task));
        format!("{table}, p = {p}, task = {task}, nominal = {nominal}")
    }

    /// Reads a record from the columns task, nominal, record.
    pub(crate) fn read_record(&self, p: i16, row: &D::Row) -> Result<FireRecord, StoreError> {
        let columns = (row.id(0), row.int(1));
        let read = codec::read_record(row.bytes(2), &self.interner);
        let read = read.and_then(|record| match fire_columns(record.fire_id) == columns {
            true => Ok(record),
            false => Err(CodecError::Invalid("fire")),
        });
        read.map_err(|error| {
            self.damage.found("the record of a fire", self.fire_place("fire", p, columns), error)
        })
    }

    /// Reads a letter from the columns task, nominal, letter.
    pub(crate) fn read_letter(&self, p: i16, row: &D::Row) -> Result<DeadLetter, StoreError> {
        let columns = (row.id(0), row.int(1));
        let read = codec::read_letter(row.bytes(2), &self.interner);
        let read = read.and_then(|letter| match fire_columns(letter.fire_id()) == columns {
            true => Ok(letter),
            false => Err(CodecError::Invalid("fire")),
        });
        read.map_err(|error| {
            self.damage.found("the dead letter", self.fire_place("letter", p, columns), error)
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
            let params = [
                StatementParam::Int(p.into()),
                StatementParam::Id(above(after)),
                StatementParam::Id(end),
                StatementParam::Int(bigint(after.fire_at.as_millis())),
                StatementParam::Id(after.id.into()),
                StatementParam::Int(until),
                StatementParam::Int(rows_limit(wanted, LOADED_MAX)),
            ];
            let mut rows = self.read(SqlRole::Loads, D::READS.load, &params).await?;
            // Ordered ranges, each with as many rows as wanted: the first of all are complete.
            rows.sort_by_key(|row| (row.int(1), row.id(0)));
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
        for ids in ids.chunks(D::ITEMS_MAX) {
            let wanted: Vec<SqlId> = ids.iter().map(|id| (*id).into()).collect();
            let params = [StatementParam::Int(p.into()), StatementParam::Ids(&wanted)];
            let rows = self.read(SqlRole::Lookups, D::READS.get, &params).await?;
            let mut found = HashMap::with_capacity(rows.len());
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
        for keys in keys.chunks(D::ITEMS_MAX) {
            let rows = self.rows_of_keys(D::READS.find, p, namespace, keys).await?;
            let mut found: HashMap<&[u8], Head> = HashMap::with_capacity(rows.len());
            for row in &rows {
                let head = self.read_head(p, row)?;
                // Names are not unique in the database; the owner has named the latest task.
                if found.get(row.bytes(6)).is_none_or(|other| other.id < head.id) {
                    found.insert(row.bytes(6), head);
                }
            }
            heads.extend(keys.iter().map(|key| found.get(key.as_str().as_bytes()).cloned()));
        }
        Ok(heads)
    }

    async fn rows_of_keys(
        &self,
        text: &'static str,
        p: i16,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<D::Row>, StoreError> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_str().as_bytes()).collect();
        let namespace = StatementParam::Bytes(namespace.as_str().as_bytes());
        let params = [StatementParam::Int(p.into()), namespace, StatementParam::Names(&keys)];
        self.read(SqlRole::Lookups, text, &params).await
    }

    pub(crate) async fn read_letters(
        &self,
        p: i16,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let mut letters = Vec::with_capacity(fire_ids.len());
        for fire_ids in fire_ids.chunks(D::ITEMS_MAX) {
            let (tasks, nominal): (Vec<SqlId>, Vec<i64>) =
                fire_ids.iter().map(|fire_id| fire_columns(*fire_id)).unzip();
            let params = [
                StatementParam::Int(p.into()),
                StatementParam::Ids(&tasks),
                StatementParam::Ints(&nominal),
            ];
            let rows = self.read(SqlRole::Lookups, D::READS.letters, &params).await?;
            let mut found = HashMap::with_capacity(rows.len());
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
        let params = [
            StatementParam::Int(p.into()),
            StatementParam::Id(id.into()),
            StatementParam::Int(bigint(limit)),
        ];
        let rows = self.read(SqlRole::Pages, D::READS.history, &params).await?;
        rows.iter().map(|row| self.read_record(p, row)).collect()
    }

    pub(crate) async fn read_last_fires(
        &self,
        p: i16,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        let mut records = Vec::with_capacity(keys.len());
        for keys in keys.chunks(D::ITEMS_MAX) {
            let rows = self.rows_of_keys(D::READS.last_fires, p, namespace, keys).await?;
            let mut found: HashMap<&[u8], FireRecord> = HashMap::with_capacity(rows.len());
            for row in &rows {
                found.insert(row.bytes(3), self.read_record(p, row)?);
            }
            records.extend(keys.iter().map(|key| found.get(key.as_str().as_bytes()).cloned()));
        }
        Ok(records)
    }

    pub(crate) async fn read_counts(
        &self,
        p: i16,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        let namespace = StatementParam::Bytes(namespace.as_str().as_bytes());
        let params = [StatementParam::Int(p.into()), namespace];
        let rows = self.read(SqlRole::Lookups, D::READS.counts, &params).await?;
        Ok(rows.first().map(|row| read_counts(row, 0)).unwrap_or_default())
    }
}

/// Returns the position of a row, whether or not its task can be read. Columns that are no position
/// leave the one before.
pub(crate) fn position_of(row: &impl Columns, before: Position) -> Position {
    let id = TaskId::try_from_u128(row.id(0).0);
    match (id, time(row.int(1))) {
        (Ok(id), Ok(fire_at)) => Position { fire_at, id },
        (_, Ok(fire_at)) => Position { fire_at, ..before },
        _ => before,
    }
}
