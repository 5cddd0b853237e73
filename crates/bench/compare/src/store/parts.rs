//! The parts of the bench. Each runs in its own process, so that memory and CPU time are its own.
//!
//! A part gets a directory and a number of tasks, and returns figures. It checks its work by
//! counts, by order and by a sum over ids.

mod end;
mod fires;
mod insert;
mod open;
mod touch;

pub use end::{cancel, fire};
pub use fires::{FIRE_READS, fire_read, fires};
pub use insert::{TENTHS, insert};
pub use open::open;
pub use touch::touch;

/// Keys in the parts `touch` and `fires`.
pub const KEYS: u64 = 1_000_000;
/// Spreads consecutive numbers over all: prime, and larger than the share of an owner in usual
/// runs.
const STRIDE: u64 = 1_000_003;
