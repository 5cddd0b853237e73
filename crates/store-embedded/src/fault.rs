//! Errors of the disk and of stored bytes, and what callers get for them.
//!
//! A [`StorageFault`] names the file and the offset. Callers get a `StoreError` that says that the
//! disk is full or that the store is broken.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use punctual_store::StoreError;
use punctual_store::codec::CodecError;

/// An error that no caller caused.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum StorageFault {
    #[error("cannot {action} {}: {source}", file.display())]
    Io { action: &'static str, file: PathBuf, source: Arc<io::Error> },
    #[error("{} is damaged at byte {offset}: {what}", file.display())]
    Damaged { file: PathBuf, offset: u64, what: String },
    #[error("cannot decode a stored {what}: {source}")]
    Bytes { what: &'static str, source: CodecError },
    #[error("the catalog returned an error: {0}")]
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

    /// The file that the error is about.
    pub(crate) const fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Io { file, .. } | Self::Damaged { file, .. } => Some(file),
            Self::Bytes { .. } | Self::Catalog(_) | Self::Broken(_) => None,
        }
    }

    /// Whether the error ends when the disk has free space again.
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
            // After a failed write the catalog may have kept half a batch, so even a full disk
            // breaks the store there. `checkpoint` checks the free space first to prevent that.
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

/// Adds what was being read to an error of the codec.
pub(crate) trait ReadContext<T> {
    fn reading(self, what: &'static str) -> Result<T, StorageFault>;
}

impl<T> ReadContext<T> for Result<T, CodecError> {
    fn reading(self, what: &'static str) -> Result<T, StorageFault> {
        self.map_err(|source| StorageFault::Bytes { what, source })
    }
}
