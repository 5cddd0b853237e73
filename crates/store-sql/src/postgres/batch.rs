//! A batch as columns: one array per column, one statement per table.

use punctual_sql::tokio_postgres::types::ToSql;

use super::statements::{
    ADD_DIFFERENCE, END_TASKS, FILE_TASKS, KEEP_LETTERS, KEEP_RECORDS, KEEP_TOTALS, MOVE_COUNTS,
    NEW_TASKS, POSTPONE_TASKS, REMOVE_DIFFERENCES, REMOVE_LETTERS, REMOVE_TOTALS,
};
use crate::batch::BatchRows;
use crate::folded_rows::FoldedRows;
use crate::rows::{LaterColumns, LetterColumns, RecordColumns, RowWriter, TaskColumns};
use crate::values::{SqlId, bigint};

/// A statement with its parameters.
pub(super) type Bound<'a> = (&'static str, Vec<&'a (dyn ToSql + Sync)>);

/// The rows of a batch as arrays.
#[derive(Debug, Default)]
pub(super) struct BatchArrays {
    ended: Vec<SqlId>,
    new: TaskArrays,
    filed: TaskArrays,
    postponed: PostponedArrays,
    letters: LetterArrays,
    removed: FireArrays,
    records: RecordArrays,
    counts: CountArrays,
    difference: Option<Vec<u8>>,
    /// The bytes of all records.
    pub(super) record_bytes: i64,
}

#[derive(Debug, Default)]
struct TaskArrays {
    ids: Vec<SqlId>,
    fire_at: Vec<i64>,
    moved: Vec<bool>,
    scheduled: Vec<bool>,
    series: Vec<bool>,
    namespaces: Vec<Vec<u8>>,
    keys: Vec<Option<Vec<u8>>>,
    bodies: Vec<Vec<u8>>,
}

impl TaskArrays {
    fn push(&mut self, task: &TaskColumns<'_>) {
        self.ids.push(task.id);
        self.fire_at.push(task.fire_at);
        self.moved.push(task.moved);
        self.scheduled.push(task.scheduled);
        self.series.push(task.series);
        self.namespaces.push(task.namespace.to_vec());
        self.keys.push(task.key.map(<[u8]>::to_vec));
        self.bodies.push(task.body.clone());
    }

    fn params<'a>(&'a self, p: &'a i16) -> Vec<&'a (dyn ToSql + Sync)> {
        let Self { ids, fire_at, moved, scheduled, series, namespaces, keys, bodies } = self;
        vec![p, ids, fire_at, moved, scheduled, series, namespaces, keys, bodies]
    }
}

#[derive(Debug, Default)]
struct PostponedArrays {
    ids: Vec<SqlId>,
    fire_at: Vec<i64>,
    versions: Vec<i64>,
    updated: Vec<i64>,
}

#[derive(Debug, Default)]
struct FireArrays {
    tasks: Vec<SqlId>,
    nominal: Vec<i64>,
}

impl FireArrays {
    fn push(&mut self, (task, nominal): (SqlId, i64)) {
        self.tasks.push(task);
        self.nominal.push(nominal);
    }
}

#[derive(Debug, Default)]
struct LetterArrays {
    fires: FireArrays,
    namespaces: Vec<Vec<u8>>,
    died_at: Vec<i64>,
    groups: Vec<Vec<u8>>,
    letters: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct RecordArrays {
    fires: FireArrays,
    ended_at: Vec<i64>,
    kinds: Vec<i16>,
    namespaces: Vec<Vec<u8>>,
    keys: Vec<Option<Vec<u8>>>,
    records: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct CountArrays {
    namespaces: Vec<Vec<u8>>,
    by_state: [Vec<i64>; 6],
}

impl RowWriter for BatchArrays {
    fn ended(&mut self, id: SqlId) {
        self.ended.push(id);
    }

    fn new_task(&mut self, task: &TaskColumns<'_>) {
        self.new.push(task);
    }

    fn filed_task(&mut self, task: &TaskColumns<'_>) {
        self.filed.push(task);
    }

    fn postponed(&mut self, later: &LaterColumns) {
        self.postponed.ids.push(later.id);
        self.postponed.fire_at.push(later.fire_at);
        self.postponed.versions.push(later.version);
        self.postponed.updated.push(later.updated);
    }

    fn kept_letter(&mut self, letter: &LetterColumns<'_>) {
        self.letters.fires.push(letter.fire);
        self.letters.namespaces.push(letter.namespace.to_vec());
        self.letters.died_at.push(letter.died_at);
        self.letters.groups.push(letter.group.clone());
        self.letters.letters.push(letter.letter.clone());
    }

    fn removed_letter(&mut self, fire: (SqlId, i64)) {
        self.removed.push(fire);
    }

    fn record(&mut self, record: &RecordColumns<'_>) {
        self.record_bytes += bigint(record.record.len());
        self.records.fires.push(record.fire);
        self.records.ended_at.push(record.ended_at);
        self.records.kinds.push(record.kind);
        self.records.namespaces.push(record.namespace.to_vec());
        self.records.keys.push(record.key.map(<[u8]>::to_vec));
        self.records.records.push(record.record.clone());
    }

    fn counts(&mut self, namespace: &[u8], moved: [i64; 6]) {
        self.counts.namespaces.push(namespace.to_vec());
        for (column, number) in self.counts.by_state.iter_mut().zip(moved) {
            column.push(number);
        }
    }

    fn difference(&mut self, value: &[u8]) {
        self.difference = Some(value.to_vec());
    }
}

impl BatchArrays {
    pub(super) fn of(rows: &BatchRows) -> Self {
        let mut arrays = Self::default();
        rows.write_to(&mut arrays);
        arrays
    }

    /// Returns the statements that have something to do.
    pub(super) fn statements<'a>(&'a self, p: &'a i16) -> Vec<Bound<'a>> {
        let Self { ended, new, filed, postponed, letters, removed, records, counts, .. } = self;
        let mut all: Vec<Bound<'a>> = Vec::new();
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
            let PostponedArrays { ids, fire_at, versions, updated } = postponed;
            all.push((POSTPONE_TASKS, vec![p, ids, fire_at, versions, updated]));
        }
        if !removed.tasks.is_empty() {
            all.push((REMOVE_LETTERS, vec![p, &removed.tasks, &removed.nominal]));
        }
        if !letters.letters.is_empty() {
            let LetterArrays { fires, namespaces, died_at, groups, letters } = letters;
            let FireArrays { tasks, nominal } = fires;
            let params: Vec<&(dyn ToSql + Sync)> =
                vec![p, tasks, nominal, namespaces, died_at, groups, letters];
            all.push((KEEP_LETTERS, params));
        }
        if !records.records.is_empty() {
            let RecordArrays { fires, ended_at, kinds, namespaces, keys, records } = records;
            let FireArrays { tasks, nominal } = fires;
            let params: Vec<&(dyn ToSql + Sync)> =
                vec![p, tasks, nominal, ended_at, kinds, namespaces, keys, records];
            all.push((KEEP_RECORDS, params));
        }
        if !counts.namespaces.is_empty() {
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![p, &counts.namespaces];
            params.extend(counts.by_state.iter().map(|column| column as &(dyn ToSql + Sync)));
            all.push((MOVE_COUNTS, params));
        }
        if let Some(value) = &self.difference {
            all.push((ADD_DIFFERENCE, vec![p, value]));
        }
        all
    }
}

/// The rows of a fold as arrays.
#[derive(Debug, Default)]
pub(super) struct FoldArrays {
    differences: Vec<i64>,
    gone: TotalArrays,
    kept: TotalArrays,
}

#[derive(Debug, Default)]
struct TotalArrays {
    namespaces: Vec<Vec<u8>>,
    hours: Vec<i64>,
    values: Vec<Vec<u8>>,
}

impl FoldArrays {
    pub(super) fn of(rows: FoldedRows) -> Self {
        let FoldedRows { differences, gone, totals, .. } = rows;
        let mut arrays = Self { differences, ..Self::default() };
        (arrays.gone.namespaces, arrays.gone.hours) = gone.into_iter().unzip();
        for total in totals {
            arrays.kept.namespaces.push(total.namespace);
            arrays.kept.hours.push(total.hour);
            arrays.kept.values.push(total.value);
        }
        arrays
    }

    /// Returns the statements that have something to do.
    pub(super) fn statements<'a>(&'a self, p: &'a i16) -> Vec<Bound<'a>> {
        let Self { differences, gone, kept } = self;
        let mut all: Vec<Bound<'a>> = vec![(REMOVE_DIFFERENCES, vec![p, differences])];
        if !gone.hours.is_empty() {
            all.push((REMOVE_TOTALS, vec![p, &gone.namespaces, &gone.hours]));
        }
        if !kept.hours.is_empty() {
            let params: Vec<&(dyn ToSql + Sync)> =
                vec![p, &kept.namespaces, &kept.hours, &kept.values];
            all.push((KEEP_TOTALS, params));
        }
        all
    }
}
