//! What goes wrong below the contract, and what callers are told of it.
//!
//! In: errors of files, bytes and the catalog. Out: a [`StorageFault`] that names the file and the place, and from
//! it a `StoreError`: full, or broken for good.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use punctual_store::StoreError;
use punctual_store::codec::CodecError;

/// Something that no caller did wrong.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum StorageFault {
    #[error("cannot {action} {}: {source}", file.display())]
    Io { action: &'static str, file: PathBuf, source: Arc<io::Error> },
    #[error("{} is damaged at byte {offset}: {what}", file.display())]
    Damaged { file: PathBuf, offset: u64, what: String },
    #[error("a stored {what} cannot be read: {source}")]
    Bytes { what: &'static str, source: CodecError },
    #[error("the catalog failed: {0}")]
    Catalog(Arc<fjall::Error>),
    #[error("{0}")]
    Broken(Arc<str>),
}

impl StorageFault {
    pub(crate) fn io(action: &'static str, file: &Path, source: io::Error) -> Self {
        let source = Arc::new(source);
        Self::Io { action, file: file.to_owned(), source }
    }

    pub(crate) fn damaged(file: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_owned(), offset, what: what.into() }
    }

    /// Whether it passes when there is room again.
    pub(crate) fn means_full(&self) -> bool {
        let full = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::QuotaExceeded
                    | io::ErrorKind::FileTooLarge
            )
        };
        match self {
            Self::Io { source, .. } => full(source),
            // After a failed write the catalog cannot be trusted to have kept a whole batch, so even a full
            // disk is for good there; see `checkpoint` for how it is kept from happening.
            _ => false,
        }
    }
}

impl From<fjall::Error> for StorageFault {
    fn from(error: fjall::Error) -> Self {
        Self::Catalog(Arc::new(error))
    }
}

impl From<StorageFault> for StoreError {
    fn from(fault: StorageFault) -> Self {
        Self::Broken(fault.to_string())
    }
}

/// NameRows what was being read.
pub(crate) trait ReadContext<T> {
    fn reading(self, what: &'static str) -> Result<T, StorageFault>;
}

impl<T> ReadContext<T> for Result<T, CodecError> {
    fn reading(self, what: &'static str) -> Result<T, StorageFault> {
        self.map_err(|source| StorageFault::Bytes { what, source })
    }
}
