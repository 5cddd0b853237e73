//! Pages: lists of tasks, ended fires, dead letters and namespaces.
//!
//! A list reads a bounded number of rows and returns where it stopped. Rows with a prefix of a key
//! are found by the index of keys, if they are few enough to be sorted here.

use punctual_core::{DeadLetter, EndKind, FireId, FireRecord, Namespace, Task, TaskId, Timestamp};
use punctual_store::{
    CountedNamespace, Filter, FireFilter, FirePosition, KindFilter, Page, Position, StoreError,
};

use crate::database::{SqlDatabase, SqlRole};
use crate::read::{above, position_of, read_counts, rows_limit};
use crate::rows::kind_column;
use crate::store::SqlStore;
use crate::values::{Columns as _, SqlId, StatementParam, bigint, fire_columns};

/// Rows of one statement of a list.
const LISTED_MAX: usize = 1000;
/// The largest number of rows that are read for one page.
const LIST_READS_MAX: usize = 8000;
/// The largest number of rows with the prefix of a key that are sorted here.
const PREFIX_ROWS_MAX: usize = 2000;
/// The largest page of dead letters.
const LETTERS_MAX: usize = 1000;
/// The largest page of namespaces.
const NAMESPACES_MAX: usize = 1000;

/// Returns the first value behind all that begin with a prefix; `None` if there is none.
fn prefix_end(prefix: &str) -> Option<Vec<u8>> {
    let mut bytes = prefix.as_bytes().to_vec();
    while let Some(last) = bytes.pop() {
        if last < u8::MAX {
            bytes.push(last + 1);
            return Some(bytes);
        }
    }
    None
}

/// Returns the bound of `fire_at < …` for the end of a filter.
fn end_of(to: Timestamp) -> (SqlId, i64) {
    match to {
        Timestamp::MAX => (SqlId(u128::MAX), i64::MAX),
        to => (SqlId(TaskId::floor(to).as_u128()), bigint(to.as_millis())),
    }
}

impl<D: SqlDatabase> SqlStore<D> {
    pub(crate) async fn read_list(
        &self,
        p: i16,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        let limit = limit.max(1);
        let after = after.max(Position::before(filter.from));
        if let Some(rows) = self.rows_of_prefix(p, filter).await? {
            let tasks = rows.iter().filter_map(|row| self.read_task(p, row).ok());
            let mut tasks: Vec<Task> =
                tasks.filter(|task| filter.matches(task) && Position::of(task) > after).collect();
            tasks.sort_by_key(Position::of);
            return Ok(Page::first(tasks.into_iter(), limit, Position::of));
        }
        self.scan_list(p, filter, after, limit).await
    }

    /// Returns the rows whose keys have the prefix of a filter, if it has one and they are few.
    async fn rows_of_prefix(
        &self,
        p: i16,
        filter: &Filter,
    ) -> Result<Option<Vec<D::Row>>, StoreError> {
        self.keys_with_prefix(D::READS.prefix, p, &filter.namespace, &filter.key_prefix).await
    }

    async fn keys_with_prefix(
        &self,
        text: &'static str,
        p: i16,
        namespace: &Namespace,
        prefix: &str,
    ) -> Result<Option<Vec<D::Row>>, StoreError> {
        let Some(end) = prefix_end(prefix) else { return Ok(None) };
        let params = [
            StatementParam::Int(p.into()),
            StatementParam::Bytes(namespace.as_str().as_bytes()),
            StatementParam::Bytes(prefix.as_bytes()),
            StatementParam::Bytes(&end),
            StatementParam::Int(bigint(PREFIX_ROWS_MAX + 1)),
        ];
        let rows = self.read(SqlRole::Pages, text, &params).await?;
        Ok((rows.len() <= PREFIX_ROWS_MAX).then_some(rows))
    }

    async fn scan_list(
        &self,
        p: i16,
        filter: &Filter,
        mut after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        let series = filter.kind.is_some_and(KindFilter::selects_series);
        let (mut items, mut read) = (Vec::new(), 0);
        loop {
            let rows = match series {
                true => self.series_rows(p, filter, after).await?,
                false => self.task_rows(p, filter, after).await?,
            };
            let full = rows.len() == LISTED_MAX;
            for row in &rows {
                after = position_of(row, after);
                read += 1;
                if row.bytes_or_null(5).is_none() {
                    continue;
                }
                // What is damaged is logged and counted.
                items.extend(self.read_task(p, row).ok().filter(|task| filter.matches(task)));
                if items.len() >= limit {
                    return Ok(Page { items, next: Some(after) });
                }
            }
            if !full || read >= LIST_READS_MAX {
                return Ok(Page { items, next: full.then_some(after) });
            }
        }
    }

    /// Returns rows of all tasks in order; those of other namespaces have no body.
    async fn task_rows(
        &self,
        p: i16,
        filter: &Filter,
        after: Position,
    ) -> Result<Vec<D::Row>, StoreError> {
        let (last, until) = end_of(filter.to);
        let params = [
            StatementParam::Int(p.into()),
            StatementParam::Id(above(after)),
            StatementParam::Id(last),
            StatementParam::Int(bigint(after.fire_at.as_millis())),
            StatementParam::Id(after.id.into()),
            StatementParam::Int(until),
            StatementParam::Bytes(filter.namespace.as_str().as_bytes()),
            StatementParam::Int(bigint(LISTED_MAX)),
        ];
        let mut rows = self.read(SqlRole::Pages, D::READS.list, &params).await?;
        // Ordered ranges, each with as many rows as wanted: the first of all are complete.
        rows.sort_by_key(|row| (row.int(1), row.id(0)));
        rows.truncate(LISTED_MAX);
        Ok(rows)
    }

    async fn series_rows(
        &self,
        p: i16,
        filter: &Filter,
        after: Position,
    ) -> Result<Vec<D::Row>, StoreError> {
        let (_, until) = end_of(filter.to);
        let params = [
            StatementParam::Int(p.into()),
            StatementParam::Bytes(filter.namespace.as_str().as_bytes()),
            StatementParam::Int(bigint(after.fire_at.as_millis())),
            StatementParam::Id(after.id.into()),
            StatementParam::Int(until),
            StatementParam::Int(bigint(LISTED_MAX)),
        ];
        let mut rows = self.read(SqlRole::Pages, D::READS.series, &params).await?;
        rows.sort_by_key(|row| (row.int(1), row.id(0)));
        rows.truncate(LISTED_MAX);
        Ok(rows)
    }

    pub(crate) async fn read_fires(
        &self,
        p: i16,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        let limit = limit.max(1);
        if let Some(rows) = self.fires_of_prefix(p, filter).await? {
            let mut records = Vec::new();
            for row in &rows {
                let record = self.read_record(p, row)?;
                let later = after.is_none_or(|after| FirePosition::of(&record) < after);
                if later && filter.matches(&record) {
                    records.push(record);
                }
            }
            records.sort_by_key(|record| std::cmp::Reverse(FirePosition::of(record)));
            return Ok(Page::first(records.into_iter(), limit, FirePosition::of));
        }
        self.scan_fires(p, filter, after, limit).await
    }

    async fn fires_of_prefix(
        &self,
        p: i16,
        filter: &FireFilter,
    ) -> Result<Option<Vec<D::Row>>, StoreError> {
        let (namespace, prefix) = (&filter.namespace, &filter.key_prefix);
        self.keys_with_prefix(D::READS.prefix_fires, p, namespace, prefix).await
    }

    async fn scan_fires(
        &self,
        p: i16,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        let kinds: Vec<i16> = match filter.end {
            Some(kind) => vec![kind_column(kind)],
            None => EndKind::ALL.into_iter().map(kind_column).collect(),
        };
        let namespace = StatementParam::Bytes(filter.namespace.as_str().as_bytes());
        let mut below = match filter.to {
            Timestamp::MAX => (i64::MAX, SqlId(0), 0),
            to => (bigint(to.as_millis()), SqlId(0), 0),
        };
        if let Some(FirePosition { ended_at, fire_id }) = after {
            let (task, nominal) = fire_columns(fire_id);
            below = below.min((bigint(ended_at.as_millis()), task, nominal));
        }
        let (mut items, mut read) = (Vec::new(), 0);
        let plain = filter.label.is_none() && filter.key_prefix.is_empty();
        let wanted = if plain { limit.min(LISTED_MAX) } else { LISTED_MAX };
        loop {
            let (ended_at, task, nominal) = below;
            let params = [
                StatementParam::Int(p.into()),
                namespace,
                StatementParam::Kinds(&kinds),
                StatementParam::Int(ended_at),
                StatementParam::Id(task),
                StatementParam::Int(nominal),
                StatementParam::Int(bigint(filter.from.as_millis())),
                StatementParam::Int(bigint(wanted)),
            ];
            let mut rows = self.read(SqlRole::Pages, D::READS.fires, &params).await?;
            let column = |row: &D::Row| (row.int(3), row.id(0), row.int(1));
            rows.sort_by_key(|row| std::cmp::Reverse(column(row)));
            rows.truncate(wanted);
            let full = rows.len() == wanted;
            for row in &rows {
                below = column(row);
                read += 1;
                let record = self.read_record(p, row)?;
                let position = FirePosition::of(&record);
                if filter.matches(&record) {
                    items.push(record);
                }
                if items.len() >= limit || read >= LIST_READS_MAX {
                    return Ok(Page { items, next: Some(position) });
                }
            }
            if !full {
                return Ok(Page { items, next: None });
            }
        }
    }

    pub(crate) async fn read_dead(
        &self,
        p: i16,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        let namespace = StatementParam::Bytes(namespace.as_str().as_bytes());
        let limit = limit.clamp(1, LETTERS_MAX);
        let (mut task, mut nominal) = after.map_or((SqlId(0), -1), fire_columns);
        let mut items = Vec::new();
        // One statement is enough unless letters are damaged.
        loop {
            let wanted = limit + 1 - items.len();
            let most = rows_limit(wanted, LETTERS_MAX + 1);
            let params = [
                StatementParam::Int(p.into()),
                namespace,
                StatementParam::Id(task),
                StatementParam::Int(nominal),
                StatementParam::Int(most),
            ];
            let rows = self.read(SqlRole::Pages, D::READS.dead, &params).await?;
            for row in &rows {
                (task, nominal) = (row.id(0), row.int(1));
                items.extend(self.read_letter(p, row).ok());
            }
            if items.len() > limit || rows.len() < wanted {
                return Ok(Page::first(items.into_iter(), limit, DeadLetter::fire_id));
            }
        }
    }

    pub(crate) async fn read_namespaces(
        &self,
        p: i16,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        let limit = limit.clamp(1, NAMESPACES_MAX);
        let mut after = after.map_or(Vec::new(), |after| after.as_str().as_bytes().to_vec());
        let mut items = Vec::new();
        loop {
            let wanted = limit + 1 - items.len();
            let most = rows_limit(wanted, NAMESPACES_MAX + 1);
            let params = [
                StatementParam::Int(p.into()),
                StatementParam::Bytes(&after),
                StatementParam::Int(most),
            ];
            let rows = self.read(SqlRole::Pages, D::READS.namespaces, &params).await?;
            for row in &rows {
                after = row.bytes(0).to_vec();
                items.extend(self.read_namespace(p, row).ok());
            }
            if items.len() > limit || rows.len() < wanted {
                return Ok(Page::first(items.into_iter(), limit, |last| last.name.clone()));
            }
        }
    }

    fn read_namespace(&self, p: i16, row: &D::Row) -> Result<CountedNamespace, StoreError> {
        let name = row.bytes(0);
        let read =
            std::str::from_utf8(name).ok().and_then(|name| self.interner.namespace(name).ok());
        let name = read.ok_or_else(|| {
            let (table, shown) = (self.database.table("counts"), D::show_bytes(name));
            let place = format!("{table}, p = {p}, ns = {shown}");
            self.damage.found("the namespace", place, "it is not a name")
        })?;
        Ok(CountedNamespace { name, counts: read_counts(row, 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_every_key_that_begins_with_it() {
        for (prefix, end) in [
            ("a", Some(&b"b"[..])),
            ("order/", Some(b"order0")),
            ("\u{10ffff}", Some(b"\xf4\x8f\xbf\xc0")),
            ("", None),
        ] {
            assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}
