//! The rows of a folded batch: what each task, letter, record and count is in its columns.

use punctual_core::{DeadLetter, EndKind, FireId, FireRecord, Task, TaskId, TaskState};
use punctual_store::codec::put_letter_group;
use punctual_store::{Counts, codec};

use crate::batch::{BatchRows, LaterTime, LetterChange, TaskChange};
use crate::values::{SqlId, bigint, fire_columns};

/// A row of the table of tasks.
pub(crate) struct TaskColumns<'a> {
    pub(crate) id: SqlId,
    pub(crate) fire_at: i64,
    /// Not due at the time with which its id begins.
    pub(crate) moved: bool,
    pub(crate) scheduled: bool,
    pub(crate) series: bool,
    pub(crate) namespace: &'a [u8],
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) body: Vec<u8>,
}

impl<'a> TaskColumns<'a> {
    fn of(task: &'a Task) -> Self {
        let definition = &task.definition;
        let mut body = Vec::new();
        codec::put_body(&mut body, task);
        Self {
            id: task.id.into(),
            fire_at: bigint(task.fire_at.as_millis()),
            moved: task.fire_at != task.id.due(),
            scheduled: task.state == TaskState::Scheduled,
            series: definition.schedule.kind().is_series(),
            namespace: definition.namespace.as_str().as_bytes(),
            key: definition.key.as_ref().map(|key| key.as_str().as_bytes()),
            body,
        }
    }
}

/// A later time of a row of the table of tasks.
pub(crate) struct LaterColumns {
    pub(crate) id: SqlId,
    pub(crate) fire_at: i64,
    pub(crate) version: i64,
    pub(crate) updated: i64,
}

/// A row of the table of letters.
pub(crate) struct LetterColumns<'a> {
    pub(crate) fire: (SqlId, i64),
    pub(crate) namespace: &'a [u8],
    pub(crate) died_at: i64,
    /// Reason and target: what deletes the letter tells the groups by it.
    pub(crate) group: Vec<u8>,
    pub(crate) letter: Vec<u8>,
}

impl<'a> LetterColumns<'a> {
    fn of(letter: &'a DeadLetter) -> Self {
        let (mut group, mut bytes) = (Vec::new(), Vec::new());
        put_letter_group(&mut group, &letter.group());
        codec::put_letter(&mut bytes, letter);
        Self {
            fire: fire_columns(letter.fire_id()),
            namespace: letter.task.definition.namespace.as_str().as_bytes(),
            died_at: bigint(letter.died_at.as_millis()),
            group,
            letter: bytes,
        }
    }
}

/// A row of the table of fires.
pub(crate) struct RecordColumns<'a> {
    pub(crate) fire: (SqlId, i64),
    pub(crate) ended_at: i64,
    pub(crate) kind: i16,
    pub(crate) namespace: &'a [u8],
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) record: Vec<u8>,
}

impl<'a> RecordColumns<'a> {
    fn of(record: &'a FireRecord) -> Self {
        let mut bytes = Vec::new();
        codec::put_record(&mut bytes, record);
        Self {
            fire: fire_columns(record.fire_id),
            ended_at: bigint(record.ended_at.as_millis()),
            kind: kind_column(record.end.kind()),
            namespace: record.namespace.as_str().as_bytes(),
            key: record.key.as_ref().map(|key| key.as_str().as_bytes()),
            record: bytes,
        }
    }
}

/// The column of how a fire ended. The numbers are in the database: they never change.
pub(crate) const fn kind_column(kind: EndKind) -> i16 {
    match kind {
        EndKind::Done => 0,
        EndKind::Dead => 1,
        EndKind::Cancelled => 2,
        EndKind::Replaced => 3,
        EndKind::Skipped => 4,
    }
}

/// Takes the rows of a batch, each once and in any order of the tables.
pub(crate) trait RowWriter {
    /// The task is deleted.
    fn ended(&mut self, id: SqlId);
    /// The task is inserted: the database does not have it.
    fn new_task(&mut self, task: &TaskColumns<'_>);
    /// The task is inserted or replaced.
    fn filed_task(&mut self, task: &TaskColumns<'_>);
    /// The task is due later, if the database has it.
    fn postponed(&mut self, later: &LaterColumns);
    /// The letter is inserted or replaced, after the deletions.
    fn kept_letter(&mut self, letter: &LetterColumns<'_>);
    /// The letter is deleted, and the differences say so if there was one.
    fn removed_letter(&mut self, fire: (SqlId, i64));
    /// The record is inserted or replaced.
    fn record(&mut self, record: &RecordColumns<'_>);
    /// The counts of a namespace move: scheduled, paused, done, dead, cancelled, letters.
    fn counts(&mut self, namespace: &[u8], moved: [i64; 6]);
    /// The batch has this row in the table of differences.
    fn difference(&mut self, value: &[u8]);
}

impl BatchRows {
    /// Passes every row to `writer`.
    pub(crate) fn write_to(&self, writer: &mut impl RowWriter) {
        for (id, task) in &self.tasks {
            write_task(*id, task, writer);
        }
        for (fire_id, letter) in &self.letters {
            write_letter(*fire_id, letter, writer);
        }
        for record in self.records.values() {
            writer.record(&RecordColumns::of(record));
        }
        for (namespace, counts) in self.counts.iter().filter(|(_, counts)| !counts.is_zero()) {
            let Counts { scheduled, paused, done, dead, cancelled, dead_letters } = *counts;
            let moved = [scheduled, paused, done, dead, cancelled, dead_letters];
            writer.counts(namespace.as_str().as_bytes(), moved);
        }
        if let Some(value) = &self.difference {
            writer.difference(value);
        }
    }
}

fn write_task(id: TaskId, task: &TaskChange, writer: &mut impl RowWriter) {
    match task {
        TaskChange::New(task) => writer.new_task(&TaskColumns::of(task)),
        TaskChange::Filed(task) => writer.filed_task(&TaskColumns::of(task)),
        TaskChange::Ended => writer.ended(id.into()),
        TaskChange::Postponed(LaterTime { fire_at, version, updated_at }) => {
            writer.postponed(&LaterColumns {
                id: id.into(),
                fire_at: bigint(fire_at.as_millis()),
                version: bigint(version.get()),
                updated: bigint(updated_at.as_millis()),
            });
        }
    }
}

fn write_letter(fire_id: FireId, letter: &LetterChange, writer: &mut impl RowWriter) {
    match letter {
        LetterChange::Removed => writer.removed_letter(fire_columns(fire_id)),
        LetterChange::Kept(letter) => writer.kept_letter(&LetterColumns::of(letter)),
        LetterChange::Replaced(letter) => {
            writer.removed_letter(fire_columns(fire_id));
            writer.kept_letter(&LetterColumns::of(letter));
        }
    }
}
