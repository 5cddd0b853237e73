//! `punctual rules`: lists, creates and deletes the rules for touches of keys that have no task.

use clap::Subcommand;
use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::input::{read_file, read_json};
use super::output;

#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// List the rules of a namespace by prefix
    #[command(after_help = "Example:\n  punctual rules list home")]
    List(TouchRuleListArgs),
    /// Create a rule, or replace the one with the same prefix
    Put(PutTouchRuleArgs),
    /// Delete a rule; the watches that it has created stay
    #[command(after_help = "Example:\n  punctual rules delete home unit:")]
    Delete(TouchRuleArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TouchRuleListArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TouchRuleArgs {
    /// The namespace
    namespace: String,
    /// How the keys begin
    prefix: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual rules put home unit: --within 48h --queue silent --on-return
  punctual rules put home unit: --within 48h --to https://home.example/silent
  punctual rules put home unit: --file watch.json")]
pub(crate) struct PutTouchRuleArgs {
    #[command(flatten)]
    rule: TouchRuleArgs,
    /// How long a key may be silent before its watch fires
    #[arg(long, value_name = "DURATION", required_unless_present = "file")]
    within: Option<String>,
    /// Webhook that is called
    #[arg(long, value_name = "URL", conflicts_with = "queue")]
    to: Option<String>,
    /// Queue that workers take deliveries from
    #[arg(long, value_name = "QUEUE", required_unless_present_any = ["to", "file"])]
    queue: Option<String>,
    /// Also fire at the first touch after a silence
    #[arg(long)]
    on_return: bool,
    /// JSON file with the watch, with all that a task may have; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["within", "to", "queue", "on_return"])]
    file: Option<String>,
}

impl RulesCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::List(args) => args.run(),
            Self::Put(args) => args.run(),
            Self::Delete(args) => args.delete(),
        }
    }
}

impl TouchRuleListArgs {
    fn run(&self) -> anyhow::Result<()> {
        let answer = self.broker.get(&format!("/v1/{}/rules", part(&self.namespace)))?;
        output::print(&self.broker, &answer, |answer| {
            let columns = ["prefix", "within", "target", "on_return"];
            let mut rows = answer["rules"].clone();
            for row in rows.as_array_mut().into_iter().flatten() {
                let watch = row["create"].take();
                row["within"] = watch["within"].clone();
                row["target"] = watch["target"].to_string().into();
                row["on_return"] = watch["on_return"].as_bool().unwrap_or(false).into();
            }
            output::rows(&rows, &columns)
        })
    }
}

impl TouchRuleArgs {
    fn delete(&self) -> anyhow::Result<()> {
        let answer = self.broker.delete(&self.path())?;
        output::print(&self.broker, &answer, output::fields)
    }

    fn path(&self) -> String {
        format!("/v1/{}/rules/{}", part(&self.namespace), part(&self.prefix))
    }
}

impl PutTouchRuleArgs {
    fn run(&self) -> anyhow::Result<()> {
        let watch = self.watch()?;
        let rule = self.rule.broker.call("PUT", &self.rule.path(), &[], Some(&watch))?;
        output::print(&self.rule.broker, &rule, output::fields)
    }

    fn watch(&self) -> anyhow::Result<Value> {
        if let Some(file) = &self.file {
            return read_json("--file", &read_file(file)?);
        }
        let target = match (&self.to, &self.queue) {
            (Some(url), _) => json!({"http": {"url": url}}),
            (None, queue) => json!({"queue": queue}),
        };
        let mut watch = json!({"within": self.within, "target": target});
        if self.on_return {
            watch["on_return"] = true.into();
        }
        Ok(watch)
    }
}
