//! Redis, as the store of brokers or beside the broker: a server of its own, and the work of a row
//! as a program on Redis does it.
//!
//! `server` runs the process, `connection` speaks its protocol over a socket, and `work` has the
//! commands. They are chosen in favour of Redis: the fewest commands that do the work, no
//! transaction around them, and no client library. `docs/performance.md` lists them.

mod connection;
mod server;
pub(crate) mod work;

pub use connection::RespConnection;
pub use server::{BenchRedis, Fsync};
