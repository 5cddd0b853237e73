//! The SQL store: the contracts of `punctual_store` in a PostgreSQL database that brokers share.
//!
//! A batch is one transaction that is sent in one go. Its first statement moves the number of the
//! batch in the row of the partition's seat, if epoch, token, number and repair allow it, and fails
//! otherwise; the database then refuses everything behind it. So a stale owner changes nothing, and
//! a batch that is sent again is made once.
//!
//! `postgres/schema` has the tables, `batch` folds the changes of a batch, `apply` writes them,
//! `read` and `pages` read, `leases` and `membership` are about brokers, `open` creates a store and
//! checks the server.

mod apply;
mod batch;
mod damage;
mod error;
mod inspect;
mod leases;
mod membership;
mod open;
mod options;
mod pages;
mod postgres;
mod read;
mod store;
mod sweep;

pub use error::SqlOpenError;
pub use options::{SqlDurability, SqlStoreOptions};
pub use store::PostgresStore;
