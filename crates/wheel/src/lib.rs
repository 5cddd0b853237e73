//! A pure hierarchical timing wheel: what is due, in order, never early.
//!
//! In: due times and values; `now` as a plain count of ticks (Punctual uses milliseconds).
//! Out: [`TimerId`]s to cancel by, and at each [`Wheel::advance`] every timer with `due <= now`.
//! Invariant: a timer is given once, at the first advance that has reached it, or never if it was
//! cancelled; timers leave in order of due time, and equal due times in order of insertion.
//! Not here: any clock, thread, IO or durable thing. This crate knows nothing of tasks.
//!
//! # Where a timer lies
//!
//! Eight levels of 256 slots each read a due time as eight digits of one byte. A timer lies at the
//! level of the highest digit in which its due time differs from the wheel's own time, in the slot
//! named by that digit:
//!
//! ```text
//!            level 2          level 1          level 0
//! now        0x..07           0x3c             0x51
//! due      → 0x..07           0x3e             0x10      first difference: level 1, slot 0x3e
//! ```
//!
//! So at any moment one due time has exactly one slot, a lower level is always nearer in time than
//! a higher one, and within a level the slots are in order. When time enters a slot of a higher
//! level, its timers are *cascaded*: dealt out again to lower levels in the order they came. A
//! timer moves at most seven times in its life, twice if it is due within the hour. Empty slots
//! cost nothing, since a bitmap per level says which are occupied; a jump of a century is a few
//! instructions.
//!
//! # Why it is fast
//!
//! At ten million timers only cache misses count, so the arrays are laid out to have few of them:
//!
//! * A slot is a list of ids in chunks of a few cache lines. Inserting appends to one of few hot
//!   tails; cascading streams a list and appends to at most 256 others.
//! * Cancelling touches the timer's record and the slot's counters, and leaves the id behind in its
//!   slot. The record is free at once, so cancel and insert again ("touch") reuse a warm one. The
//!   dead id is dropped when its slot is next read, or when dead ids outnumber the live ones.
//! * Liveness of a whole chunk is asked without branching, so its misses overlap.
//!
//! # What it costs
//!
//! With `T = u32`, 24 bytes a timer: due time 8, value 4, generation 4, id in a slot 8 (with `T = u64`,
//! 32). A dead id costs 8 bytes, and no slot holds more than 62 dead ids above the number of its live ones. Arrays
//! grow by pages, never by doubling; memory once taken is reused, and given back on drop.
//!
//! The pauses: entering a slot of a higher level deals out everything in it at once, at 40 to 70 ns
//! a timer when it comes from main memory. With ten million timers over an hour that is 180,000 of
//! them once in 65 seconds: 7 to 13 ms were measured, and up to 18 ms for a cancel that sweeps such
//! a slot. It is in proportion to the timers of that slot, so a short horizon keeps it small. Dealing
//! out ahead of time, a few at each advance, would remove it; nothing has wanted that yet.

#![forbid(unsafe_code)]

mod wheel;

mod place;

mod occupancy;

mod slot;

mod timers;

mod pages;

#[cfg(any(test, feature = "model"))]
#[doc(hidden)]
pub mod model;

pub use timers::TimerId;
pub use wheel::{Full, TIMERS_MAX, Wheel};
