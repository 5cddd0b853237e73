//! What a fold writes, for both dialects (`fold` computes it).

/// A row of totals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TotalRow {
    pub(crate) namespace: Vec<u8>,
    pub(crate) hour: i64,
    pub(crate) value: Vec<u8>,
}

/// What a fold writes.
#[derive(Debug, Default)]
pub struct FoldedRows {
    /// How often the differences of the partition were folded before.
    pub(crate) folds: i64,
    /// The numbers of the differences, which are deleted.
    pub(crate) differences: Vec<i64>,
    /// The totals that are deleted, by namespace and hour.
    pub(crate) gone: Vec<(Vec<u8>, i64)>,
    /// The totals that are inserted, after the deletions.
    pub(crate) totals: Vec<TotalRow>,
}
