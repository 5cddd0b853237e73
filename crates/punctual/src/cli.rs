//! The commands that speak to a broker: the same verbs as the API, for people and for scripts.
//!
//! In: the command line. Out: a table, or with `--json` what the broker answered, one document a line. What the broker refuses becomes
//! one sentence, or with `--json` one object (`failure`), and exit code 1. One file a verb, or a small group of them; `broker` is the way there and back, `show` how it looks.

mod broker;
mod dead;
mod listen;
mod preview;
mod schedule;
mod show;
mod stats;
mod tasks;
mod topology;

use clap::Subcommand;

pub(crate) use show::line as print_line;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Creates a task, or replaces the one that the key names.
    Schedule(Box<schedule::Schedule>),
    /// Stops tasks before their next fire.
    Cancel(tasks::Cancel),
    /// Moves the next fire of a task.
    Touch(tasks::Touch),
    /// Shows a task.
    Show(tasks::One),
    /// Lists tasks in the order of their time.
    List(tasks::List),
    /// Lets a task wait until it is resumed.
    Pause(tasks::One),
    /// Lets a paused task go on.
    Resume(tasks::One),
    /// Fires a task now, once, besides its schedule.
    Fire(tasks::One),
    /// Shows the fires of a task, newest first.
    History(tasks::One),
    /// Looks after dead letters.
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Counts tasks by state.
    Stats(stats::Stats),
    /// Shows how many fires are expected when.
    Forecast(stats::Forecast),
    /// Shows when a cron expression fires next. Needs no broker.
    Preview(preview::Preview),
    /// Shows brokers and their partitions, as a picture.
    Topology(topology::Topology),
    /// Works on a queue: prints deliveries and acks them.
    Listen(listen::Listen),
}

/// Does it.
pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Schedule(verb) => verb.run(),
        Verb::Cancel(verb) => verb.run(),
        Verb::Touch(verb) => verb.run(),
        Verb::Show(verb) => verb.show(),
        Verb::List(verb) => verb.run(),
        Verb::Pause(verb) => verb.change("pause"),
        Verb::Resume(verb) => verb.change("resume"),
        Verb::Fire(verb) => verb.change("fire"),
        Verb::History(verb) => verb.history(),
        Verb::Dead(verb) => verb.run(),
        Verb::Stats(verb) => verb.run(),
        Verb::Forecast(verb) => verb.run(),
        Verb::Preview(verb) => verb.run(),
        Verb::Topology(verb) => verb.run(),
        Verb::Listen(verb) => verb.run(),
    }
}
