//! The SQL store: the contracts of `punctual_store` in a PostgreSQL, MySQL or MariaDB database that
//! brokers share.
//!
//! A batch is one transaction that is sent in one go. Its first statement moves the number of the
//! batch in the row of the partition's seat, if epoch, token, number and repair allow it, and fails
//! otherwise; the database then refuses everything behind it. So a stale owner changes nothing, and
//! a batch that is sent again is made once.
//!
//! `database` is the seam between the store and the dialects `postgres` and `mysql`, which have the
//! tables, the statements and the connections. `batch` folds the changes of a batch and `rows` has
//! their columns, `apply` writes them and explains refusals, `read` and `pages` read, `leases` and
//! `membership` are about brokers, `open` creates a store. Due counts and groups of dead letters
//! are `differences`, which batches append, and `totals`, to which `fold` adds them.

mod apply;
mod batch;
mod damage;
mod database;
mod difference_weights;
mod differences;
mod error;
mod fold;
mod folded_rows;
mod inspect;
mod leases;
mod membership;
mod mysql;
mod open;
mod options;
mod pages;
mod postgres;
mod read;
mod rows;
mod store;
mod sweep;
mod totals;
mod values;

pub use database::SqlDatabase;
pub use error::SqlOpenError;
pub use options::{SqlDurability, SqlStoreOptions};
pub use store::{MysqlStore, PostgresStore, SqlStore};
