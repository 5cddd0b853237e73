//! A hierarchical timing wheel: gives timers when they are due, in order, and never early.
//!
//! [`Wheel::insert`] takes a due time and a value and returns a [`TimerId`] to cancel the timer.
//! [`Wheel::advance`] gives every timer with `due <= now`, ordered by due time, and by insertion
//! where due times are equal. Each timer is given once, or never if it was cancelled. `now` is an
//! argument that counts ticks (Punctual uses milliseconds): there is no clock, thread or IO here,
//! and nothing about tasks.
//!
//! # Which slot a timer is in
//!
//! There are eight levels of 256 slots. They read a due time as eight digits of one byte. A timer
//! is at the level of the highest digit in which its due time differs from the wheel's time, in the
//! slot with the number of that digit:
//!
//! ```text
//!            level 2          level 1          level 0
//! now        0x..07           0x3c             0x51
//! due      → 0x..07           0x3e             0x10      first difference: level 1, slot 0x3e
//! ```
//!
//! So at any moment a due time has exactly one slot, a lower level is always nearer in time than a
//! higher one, and within a level the slots are in order. When time enters a slot of a higher
//! level, its timers are *cascaded*: moved to lower levels, in their order. A timer moves at most
//! seven times, and at most twice if it is due within the hour. Empty slots cost nothing, because a
//! bitmap per level records which are occupied. A jump of a century takes a few instructions.
//!
//! # Why it is fast
//!
//! With ten million timers, cache misses take most of the time. The arrays are laid out to avoid
//! them:
//!
//! * A slot is a list of ids in chunks of a few cache lines. An insert appends to one of a few hot
//!   chunks; a cascade reads one list and appends to at most 256 others.
//! * A cancel changes the timer's record and the slot's counters, and leaves the id in its slot.
//!   The record is free at once, so cancel and insert (a touch) reuse a record that is in the
//!   cache. The dead id is dropped when its slot is next read, or when dead ids outnumber the live
//!   ones.
//! * The check which ids of a chunk are live has no branches, so its cache misses overlap.
//!
//! # What it costs
//!
//! With `T = u32`, a timer takes 24 bytes: due time 8, value 4, generation 4, id in a slot 8. With
//! `T = u64` it takes 32. A dead id takes 8 bytes, and a slot has at most 62 dead ids more than
//! live ones. Arrays grow by pages and never move; memory is reused, and returned when the wheel is
//! dropped.
//!
//! A cascade moves all timers of a slot at once, at 40 to 70 ns a timer when they come from main
//! memory. With ten million timers over an hour that is 180,000 timers every 65 seconds, measured
//! at 7 to 13 ms, and up to 18 ms for a cancel that sweeps such a slot. The pause is proportional
//! to the timers in the slot, so a short horizon keeps it small. Moving a few timers at each
//! advance would avoid it; so far that was not needed.

#![forbid(unsafe_code)]

mod occupancy;
mod pages;
mod slot;
mod slot_index;
mod timers;
mod wheel;

#[cfg(any(test, feature = "model"))]
#[doc(hidden)]
pub mod model;

pub use timers::TimerId;
pub use wheel::{Full, TIMERS_MAX, Wheel};
