//! The binary: what each command of `punctual` does, one file a command.
//!
//! In: the command line. Out: an exit code. Only here is anything printed.

mod cli;
mod failure;
mod serve;
mod settings;
mod store;
mod transfer;

use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Context as _;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use punctual_core::zones_version;

/// What `--version` says: brokers that differ in the time zone data may differ about a fire.
static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{}\ntime zone data {}", env!("CARGO_PKG_VERSION"), zones_version()));

/// Tell it when; it calls you back on time.
#[derive(Debug, Parser)]
#[command(version, long_version = LONG_VERSION.as_str())]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs a broker.
    Serve(Box<serve::Serve>),
    /// Measures a broker on this machine.
    Bench(punctual_bench::BenchArgs),
    /// Looks at the store of a broker that is not running.
    #[command(subcommand)]
    Store(store::Store),
    /// Writes everything that a store has into one file.
    Export(transfer::ExportArgs),
    /// Puts what an export has into a store.
    Import(transfer::ImportArgs),
    #[command(flatten)]
    Cli(cli::Verb),
}

fn main() -> anyhow::Result<ExitCode> {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(cli.verb) {
        Err(error) if says_json(&matches) => {
            failure::print(&error);
            Ok(ExitCode::FAILURE)
        }
        done => done.map(|()| ExitCode::SUCCESS),
    }
}

fn run(verb: Verb) -> anyhow::Result<()> {
    // One provider for everything that speaks TLS; a second attempt is refused, and harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match verb {
        Verb::Serve(flags) => runtime()?.block_on(serve::serve(*flags)),
        Verb::Bench(args) => {
            let report = runtime()?.block_on(punctual_bench::run(args))?;
            cli::print_line(&report)
        }
        Verb::Store(verb) => store::run(verb, &runtime()?),
        Verb::Export(flags) => runtime()?.block_on(transfer::export(flags)),
        Verb::Import(flags) => runtime()?.block_on(transfer::import(flags)),
        Verb::Cli(verb) => cli::run(verb),
    }
}

/// Whether the command has `--json`, and it was said.
fn says_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, verb)) => says_json(verb),
        None => matches.try_get_one("json").ok().flatten().copied().unwrap_or(false),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().build().context("cannot start the runtime")
}
