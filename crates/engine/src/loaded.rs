//! Tasks that are due soon are copied from the store into memory, and fire there on time.
//!
//! `load` reads the store ahead of time; `tasks` holds the copies and their timers; `fire` takes
//! the tasks whose time has come and passes them to `delivery`. Losing all of it loses nothing: the
//! store has every task.

pub(crate) mod budget;
pub(crate) mod fire;
pub(crate) mod load;
pub(crate) mod loaded_ref;
pub(crate) mod loader;
pub(crate) mod tasks;
