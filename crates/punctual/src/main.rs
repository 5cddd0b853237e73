//! The binary `punctual`: reads the command line and runs one command.
//!
//! `serve` runs a broker, `dev` one with a virtual clock. The commands of `cli` call a broker over
//! HTTP. `store`, `export`, `import` and `bench` work on this machine. Only this crate prints for
//! people.

mod cli;
mod dev;
mod docs;
mod error;
mod serve;
mod settings;
mod sql;
mod store;
mod transfer;

use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Context as _;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use punctual_core::zones_version;
use rustix::fs::Mode;

/// Tasks are allocated by one thread and freed by another, for which the allocator of glibc needs a
/// fifth more time and a third more memory.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The output of `--version`. It names the time zone data, because brokers with different data may
/// compute different fire times.
static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{}\ntime zone data {}", env!("CARGO_PKG_VERSION"), zones_version()));

const EXAMPLES: &str = "Examples:
  punctual serve
  punctual schedule shop order-42 --in 15m --to https://shop.example/cancel
  punctual list shop

Run `punctual COMMAND --help` for the flags of a command, with examples.";

/// A timer service: schedule a task, and Punctual calls you back on time
#[derive(Debug, Parser)]
#[command(name = "punctual", version, long_version = LONG_VERSION.as_str())]
#[command(after_help = EXAMPLES)]
struct PunctualArgs {
    #[command(subcommand)]
    command: PunctualCommand,
}

#[derive(Debug, Subcommand)]
enum PunctualCommand {
    /// Run a broker
    Serve(Box<serve::ServeArgs>),
    /// Run a broker for tests: in memory, with a clock that the test moves
    Dev(Box<dev::DevArgs>),
    #[command(flatten)]
    Broker(cli::BrokerCommand),
    /// Inspect the store of a broker that is not running
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Write everything in a store to a file
    Export(transfer::ExportArgs),
    /// Write the contents of an export file to a store
    Import(transfer::ImportArgs),
    /// Measure how fast a broker is on this machine
    Bench(punctual_bench::BenchArgs),
    /// Print what Punctual needs in a database of yours
    #[command(subcommand)]
    Sql(sql::SqlCommand),
    /// Print a completion script for a shell
    Completions(docs::CompletionsArgs),
    /// Print the manual page, or write all manual pages to a directory
    Man(docs::ManArgs),
}

impl PunctualCommand {
    /// Whether the command may create files of a store or of an export.
    const fn writes_stores(&self) -> bool {
        match self {
            Self::Serve(_)
            | Self::Store(_)
            | Self::Export(_)
            | Self::Import(_)
            | Self::Bench(_)
            | Self::Sql(_) => true,
            Self::Dev(_) | Self::Broker(_) | Self::Completions(_) | Self::Man(_) => false,
        }
    }
}

fn main() -> ExitCode {
    let matches = PunctualArgs::command().get_matches();
    let args = PunctualArgs::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(args.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if has_json_flag(&matches) {
                error::print_json(&error);
            } else {
                error::print(&error);
            }
            ExitCode::FAILURE
        }
    }
}

fn run(command: PunctualCommand) -> anyhow::Result<()> {
    // One provider for all TLS connections. Installing it twice fails and is harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if command.writes_stores() {
        // Stores and exports have payloads and headers of callers: no other user may read them.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
    match command {
        PunctualCommand::Serve(args) => runtime()?.block_on(serve::serve(*args)),
        PunctualCommand::Dev(args) => runtime()?.block_on(dev::dev(*args)),
        PunctualCommand::Broker(command) => cli::run(command),
        PunctualCommand::Store(command) => store::run(command, &runtime()?),
        PunctualCommand::Export(args) => runtime()?.block_on(transfer::export(args)),
        PunctualCommand::Import(args) => runtime()?.block_on(transfer::import(args)),
        PunctualCommand::Sql(command) => command.run(),
        PunctualCommand::Bench(args) => {
            let report = runtime()?.block_on(punctual_bench::run(args))?;
            cli::print_line(&report)
        }
        PunctualCommand::Completions(args) => args.run(PunctualArgs::command()),
        PunctualCommand::Man(args) => args.run(PunctualArgs::command()),
    }
}

/// Whether the command has the flag `--json` and it was given.
fn has_json_flag(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, command)) => has_json_flag(command),
        None => matches.try_get_one("json").ok().flatten().copied().unwrap_or(false),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().build().context("cannot start the async runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        PunctualArgs::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_in_its_help() {
        fn check(command: &clap::Command, name: &str) {
            if command.get_name() == "help" {
                return;
            }
            let commands: Vec<_> = command.get_subcommands().collect();
            if commands.is_empty() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains(&format!("\n  {name}")), "{name} has no example: {help}");
            }
            for inner in commands {
                check(inner, &format!("{name} {}", inner.get_name()));
            }
        }
        check(&PunctualArgs::command(), "punctual");
    }
}
