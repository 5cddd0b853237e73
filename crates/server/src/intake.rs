//! Applies the commands of sources like calls of the API.
//!
//! A command is parsed and checked as a request is, and goes to the owner of its partition. A
//! schedule has a receipt under the id of the command, so that it creates no second task when the
//! source gives it again. A touch, cancel, pause or resume of a key without a task is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_connectors::{Applied, DynFuture, Intake, SourceCommand, Verb};
use punctual_core::{Invalid, Namespace, PartitionId, TaskKey, partition_of};
use punctual_engine::{Command, Condition, EngineError, Receipt, Subject};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::api::command_batch::{CommandBatch, CommandResult};
use crate::api::http::tasks::{checked, parse_task, touch_to};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::task_form::TaskToSchedule;
use crate::touch_rules::TouchRules;

/// Applies the commands of one source.
#[derive(Debug)]
pub(crate) struct BrokerIntake {
    broker: Arc<Broker>,
    /// The target of tasks that have none, as JSON text.
    target: Option<String>,
}

impl BrokerIntake {
    pub(crate) fn new(broker: Arc<Broker>, target: Option<&serde_json::Value>) -> Self {
        Self { broker, target: target.map(ToString::to_string) }
    }

    /// Checks the task that touches of a source create.
    pub(crate) fn check_create(&self, text: &str, namespace: &Namespace) -> Result<(), Problem> {
        let task = self.task(text, namespace, None)?;
        if task.new_task.key.is_some() {
            return Err(Invalid::new("key", "must be left out; a touch names the key").into());
        }
        Ok(())
    }

    async fn apply_all(&self, commands: Vec<SourceCommand>) -> Vec<Applied> {
        let mut batch = CommandBatch::default();
        let mut results: Vec<Option<Applied>> = Vec::with_capacity(commands.len());
        for command in &commands {
            results.push(match self.command(command) {
                Ok((partition, command)) => {
                    batch.push(partition, command);
                    None
                }
                Err(problem) => Some(rejected(&problem)),
            });
        }
        let mut replies = batch.run(&self.broker.owners).await.into_iter();
        let mut missing = Vec::new();
        for (at, result) in results.iter_mut().enumerate() {
            if result.is_some() {
                continue;
            }
            let reply = replies.next().unwrap_or(Err(EngineError::Lost));
            if commands[at].verb == Verb::Touch && reply == Err(EngineError::NotFound) {
                missing.push(at);
            }
            *result = Some(applied(commands[at].verb, reply));
        }
        self.create_missing(&commands, &missing, &mut results).await;
        results.into_iter().flatten().collect()
    }

    /// Creates the tasks of touched keys that have none, if their source or a rule of the namespace
    /// says which.
    async fn create_missing(
        &self,
        commands: &[SourceCommand],
        missing: &[usize],
        results: &mut [Option<Applied>],
    ) {
        let mut rules: BTreeMap<&Namespace, TouchRules> = BTreeMap::new();
        let (mut batch, mut created) = (CommandBatch::default(), Vec::new());
        for at in missing {
            let command = &commands[*at];
            let create = match self.create(command, &mut rules).await {
                Ok(Some(create)) => create,
                Ok(None) => continue,
                Err(result) => {
                    results[*at] = Some(result);
                    continue;
                }
            };
            batch.push(create.0, create.1);
            created.push(*at);
        }
        if created.is_empty() {
            return;
        }
        let replies = batch.run(&self.broker.owners).await;
        for (at, reply) in created.into_iter().zip(replies) {
            results[at] = Some(match reply {
                // Another caller has created it meanwhile: the next try touches it.
                Err(EngineError::Exists(_)) => Applied::Later("touched meanwhile".to_owned()),
                reply => applied(Verb::Schedule, reply),
            });
        }
    }

    /// The command that creates the task of a touched key.
    async fn create<'a>(
        &self,
        command: &'a SourceCommand,
        rules: &mut BTreeMap<&'a Namespace, TouchRules>,
    ) -> Result<Option<(PartitionId, Command)>, Applied> {
        let namespace = &command.namespace;
        let Ok(key) = task_key(command) else { return Ok(None) };
        let partition = self.partition(namespace, &key);
        if let Some(text) = &command.create {
            let task = self.task(text, namespace, Some(key));
            let task = task.map_err(|problem| rejected(&problem))?;
            let schedule = task.into_command(Condition::Absent, None);
            return Ok(Some((partition, Command::Schedule(schedule))));
        }
        if !rules.contains_key(namespace) {
            let read = TouchRules::read(&self.broker, namespace).await;
            rules.insert(namespace, read.map_err(|error| Applied::Later(error.to_string()))?);
        }
        let create = rules.get(namespace).and_then(|rules| rules.create(&key));
        Ok(create.map(|create| (partition, create)))
    }

    /// Checks a task in JSON, with the target of the source if it has none.
    fn task(
        &self,
        text: &str,
        namespace: &Namespace,
        key: Option<TaskKey>,
    ) -> Result<TaskToSchedule, Problem> {
        let whole = self.target.as_deref().and_then(|target| with_target(text, target));
        let body = parse_task(whole.as_deref().unwrap_or(text).as_bytes())?;
        checked(&self.broker, body, namespace, key)
    }

    fn partition(&self, namespace: &Namespace, key: &TaskKey) -> PartitionId {
        partition_of(namespace, key, self.broker.owners.partitions())
    }

    fn command(&self, command: &SourceCommand) -> Result<(PartitionId, Command), Problem> {
        let namespace = &command.namespace;
        if command.verb == Verb::Schedule {
            return self.schedule(command);
        }
        let key = task_key(command)?;
        let partition = self.partition(namespace, &key);
        let subject = Subject::Key(namespace.clone(), key);
        let command = match command.verb {
            Verb::Cancel => Command::Cancel(subject),
            Verb::Pause => Command::Pause(subject),
            Verb::Resume => Command::Resume(subject),
            Verb::Touch | Verb::Schedule => {
                let body = command.task.as_deref().unwrap_or_default();
                Command::Touch(subject, touch_to(body.as_bytes())?)
            }
        };
        Ok((partition, command))
    }

    fn schedule(&self, command: &SourceCommand) -> Result<(PartitionId, Command), Problem> {
        let text = command.task.as_deref();
        let text = text.ok_or_else(|| Invalid::new("task", "must be given to schedule"))?;
        let key = command.key.as_deref().map(TaskKey::new).transpose()?;
        let task = self.task(text, &command.namespace, key)?;
        let name = blake3::hash(command.id.as_bytes()).to_hex();
        let receipt = Receipt { key: TaskKey::new(&name)?, digest: command.digest.clone() };
        let partition = match &task.new_task.key {
            Some(key) => self.partition(&command.namespace, key),
            None => self.partition(&command.namespace.of_receipts(), &receipt.key),
        };
        let schedule = task.into_command(Condition::Always, Some(receipt));
        Ok((partition, Command::Schedule(schedule)))
    }
}

impl Intake for BrokerIntake {
    fn apply(&self, commands: Vec<SourceCommand>) -> DynFuture<'_, Vec<Applied>> {
        Box::pin(self.apply_all(commands))
    }
}

fn task_key(command: &SourceCommand) -> Result<TaskKey, Invalid> {
    let problem = || Invalid::new("key", format!("must be given to {}", command.verb.as_str()));
    TaskKey::new(command.key.as_deref().ok_or_else(problem)?)
}

/// The task with a target, if it is an object without one.
fn with_target(text: &str, target: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Targeted {
        target: Option<IgnoredAny>,
    }
    let is_targeted = serde_json::from_str::<Targeted>(text).ok()?.target.is_some();
    let rest = text.trim_start().strip_prefix('{').filter(|_| !is_targeted)?;
    Some(match rest.trim_start().starts_with('}') {
        true => format!("{{\"target\":{target}}}"),
        false => format!("{{\"target\":{target},{rest}"),
    })
}

fn applied(verb: Verb, reply: CommandResult) -> Applied {
    let error = match reply {
        Ok(_) => return Applied::Done,
        Err(EngineError::NotFound) if verb != Verb::Schedule => return Applied::Done,
        Err(error) => error,
    };
    match error {
        EngineError::Busy
        | EngineError::Full(_)
        | EngineError::Stopped
        | EngineError::StoreUnavailable
        | EngineError::Lost
        | EngineError::NotFound
        | EngineError::Firing(_) => Applied::Later(error.to_string()),
        other => rejected(&Problem::from(other)),
    }
}

fn rejected(problem: &Problem) -> Applied {
    let text = serde_json::to_string(problem);
    Applied::Rejected(text.unwrap_or_else(|_| problem.detail().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_without_a_target_gets_that_of_its_source() {
        for (text, expected) in [
            ("{\"in\":\"1s\"}", Some("{\"target\":T,\"in\":\"1s\"}")),
            (" { \"in\":1}", Some("{\"target\":T, \"in\":1}")),
            ("{}", Some("{\"target\":T}")),
            ("{\"target\":{\"queue\":\"q\"}}", None),
            ("[]", None),
            ("no", None),
        ] {
            assert_eq!(with_target(text, "T").as_deref(), expected, "{text}");
        }
    }
}
