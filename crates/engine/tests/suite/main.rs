//! Tests of the engine, in one binary so that they are linked once.
//!
//! Most drive an owner as a plain value: the fixture holds a memory store, couriers and the time,
//! and a test decides in which order things happen. `guarantee_scenarios`, `series_scenarios` and
//! `record_scenarios` run random scenarios from seeds. A failing seed is printed: `PUNCTUAL_SEED=n`
//! runs it again, and `PUNCTUAL_SEEDS=20000 cargo test -p punctual-engine --test suite scenarios`
//! runs many.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod callbacks;
mod commands;
mod damage;
mod failover;
mod fixture;
mod guarantee_scenarios;
mod hand_over;
mod idempotency;
mod lane_views;
mod lanes;
mod last_life;
mod lease;
mod lifecycle;
mod recall;
mod record_scenarios;
mod redrive;
mod series;
mod series_scenarios;
mod shares;
mod shell;
mod start_paused;
mod turns;
