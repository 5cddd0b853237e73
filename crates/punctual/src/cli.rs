//! The commands that call a broker: the verbs of the API, for people and for scripts.
//!
//! A command prints a table, or with `--json` the response of the broker as one line. A refusal of
//! the broker is one sentence, or with `--json` one object, and exit code 1 (see `error`). There is
//! one file per command or small group of commands; `broker` makes the calls, `output` prints.

mod actions;
mod alarms;
mod broker;
mod connections;
mod dead;
mod deliveries;
mod explain;
mod fires;
mod input;
mod lanes;
mod listen;
mod live;
mod named;
mod namespaces;
mod operations;
mod output;
mod pages;
mod preview;
mod rules;
mod schedule;
mod stats;
mod tasks;
mod time;
mod topology;
mod verify;
mod whoami;
mod workers;

use clap::Subcommand;

pub(crate) use output::{Style, print_bytes, print_line};

#[derive(Debug, Subcommand)]
pub(crate) enum BrokerCommand {
    /// Create a task, or replace the task with the same key; or create the tasks of a file
    Schedule(Box<schedule::ScheduleArgs>),
    /// Show a task
    #[command(after_help = "Example:\n  punctual show shop order-42")]
    Show(tasks::TaskArgs),
    /// List tasks by due time
    List(tasks::ListArgs),
    /// Move the next fire of tasks, and create watches that are missing
    Touch(named::TouchArgs),
    /// Cancel tasks before their next fire
    Cancel(named::CancelArgs),
    /// Pause a task: it does not fire until it is resumed
    #[command(after_help = "Example:\n  punctual pause shop daily-report")]
    Pause(tasks::TaskArgs),
    /// Resume a paused task
    #[command(after_help = "Example:\n  punctual resume shop daily-report")]
    Resume(tasks::TaskArgs),
    /// Fire a task now, once, in addition to its schedule
    #[command(after_help = "Example:\n  punctual fire shop daily-report")]
    Fire(tasks::TaskArgs),
    /// Show the fires of a task, newest first
    #[command(after_help = "Example:\n  punctual history shop daily-report")]
    History(tasks::TaskArgs),
    /// Say what a task waits for, or how it ended
    Explain(explain::ExplainArgs),
    /// List the fires of all tasks that have ended, newest first
    Fires(fires::FiresArgs),
    /// List, redrive or delete dead letters
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// List, show, create, delete or test alarms
    #[command(subcommand)]
    Alarms(alarms::AlarmsCommand),
    /// List, create or delete rules: what a touch of a key without a task creates
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Count the tasks of a namespace by state
    Stats(stats::StatsArgs),
    /// List all namespaces with their counts; needs an admin token
    Namespaces(namespaces::NamespacesArgs),
    /// List the connections and sources of a broker, or test them; needs an admin token
    Connections(connections::ConnectionsArgs),
    /// List the queues of a namespace: what waits, and how many workers take it
    Queues(workers::QueuesArgs),
    /// List the targets that deliveries wait for: what is in flight, and what has failed lately
    Lanes(lanes::LanesArgs),
    /// List the workers that are connected
    Workers(workers::WorkersArgs),
    /// Show how many fires are expected in each hour
    Forecast(stats::ForecastArgs),
    /// Show what ended in each step of the last hours
    Series(stats::EndSeriesArgs),
    /// Show what happens, one line a second
    Live(live::LiveArgs),
    /// Change all tasks that match, and show or stop that
    #[command(subcommand)]
    Operations(operations::OperationsCommand),
    /// List what operators did, newest first
    Actions(actions::ActionsArgs),
    /// Show the next fire times of a cron expression, without a broker
    Preview(preview::PreviewArgs),
    /// Show the brokers of a cluster and their partitions
    Topology(topology::TopologyArgs),
    /// Show what the token grants, and which broker answers
    Whoami(whoami::WhoAmIArgs),
    /// Receive deliveries of a queue, print them and ack them
    Listen(listen::ListenArgs),
    /// Take deliveries of a queue, to settle them later
    Lease(deliveries::LeaseArgs),
    /// Settle deliveries as done
    Ack(deliveries::AckArgs),
    /// Settle a delivery as failed: it is delivered again
    Fail(deliveries::FailArgs),
    /// Settle a delivery as refused: it becomes a dead letter
    Refuse(deliveries::RefuseArgs),
    /// Give a delivery more time
    Extend(deliveries::ExtendArgs),
    /// Check the signature of a webhook, without a broker
    Verify(verify::VerifyArgs),
}

/// Runs a command.
pub(crate) fn run(command: BrokerCommand) -> anyhow::Result<()> {
    match command {
        BrokerCommand::Schedule(args) => args.run(),
        BrokerCommand::Show(args) => args.show(),
        BrokerCommand::List(args) => args.run(),
        BrokerCommand::Touch(args) => args.run(),
        BrokerCommand::Cancel(args) => args.run(),
        BrokerCommand::Pause(args) => args.change("pause"),
        BrokerCommand::Resume(args) => args.change("resume"),
        BrokerCommand::Fire(args) => args.change("fire"),
        BrokerCommand::History(args) => args.history(),
        BrokerCommand::Explain(args) => args.run(),
        BrokerCommand::Fires(args) => args.run(),
        BrokerCommand::Queues(args) => args.run(),
        BrokerCommand::Lanes(args) => args.run(),
        BrokerCommand::Workers(args) => args.run(),
        BrokerCommand::Dead(command) => command.run(),
        BrokerCommand::Alarms(command) => command.run(),
        BrokerCommand::Rules(command) => command.run(),
        BrokerCommand::Stats(args) => args.run(),
        BrokerCommand::Namespaces(args) => args.run(),
        BrokerCommand::Connections(args) => args.run(),
        BrokerCommand::Forecast(args) => args.run(),
        BrokerCommand::Series(args) => args.run(),
        BrokerCommand::Operations(command) => command.run(),
        BrokerCommand::Live(args) => args.run(),
        BrokerCommand::Actions(args) => args.run(),
        BrokerCommand::Preview(args) => args.run(),
        BrokerCommand::Topology(args) => args.run(),
        BrokerCommand::Whoami(args) => args.run(),
        BrokerCommand::Listen(args) => args.run(),
        BrokerCommand::Lease(args) => args.run(),
        BrokerCommand::Ack(args) => args.run(),
        BrokerCommand::Fail(args) => args.run(),
        BrokerCommand::Refuse(args) => args.run(),
        BrokerCommand::Extend(args) => args.run(),
        BrokerCommand::Verify(args) => args.run(),
    }
}
