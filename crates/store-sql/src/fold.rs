//! Folding: adds the differences of a partition to its totals, and deletes them.
//!
//! The owner does it behind the batch that has made the differences many. It reads them, computes
//! the totals, and replaces both in one transaction, which begins with the row of the seat: it
//! succeeds only under the epoch of the owner, and only if nothing was folded since. Batches may be
//! made between the reads and the transaction, which deletes what was read and nothing else.
//!
//! A row of differences that is damaged stays. A total that is damaged is replaced.

use std::collections::{BTreeMap, HashMap, HashSet};

use punctual_core::{Epoch, Namespace, PartitionId, Seat};
use punctual_store::codec::{
    CodecError, Decoded, DueDifferences, HourCounts, Reader, put_letter_groups, read_letter_groups,
};
use punctual_store::{DueMinute, StoreError};

use crate::database::{BatchEnd, SqlDatabase, SqlRole};
use crate::difference_weights::FOLDED_WEIGHT;
use crate::differences::LetterMove;
use crate::error::store_error;
use crate::folded_rows::{FoldedRows, TotalRow};
use crate::store::SqlStore;
use crate::totals::{DIFFERENCES_MAX, GROUPS, hour_column};
use crate::values::{Columns as _, StatementParam};

/// The number of hours at which a fold ends, so that its transaction is short: it replaces a row
/// for each. One row of differences may have more. The next fold is made behind the next batch.
const FOLDED_HOURS_MAX: usize = 1000;

/// Whether there are differences that a fold does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestOfDifferences {
    Some,
    None,
}

/// Differences that were read.
#[derive(Default)]
struct ReadRows {
    due: DueDifferences,
    letters: BTreeMap<Namespace, Vec<LetterMove>>,
    numbers: Vec<i64>,
}

/// What a total changes by.
enum TotalMove {
    Due(Vec<(DueMinute, i64)>),
    Letters(Vec<LetterMove>),
}

impl TotalMove {
    /// Returns the total after the move; `None` if nothing is left.
    fn added_to(self, total: Option<&[u8]>, damaged: impl FnOnce(CodecError)) -> Option<Vec<u8>> {
        match self {
            Self::Due(moved) => {
                let mut counts = read_or_default(total, HourCounts::read, damaged);
                moved.iter().for_each(|(minute, by)| counts.add(*minute, *by));
                counts.to_bytes()
            }
            Self::Letters(moved) => {
                let read = |bytes: &[u8]| read_letter_groups(&mut Reader::new(bytes));
                let mut groups = read_or_default(total, read, damaged);
                moved.into_iter().for_each(|one| one.apply_to(&mut groups));
                let mut bytes = Vec::new();
                put_letter_groups(&mut bytes, &groups);
                (!groups.is_empty()).then_some(bytes)
            }
        }
    }
}

fn read_or_default<T: Default>(
    total: Option<&[u8]>,
    read: impl FnOnce(&[u8]) -> Decoded<T>,
    damaged: impl FnOnce(CodecError),
) -> T {
    match total.map(read) {
        None => T::default(),
        Some(Ok(total)) => total,
        Some(Err(error)) => {
            damaged(error);
            T::default()
        }
    }
}

impl<D: SqlDatabase> SqlStore<D> {
    /// Folds the differences of a partition if they are many. A fold that fails is tried again
    /// behind a later batch; what the batch has changed is durable in any case.
    pub(crate) async fn fold_if_many(&self, partition: PartitionId, epoch: Epoch) {
        if !self.weights.take(partition) {
            return;
        }
        if let Err(error) = self.fold(partition, epoch).await {
            tracing::warn!(%partition, %error, "differences of counts not folded");
            self.weights.add(partition, FOLDED_WEIGHT / 2);
        }
    }

    async fn fold(&self, partition: PartitionId, epoch: Epoch) -> Result<(), StoreError> {
        let p = self.column(partition)?;
        let writer = self.writer(Seat::Partition(partition), epoch)?;
        let (rows, rest) = self.folded_rows(p).await?;
        if rows.differences.is_empty() {
            return Ok(());
        }
        let slot = usize::from(partition.get());
        let made = self.database.fold(slot, p, &writer, rows).await;
        // If it is refused, the seat has another epoch, whose owner folds.
        if made.map_err(store_error::<D>)? == BatchEnd::Made && rest == RestOfDifferences::Some {
            self.weights.forget(partition);
        }
        Ok(())
    }

    /// Computes what the next fold writes, and whether there are differences behind it.
    async fn folded_rows(&self, p: i16) -> Result<(FoldedRows, RestOfDifferences), StoreError> {
        // No total has an empty namespace: only differences are read.
        let page = self.count_rows(p, i64::MIN, (b"", &(GROUPS..=GROUPS))).await?;
        let mut read = ReadRows::default();
        let mut hours = HashSet::new();
        let mut rest = match page.differences.len() {
            DIFFERENCES_MAX => RestOfDifferences::Some,
            _ => RestOfDifferences::None,
        };
        for row in &page.differences {
            // What is damaged is logged and counted.
            let Ok(differences) = self.read_differences(p, row) else { continue };
            for (namespace, minute, by) in differences.due {
                read.due.add_to(&namespace, minute, by);
                hours.insert((namespace, minute.hour()));
            }
            for (namespace, moved) in differences.letters {
                read.letters.entry(namespace).or_default().push(moved);
            }
            read.numbers.push(row.int(1));
            if hours.len() >= FOLDED_HOURS_MAX {
                rest = RestOfDifferences::Some;
                break;
            }
        }
        let ReadRows { due, letters, numbers } = read;
        let mut moves: BTreeMap<(Namespace, i64), TotalMove> = BTreeMap::new();
        for ((namespace, hour), moved) in due.by_hour() {
            moves.insert((namespace.clone(), hour_column(hour)), TotalMove::Due(moved));
        }
        for (namespace, moved) in letters {
            moves.insert((namespace, GROUPS), TotalMove::Letters(moved));
        }
        let found = self.read_totals(p, moves.keys()).await?;
        let mut rows =
            FoldedRows { folds: page.folds, differences: numbers, ..FoldedRows::default() };
        for ((namespace, hour), moved) in moves {
            let key = (namespace.as_str().as_bytes().to_vec(), hour);
            let total = found.get(&key);
            let damaged = |error| _ = self.damaged_total(p, &key.0, hour, error);
            if let Some(value) = moved.added_to(total.map(Vec::as_slice), damaged) {
                rows.totals.push(TotalRow { namespace: key.0.clone(), hour, value });
            }
            if total.is_some() {
                rows.gone.push(key);
            }
        }
        Ok((rows, rest))
    }

    /// Reads totals by their namespace and hour.
    async fn read_totals(
        &self,
        p: i16,
        keys: impl ExactSizeIterator<Item = &(Namespace, i64)>,
    ) -> Result<HashMap<(Vec<u8>, i64), Vec<u8>>, StoreError> {
        let mut found = HashMap::with_capacity(keys.len());
        let keys: Vec<_> = keys.collect();
        for keys in keys.chunks(D::ITEMS_MAX) {
            let (names, hours): (Vec<&[u8]>, Vec<i64>) =
                keys.iter().map(|(name, hour)| (name.as_str().as_bytes(), *hour)).unzip();
            let params = [
                StatementParam::Int(p.into()),
                StatementParam::Names(&names),
                StatementParam::Ints(&hours),
            ];
            for row in self.read(SqlRole::Lookups, D::READS.totals, &params).await? {
                found.insert((row.bytes(0).to_vec(), row.int(1)), row.bytes(2).to_vec());
            }
        }
        Ok(found)
    }
}
