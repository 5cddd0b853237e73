//! Why a broker could not start, or stopped on its own.

use punctual_store::StoreError;

use crate::config::ConfigError;

/// Why a broker could not start, or stopped on its own.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed.
    #[error("the store stopped the broker")]
    Store(#[from] StoreError),
    /// The operating system refused something, such as the listener.
    #[error("cannot start")]
    Io(#[from] std::io::Error),
}
