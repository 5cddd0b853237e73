//! Totals: due counts and groups of dead letters, as sums of the tables `total` and `difference`.
//!
//! A row of `total` has one hour of one namespace, or, in place of an hour, the groups of the dead
//! letters of the namespace. What batches have changed since it was written is in `difference`. One
//! statement reads a page of both at one moment. If there are several pages and the differences are
//! folded meanwhile, the read starts again.

use std::ops::RangeInclusive;

use punctual_core::Namespace;
use punctual_store::codec::{CodecError, DueStepCounts, Reader, read_letter_groups};
use punctual_store::{CountedGroup, DueCounts, DueHour, DueMinute, DueSteps, StoreError};

use crate::database::{SqlDatabase, SqlRole};
use crate::differences::ReadDifferences;
use crate::store::SqlStore;
use crate::values::{Columns as _, StatementParam, bigint};

/// In place of an hour: the row has the groups of dead letters.
pub(crate) const GROUPS: i64 = -1;

/// Rows of differences in one page: about twice as many as are folded at once.
pub(crate) const DIFFERENCES_MAX: usize = 1000;
/// Hours in one page: at most some hundred kilobytes.
const TOTALS_MAX: usize = 4096;
/// Pages of one read: some hundred thousand hours, which take a second. More differences than that
/// are there only if folding them has failed for long.
const PAGES_MAX: usize = 100;
/// How often a read starts again because the differences were folded meanwhile.
const READS_MAX: usize = 5;

/// Rows of both tables, read at one moment.
pub(crate) struct CountRows<R> {
    /// How often the differences of the partition were folded.
    pub(crate) folds: i64,
    /// By their number.
    pub(crate) differences: Vec<R>,
    /// By their hour.
    pub(crate) totals: Vec<R>,
}

/// Returns the column of an hour.
pub(crate) fn hour_column(hour: DueHour) -> i64 {
    hour.get().into()
}

impl<D: SqlDatabase> SqlStore<D> {
    /// Reads a page: differences behind a number, and totals of a namespace in a range of hours.
    pub(crate) async fn count_rows(
        &self,
        p: i16,
        behind: i64,
        (namespace, hours): (&[u8], &RangeInclusive<i64>),
    ) -> Result<CountRows<D::Row>, StoreError> {
        let params = [
            StatementParam::Int(p.into()),
            StatementParam::Int(p.into()),
            StatementParam::Int(behind),
            StatementParam::Int(bigint(DIFFERENCES_MAX)),
            StatementParam::Bytes(namespace),
            StatementParam::Int(*hours.start()),
            StatementParam::Int(*hours.end()),
            StatementParam::Int(bigint(TOTALS_MAX)),
        ];
        let rows = self.read(SqlRole::Lookups, D::READS.count_rows, &params).await?;
        let mut read =
            CountRows { folds: 0, differences: Vec::with_capacity(rows.len()), totals: Vec::new() };
        for row in rows {
            match row.int(0) {
                0 => read.folds = row.int(1),
                1 => read.differences.push(row),
                _ => read.totals.push(row),
            }
        }
        read.differences.sort_by_key(|row| row.int(1));
        read.totals.sort_by_key(|row| row.int(1));
        Ok(read)
    }

    /// Reads all differences of a partition, and the totals of a namespace in a range of hours.
    async fn all_count_rows(
        &self,
        p: i16,
        namespace: &Namespace,
        hours: RangeInclusive<i64>,
    ) -> Result<CountRows<D::Row>, StoreError> {
        for _ in 0..READS_MAX {
            if let Some(rows) = self.try_all_count_rows(p, namespace, hours.clone()).await? {
                return Ok(rows);
            }
        }
        Err(StoreError::Unavailable("the counts were folded during each read of them".into()))
    }

    /// Returns `None` if the differences were folded between two pages.
    async fn try_all_count_rows(
        &self,
        p: i16,
        namespace: &Namespace,
        mut hours: RangeInclusive<i64>,
    ) -> Result<Option<CountRows<D::Row>>, StoreError> {
        let name = namespace.as_str().as_bytes();
        let mut behind = i64::MIN;
        let mut all: Option<CountRows<D::Row>> = None;
        for _ in 0..PAGES_MAX {
            let page = self.count_rows(p, behind, (name, &hours)).await?;
            let full = page.differences.len() == DIFFERENCES_MAX || page.totals.len() == TOTALS_MAX;
            if let Some(last) = page.differences.last() {
                behind = last.int(1);
            }
            if let Some(last) = page.totals.last() {
                hours = last.int(1) + 1..=*hours.end();
            }
            match &mut all {
                None => all = Some(page),
                Some(all) if all.folds != page.folds => return Ok(None),
                Some(all) => {
                    all.differences.extend(page.differences);
                    all.totals.extend(page.totals);
                }
            }
            if !full {
                return Ok(all);
            }
        }
        let why = format!("partition {p} has too many hours or differences to count");
        Err(StoreError::Unavailable(why.into()))
    }

    /// Reads a row of differences from a page.
    pub(crate) fn read_differences(
        &self,
        p: i16,
        row: &D::Row,
    ) -> Result<ReadDifferences, StoreError> {
        ReadDifferences::read(row, 2, &self.interner).map_err(|error| {
            let place = format!("{}, p = {p}, seq = {}", self.table("difference"), row.int(1));
            self.damage.found("a difference of counts", place, error)
        })
    }

    /// Returns the error that names a damaged row of totals.
    pub(crate) fn damaged_total(
        &self,
        p: i16,
        namespace: &[u8],
        hour: i64,
        error: CodecError,
    ) -> StoreError {
        let (table, ns) = (self.table("total"), D::show_bytes(namespace));
        let place = format!("{table}, p = {p}, ns = {ns}, hour = {hour}");
        let what = if hour == GROUPS { "groups of dead letters" } else { "an hour of due counts" };
        self.damage.found(what, place, error)
    }

    fn table(&self, name: &str) -> String {
        self.database.table(name)
    }

    pub(crate) async fn read_due_counts(
        &self,
        p: i16,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        let [first, last] = [steps.first(), steps.end()].map(DueMinute::hour).map(hour_column);
        let rows = self.all_count_rows(p, namespace, first..=last).await?;
        let mut counts = DueStepCounts::new(steps);
        for row in &rows.differences {
            for (name, minute, by) in self.read_differences(p, row)?.due {
                if name == *namespace {
                    counts.add(minute, by);
                }
            }
        }
        for row in &rows.totals {
            let hour = row.int(1);
            let read = u32::try_from(hour).map_err(|_| CodecError::Invalid("hour"));
            let read = read.and_then(|read| counts.add_hour(DueHour::new(read), row.bytes(5)));
            read.map_err(|error| {
                self.damaged_total(p, namespace.as_str().as_bytes(), hour, error)
            })?;
        }
        Ok(DueCounts { tasks: counts.into_tasks(), until: None })
    }

    pub(crate) async fn read_letter_groups(
        &self,
        p: i16,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        let rows = self.all_count_rows(p, namespace, GROUPS..=GROUPS).await?;
        let groups =
            rows.totals.first().map(|row| read_letter_groups(&mut Reader::new(row.bytes(5))));
        let groups = groups
            .transpose()
            .map_err(|error| self.damaged_total(p, namespace.as_str().as_bytes(), GROUPS, error))?;
        let mut groups = groups.unwrap_or_default();
        for row in &rows.differences {
            for (name, moved) in self.read_differences(p, row)?.letters {
                if name == *namespace {
                    moved.apply_to(&mut groups);
                }
            }
        }
        Ok(groups.iter().collect())
    }
}
