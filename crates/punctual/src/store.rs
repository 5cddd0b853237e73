//! `punctual store`: looks at the store of a broker that is not running.
//!
//! In: a data directory. Out: a table for people, or one JSON object for machines; exit code 1 when something is wrong. A store that
//! is in use is refused, and whoever holds it is named.

#![expect(clippy::print_stdout, reason = "this is what a person or a script reads")]

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use punctual_store_embedded::{check, stats};
use serde_json::{Map, Value, json};

#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    /// Reads everything, verifies it and reports. Changes nothing.
    Check(Where),
    /// Shows what there is, and what it takes on disk and in memory.
    Stats(Where),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Where {
    /// The data directory of the broker.
    dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Does it.
pub(crate) fn run(verb: Store, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    // The store's own readers want a runtime to run on.
    let _guard = runtime.enter();
    match verb {
        Store::Check(place) => run_check(&place),
        Store::Stats(place) => run_stats(&place),
    }
}

fn run_check(place: &Where) -> anyhow::Result<()> {
    let report = check(&place.dir).with_context(|| cannot("check", place))?;
    print(
        place,
        json!({
            "scheduled": report.scheduled,
            "paused": report.paused,
            "names": report.names,
            "dead_letters": report.dead_letters,
            "history_records": report.records,
            "runs": report.runs,
            "run_bytes": report.run_bytes,
            "commits_in_journal_only": report.replayed,
            "problems": report.problems,
        }),
    );
    match report.problems.len() {
        0 => Ok(()),
        1 => bail!("one problem was found"),
        count => bail!("{count} problems were found"),
    }
}

fn run_stats(place: &Where) -> anyhow::Result<()> {
    let stats = stats(&place.dir).with_context(|| cannot("open", place))?;
    print(
        place,
        json!({
            "tasks_buffered": stats.tasks_buffered,
            "tasks_in_runs": stats.tasks_in_runs,
            "tasks_ended": stats.tasks_ended,
            "slices": stats.slices,
            "runs": stats.runs,
            "run_bytes": stats.run_bytes,
            "history_runs": stats.history_runs,
            "history_bytes": stats.history_bytes,
            "catalog_bytes": stats.catalog_bytes,
            "journal_bytes": stats.journal_bytes,
            "buffer_bytes": stats.buffer_bytes,
            "index_bytes": stats.index_bytes,
            "journal_room_bytes": stats.journal_room_bytes,
            "journal_room_refused": stats.journal_room_refused,
        }),
    );
    Ok(())
}

fn cannot(verb: &str, place: &Where) -> String {
    format!("cannot {verb} the store in {}", place.dir.display())
}

fn print(place: &Where, report: Value) {
    if place.json {
        println!("{report}");
        return;
    }
    let fields: Map<String, Value> = report.as_object().cloned().unwrap_or_default();
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &fields {
        match value {
            Value::Array(items) if items.is_empty() => println!("{name:width$}  none"),
            Value::Array(items) => {
                println!("{name}:");
                items.iter().for_each(|item| println!("  {}", item.as_str().unwrap_or_default()));
            }
            value => println!("{name:width$}  {value}"),
        }
    }
}
