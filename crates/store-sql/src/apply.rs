//! Writes a batch: one transaction, sent in one go.
//!
//! The first statement is the fence. If it moves no row, it divides by zero, and the database
//! refuses the rest of the transaction. Then the row of the seat tells why.

use punctual_core::{Epoch, FireId, FireRecord, PartitionId, Seat, Task, TaskId, TaskState};
use punctual_sql::SqlError;
use punctual_sql::tokio_postgres::types::ToSql;
use punctual_store::{Batch, BatchNo, Counts, RepairNo, StoreError, codec};

use crate::batch::{BatchRows, LaterTime, LetterChange, TaskChange};
use crate::error::{batch_error, store_error};
use crate::postgres::session::{Params, Pending, SessionSlot, WriteSlot, all_in_order};
use crate::postgres::values::{SqlId, bigint, fire_columns};
use crate::store::PostgresStore;

/// The code of the fence that moved no row.
const FENCE_REFUSED: &str = "22012";

const FENCE: &str = "WITH moved AS (
    UPDATE seat SET batch = $4::bigint, repair = $5::bigint,
        history_bytes = history_bytes + $6::bigint
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3)
        AND batch = $4::bigint - 1 AND repair <= $5::bigint
    RETURNING 1)
    SELECT 1 / count(*) FROM moved";
const SEAT: &str = "SELECT epoch, token, batch, repair FROM seat WHERE seat = $1";
/// Commits once more, so that the answer waits for replicas if the batch has to.
const REPEAT: &str = "UPDATE seat SET repair = $5
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3) AND batch = $4
        AND repair <= $5 RETURNING 1";
const END_TASKS: &str = "DELETE FROM task WHERE p = $1 AND id = ANY($2)";
const NEW_TASKS: &str = "INSERT INTO task
    (p, id, fire_at, moved, scheduled, series, ns, key, body)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::boolean[], $5::boolean[],
        $6::boolean[], $7::bytea[], $8::bytea[], $9::bytea[])";
const FILE_TASKS: &str = "INSERT INTO task
    (p, id, fire_at, moved, scheduled, series, ns, key, body)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::boolean[], $5::boolean[],
        $6::boolean[], $7::bytea[], $8::bytea[], $9::bytea[])
    ON CONFLICT (p, id) DO UPDATE SET fire_at = excluded.fire_at, moved = excluded.moved,
        scheduled = excluded.scheduled, series = excluded.series, ns = excluded.ns,
        key = excluded.key, body = excluded.body, late_version = NULL, late_updated = NULL";
const POSTPONE_TASKS: &str = "UPDATE task SET fire_at = late.fire_at, moved = true,
        late_version = late.version, late_updated = late.updated
    FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[])
        AS late (id, fire_at, version, updated)
    WHERE task.p = $1 AND task.id = late.id";
const KEEP_LETTERS: &str = "INSERT INTO letter (p, task, nominal, ns, died_at, letter)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[])
    ON CONFLICT (p, task, nominal) DO UPDATE SET ns = excluded.ns, died_at = excluded.died_at,
        letter = excluded.letter";
const REMOVE_LETTERS: &str = "DELETE FROM letter USING unnest($2::uuid[], $3::bigint[])
        AS gone (task, nominal)
    WHERE letter.p = $1 AND letter.task = gone.task AND letter.nominal = gone.nominal";
const KEEP_RECORDS: &str = "INSERT INTO fire
    (p, task, nominal, ended_at, kind, ns, key, record)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::smallint[], $6::bytea[],
        $7::bytea[], $8::bytea[])
    ON CONFLICT (p, task, nominal) DO UPDATE SET ended_at = excluded.ended_at,
        kind = excluded.kind, ns = excluded.ns, key = excluded.key, record = excluded.record";
const MOVE_COUNTS: &str = "INSERT INTO counts AS c
    (p, ns, scheduled, paused, done, dead, cancelled, dead_letters)
    SELECT $1, * FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
        $7::bigint[], $8::bigint[])
    ON CONFLICT (p, ns) DO UPDATE SET scheduled = c.scheduled + excluded.scheduled,
        paused = c.paused + excluded.paused, done = c.done + excluded.done,
        dead = c.dead + excluded.dead, cancelled = c.cancelled + excluded.cancelled,
        dead_letters = c.dead_letters + excluded.dead_letters";

/// Tasks as columns.
#[derive(Debug, Default)]
struct TaskColumns {
    ids: Vec<SqlId>,
    fire_at: Vec<i64>,
    moved: Vec<bool>,
    scheduled: Vec<bool>,
    series: Vec<bool>,
    namespaces: Vec<Vec<u8>>,
    keys: Vec<Option<Vec<u8>>>,
    bodies: Vec<Vec<u8>>,
}

impl TaskColumns {
    fn push(&mut self, task: &Task) {
        let definition = &task.definition;
        self.ids.push(task.id.into());
        self.fire_at.push(bigint(task.fire_at.as_millis()));
        self.moved.push(task.fire_at != task.id.due());
        self.scheduled.push(task.state == TaskState::Scheduled);
        self.series.push(definition.schedule.kind().is_series());
        self.namespaces.push(definition.namespace.as_str().as_bytes().to_vec());
        self.keys.push(definition.key.as_ref().map(|key| key.as_str().as_bytes().to_vec()));
        let mut body = Vec::new();
        codec::put_body(&mut body, task);
        self.bodies.push(body);
    }

    fn params<'a>(&'a self, p: &'a i16) -> Vec<&'a (dyn ToSql + Sync)> {
        vec![
            p,
            &self.ids,
            &self.fire_at,
            &self.moved,
            &self.scheduled,
            &self.series,
            &self.namespaces,
            &self.keys,
            &self.bodies,
        ]
    }
}

/// A folded batch as columns of its tables.
#[derive(Debug, Default)]
struct BatchColumns {
    ended: Vec<SqlId>,
    new: TaskColumns,
    filed: TaskColumns,
    postponed: PostponedColumns,
    letters: LetterColumns,
    removed: FireColumns,
    records: RecordColumns,
    counts: CountColumns,
}

#[derive(Debug, Default)]
struct PostponedColumns {
    ids: Vec<SqlId>,
    fire_at: Vec<i64>,
    versions: Vec<i64>,
    updated: Vec<i64>,
}

#[derive(Debug, Default)]
struct FireColumns {
    tasks: Vec<SqlId>,
    nominal: Vec<i64>,
}

impl FireColumns {
    fn push(&mut self, fire_id: FireId) {
        let (task, nominal) = fire_columns(fire_id);
        self.tasks.push(task);
        self.nominal.push(nominal);
    }
}

#[derive(Debug, Default)]
struct LetterColumns {
    fires: FireColumns,
    namespaces: Vec<Vec<u8>>,
    died_at: Vec<i64>,
    letters: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct RecordColumns {
    fires: FireColumns,
    ended_at: Vec<i64>,
    kinds: Vec<i16>,
    namespaces: Vec<Vec<u8>>,
    keys: Vec<Option<Vec<u8>>>,
    records: Vec<Vec<u8>>,
    bytes: i64,
}

impl RecordColumns {
    fn push(&mut self, record: &FireRecord) {
        self.fires.push(record.fire_id);
        self.ended_at.push(bigint(record.ended_at.as_millis()));
        self.kinds.push(crate::pages::kind_column(record.end.kind()));
        self.namespaces.push(record.namespace.as_str().as_bytes().to_vec());
        self.keys.push(record.key.as_ref().map(|key| key.as_str().as_bytes().to_vec()));
        let mut bytes = Vec::new();
        codec::put_record(&mut bytes, record);
        self.bytes += bigint(bytes.len());
        self.records.push(bytes);
    }
}

#[derive(Debug, Default)]
struct CountColumns {
    namespaces: Vec<Vec<u8>>,
    by_state: [Vec<i64>; 6],
}

impl CountColumns {
    fn push(&mut self, namespace: &str, counts: Counts) {
        self.namespaces.push(namespace.as_bytes().to_vec());
        let Counts { scheduled, paused, done, dead, cancelled, dead_letters } = counts;
        let numbers = [scheduled, paused, done, dead, cancelled, dead_letters];
        for (column, number) in self.by_state.iter_mut().zip(numbers) {
            column.push(number);
        }
    }
}

impl BatchColumns {
    fn of(folded: &BatchRows) -> Self {
        let mut columns = Self::default();
        for (id, task) in &folded.tasks {
            columns.push_task(*id, task);
        }
        for (fire_id, letter) in &folded.letters {
            match letter {
                LetterChange::Removed => columns.removed.push(*fire_id),
                LetterChange::Kept(letter) => {
                    let letters = &mut columns.letters;
                    letters.fires.push(*fire_id);
                    let namespace = letter.task.definition.namespace.as_str();
                    letters.namespaces.push(namespace.as_bytes().to_vec());
                    letters.died_at.push(bigint(letter.died_at.as_millis()));
                    let mut bytes = Vec::new();
                    codec::put_letter(&mut bytes, letter);
                    letters.letters.push(bytes);
                }
            }
        }
        folded.records.values().for_each(|record| columns.records.push(record));
        for (namespace, counts) in folded.counts.iter().filter(|(_, counts)| !counts.is_zero()) {
            columns.counts.push(namespace.as_str(), *counts);
        }
        columns
    }

    fn push_task(&mut self, id: TaskId, task: &TaskChange) {
        match task {
            TaskChange::New(task) => self.new.push(task),
            TaskChange::Filed(task) => self.filed.push(task),
            TaskChange::Ended => self.ended.push(id.into()),
            TaskChange::Postponed(LaterTime { fire_at, version, updated_at }) => {
                let postponed = &mut self.postponed;
                postponed.ids.push(id.into());
                postponed.fire_at.push(bigint(fire_at.as_millis()));
                postponed.versions.push(bigint(version.get()));
                postponed.updated.push(bigint(updated_at.as_millis()));
            }
        }
    }

    /// Returns the statements that have something to do, with their parameters.
    fn statements<'a>(&'a self, p: &'a i16) -> Vec<(&'static str, Vec<&'a (dyn ToSql + Sync)>)> {
        let Self { ended, new, filed, postponed, letters, removed, records, counts } = self;
        let mut all: Vec<(&'static str, Vec<&'a (dyn ToSql + Sync)>)> = Vec::new();
        if !ended.is_empty() {
            all.push((END_TASKS, vec![p, ended]));
        }
        if !new.ids.is_empty() {
            all.push((NEW_TASKS, new.params(p)));
        }
        if !filed.ids.is_empty() {
            all.push((FILE_TASKS, filed.params(p)));
        }
        if !postponed.ids.is_empty() {
            let PostponedColumns { ids, fire_at, versions, updated } = postponed;
            all.push((POSTPONE_TASKS, vec![p, ids, fire_at, versions, updated]));
        }
        if !removed.tasks.is_empty() {
            all.push((REMOVE_LETTERS, vec![p, &removed.tasks, &removed.nominal]));
        }
        if !letters.letters.is_empty() {
            let LetterColumns { fires, namespaces, died_at, letters } = letters;
            let fires: [&(dyn ToSql + Sync); 2] = [&fires.tasks, &fires.nominal];
            all.push((KEEP_LETTERS, vec![p, fires[0], fires[1], namespaces, died_at, letters]));
        }
        if !records.records.is_empty() {
            let RecordColumns { fires, ended_at, kinds, namespaces, keys, records, .. } = records;
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![p, &fires.tasks, &fires.nominal];
            params.extend([ended_at as &(dyn ToSql + Sync), kinds, namespaces, keys, records]);
            all.push((KEEP_RECORDS, params));
        }
        if !counts.namespaces.is_empty() {
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![p, &counts.namespaces];
            params.extend(counts.by_state.iter().map(|column| column as &(dyn ToSql + Sync)));
            all.push((MOVE_COUNTS, params));
        }
        all
    }
}

/// Who writes: the values that the fence compares.
pub(crate) struct Writer {
    pub(crate) seat: i32,
    pub(crate) epoch: i64,
    pub(crate) token: String,
}

impl PostgresStore {
    pub(crate) fn writer(
        &self,
        partition: PartitionId,
        epoch: Epoch,
    ) -> Result<Writer, StoreError> {
        let seat = Seat::Partition(partition);
        let token = self.epochs.token(seat, epoch);
        Ok(Writer { seat: self.seat_row(seat)?, epoch: epoch.get().into(), token })
    }

    fn write_slot(&self, partition: PartitionId) -> &WriteSlot {
        &self.writes[usize::from(partition.get()) % self.writes.len()]
    }

    pub(crate) async fn write_batch(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        let writer = self.writer(partition, epoch)?;
        let p = self.column(partition)?;
        let (number, repair) = (batch.number, batch.repair);
        let folded = BatchRows::of(batch);
        let growth = folded.growth();
        let columns = BatchColumns::of(&folded);
        drop(folded);
        let write_slot = self.write_slot(partition);
        let _turn = write_slot.turn.lock().await;
        let written = self.transact(&write_slot.slot, &writer, p, &columns, number, repair).await;
        match written {
            Ok(()) => {
                self.epochs.acknowledge(partition, epoch, number);
                Ok(())
            }
            Err(error) if error.code() == Some(FENCE_REFUSED) => {
                self.explain(&write_slot.slot, &writer, partition, epoch, (number, repair)).await
            }
            Err(error) => Err(batch_error(error, growth)),
        }
    }

    async fn transact(
        &self,
        slot: &SessionSlot,
        writer: &Writer,
        p: i16,
        columns: &BatchColumns,
        number: BatchNo,
        repair: RepairNo,
    ) -> Result<(), SqlError> {
        let session = slot.session(&self.options).await?;
        let (number, repair) = (bigint(number.get()), bigint(repair.get()));
        let fence: Params<'_> =
            &[&writer.seat, &writer.epoch, &writer.token, &number, &repair, &columns.records.bytes];
        let mut statements = vec![(FENCE, fence.to_vec())];
        statements.extend(columns.statements(&p));
        let sent = async {
            let mut prepared = Vec::with_capacity(statements.len());
            for (text, _) in &statements {
                prepared.push(session.statement(text).await?);
            }
            let client = &session.connection;
            let simple = |text: &'static str| -> Pending<'_> {
                Box::pin(async move { client.batch_execute(text).await.map(|()| 0) })
            };
            let mut pending = vec![simple("BEGIN")];
            for (statement, (_, params)) in prepared.iter().zip(&statements) {
                pending.push(Box::pin(client.execute(statement, params)));
            }
            pending.push(simple("COMMIT"));
            client.within(all_in_order(pending)).await
        };
        let guard = session.guard();
        let sent = sent.await;
        guard.ended();
        if let Err(error) = &sent {
            slot.failed(&session, error);
        }
        sent
    }

    /// Reads why the fence refused a batch. A batch that was made before is fine.
    async fn explain(
        &self,
        slot: &SessionSlot,
        writer: &Writer,
        partition: PartitionId,
        ours: Epoch,
        (number, repair): (BatchNo, RepairNo),
    ) -> Result<(), StoreError> {
        let rows = slot.call(&self.options, SEAT, &[&writer.seat]).await?;
        let none = || StoreError::Fenced { partition, ours, current: Epoch::NONE };
        let row = rows.first().ok_or_else(none)?;
        let (current, token): (i64, String) = (row.get(0), row.get(1));
        let (last, last_repair): (i64, i64) = (row.get(2), row.get(3));
        if current != writer.epoch || (!writer.token.is_empty() && token != writer.token) {
            let read = u32::try_from(current).ok().and_then(Epoch::new);
            let Some(current) = read else { return Err(none()) };
            self.rewound(self.epochs.fenced(partition, ours, current));
            self.epochs.observe(Seat::Partition(partition), current);
            return Err(StoreError::Fenced { partition, ours, current });
        }
        if last_repair > bigint(repair.get()) {
            return Err(StoreError::Fenced { partition, ours, current: ours });
        }
        if last == bigint(number.get()) && last > 0 {
            let params: Params<'_> =
                &[&writer.seat, &writer.epoch, &writer.token, &last, &bigint(repair.get())];
            return match slot.call(&self.options, REPEAT, params).await?.is_empty() {
                false => {
                    self.epochs.acknowledge(partition, ours, number);
                    Ok(())
                }
                // Another write came in between; sent again, the batch is refused with the reason.
                true => Err(StoreError::Unavailable("the seat changed meanwhile".into())),
            };
        }
        let last = BatchNo::new(u64::try_from(last).unwrap_or(0));
        self.rewound(self.epochs.gap(partition, ours, last));
        Err(StoreError::Gap { partition, expected: last.next(), given: number })
    }

    /// Returns the error for a write whose seat was not found under its epoch and token.
    pub(crate) async fn fenced(
        &self,
        writer: &Writer,
        partition: PartitionId,
        ours: Epoch,
    ) -> StoreError {
        match self.seats.query(&self.options, SEAT, &[&writer.seat]).await {
            Err(error) => store_error(error),
            Ok(rows) => {
                let current = rows.first().and_then(|row| u32::try_from(row.get::<_, i64>(0)).ok());
                let current = current.and_then(Epoch::new).unwrap_or(Epoch::NONE);
                StoreError::Fenced { partition, ours, current }
            }
        }
    }
}
