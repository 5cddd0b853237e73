//! Rules for touches of keys that have no task: a prefix of keys, and the watch that a touch
//! creates for such a key.
//!
//! All rules of a namespace are one paused task beside the alarms, in the first partition, with the
//! watches as JSON in its payload. A touch reads them only if a key is missing, so touches of
//! existing tasks cost nothing more, and a rule holds for every broker as soon as it is stored.

use std::collections::BTreeMap;

use punctual_core::{Invalid, Namespace, Payload, Schedule, Task, TaskKey};
use punctual_engine::{Command, Condition, EngineError, Subject};
use serde_json::value::RawValue;

use crate::alarms::stored::{is_conflict, store_paused};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::task_form::{TaskBody, TaskToSchedule};

/// Rules of a namespace. With [`RULE_BYTES_MAX`] and the prefixes they fit the payload of a task.
pub(crate) const RULES_MAX: usize = 32;
/// Bytes of one rule as JSON.
pub(crate) const RULE_BYTES_MAX: usize = 4 * 1024;
/// How often a change is tried again because the rules were changed in between.
const TRIES: usize = 8;

/// The watches of rules as they were sent, by prefix.
pub(crate) type RuleTexts = BTreeMap<String, Box<RawValue>>;

/// What became of a rule that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PutRule {
    Created,
    Replaced,
}

/// The rules of a namespace, ready to create tasks.
#[derive(Debug, Default)]
pub(crate) struct TouchRules(BTreeMap<String, TaskToSchedule>);

impl TouchRules {
    /// Reads the rules of a namespace. A rule that cannot be read is left out; that is logged.
    pub(crate) async fn read(broker: &Broker, namespace: &Namespace) -> Result<Self, EngineError> {
        Ok(Self::of(&read_texts(broker, namespace).await?.0, namespace))
    }

    fn of(texts: &RuleTexts, namespace: &Namespace) -> Self {
        let rules = texts.iter().filter_map(|(prefix, text)| {
            let body: Result<TaskBody<'_>, _> = serde_json::from_str(text.get());
            let watch = body.ok().and_then(|body| body.into_task(namespace.clone(), None).ok());
            if watch.is_none() {
                tracing::error!(%namespace, prefix, "stored touch rule cannot be read");
            }
            Some((prefix.clone(), watch?))
        });
        Self(rules.collect())
    }

    /// The command that creates the watch of a key by the rule with the longest prefix.
    pub(crate) fn create(&self, key: &TaskKey) -> Option<Command> {
        let matches = self.0.iter().filter(|(prefix, _)| key.as_str().starts_with(prefix.as_str()));
        let mut watch = matches.max_by_key(|(prefix, _)| prefix.len())?.1.clone();
        watch.new_task.key = Some(key.clone());
        Some(Command::Schedule(watch.into_command(Condition::Absent, None)))
    }

    /// Splits keys into those that a rule is for, and the others.
    pub(crate) fn split(&self, keys: Vec<TaskKey>) -> (Vec<TaskKey>, Vec<TaskKey>) {
        let is_ruled = |key: &TaskKey| self.0.keys().any(|prefix| key.as_str().starts_with(prefix));
        keys.into_iter().partition(is_ruled)
    }
}

/// Checks the watch of a rule, except for its targets.
pub(crate) fn check(body: TaskBody<'_>, namespace: &Namespace) -> Result<TaskToSchedule, Invalid> {
    let watch = body.into_task(namespace.clone(), None)?;
    if watch.new_task.key.is_some() {
        return Err(Invalid::new("key", "must be left out; a touch names the key"));
    }
    if !matches!(watch.new_task.schedule, Schedule::Watch { .. }) {
        return Err(Invalid::new("within", "must be given; a rule creates watches only"));
    }
    Ok(watch)
}

/// Returns the rules of a namespace as they were sent.
pub(crate) async fn list(broker: &Broker, namespace: &Namespace) -> Result<RuleTexts, EngineError> {
    Ok(read_texts(broker, namespace).await?.0)
}

/// Stores a rule that was checked.
pub(crate) async fn put(
    broker: &Broker,
    namespace: &Namespace,
    prefix: &TaskKey,
    text: &RawValue,
) -> Result<PutRule, Problem> {
    for _ in 0..TRIES {
        let (mut rules, condition) = read_texts(broker, namespace).await?;
        let before = rules.insert(prefix.as_str().to_owned(), text.to_owned());
        if rules.len() > RULES_MAX {
            let namespace = namespace.as_str();
            let problem = format!("namespace {namespace:?} has {RULES_MAX} rules, the most it may");
            return Err(Invalid::new("prefix", problem).into());
        }
        match store_texts(broker, namespace, &rules, condition).await {
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
            Ok(()) if before.is_some() => return Ok(PutRule::Replaced),
            Ok(()) => return Ok(PutRule::Created),
        }
    }
    Err(EngineError::Busy.into())
}

/// Deletes a rule. Returns whether there was one. Watches that it has created stay.
pub(crate) async fn remove(
    broker: &Broker,
    namespace: &Namespace,
    prefix: &str,
) -> Result<bool, EngineError> {
    for _ in 0..TRIES {
        let (mut rules, condition) = read_texts(broker, namespace).await?;
        if rules.remove(prefix).is_none() {
            return Ok(false);
        }
        match store_texts(broker, namespace, &rules, condition).await {
            Err(error) if is_conflict(&error) => {}
            stored => return stored.map(|()| true),
        }
    }
    Err(EngineError::Busy)
}

/// Returns the rules as they are stored, and the condition under which they may be changed.
async fn read_texts(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<(RuleTexts, Condition), EngineError> {
    let (alarms, key) = (Namespace::of_alarms(), key_of(namespace));
    let owner = broker.owners.of_key(&alarms, &key);
    match owner.task(Command::Get(Subject::Key(alarms, key))).await {
        Ok(task) => Ok((texts_of(namespace, &task), Condition::Version(task.version))),
        Err(EngineError::NotFound) => Ok((RuleTexts::new(), Condition::Absent)),
        Err(error) => Err(error),
    }
}

async fn store_texts(
    broker: &Broker,
    namespace: &Namespace,
    rules: &RuleTexts,
    condition: Condition,
) -> Result<(), EngineError> {
    let rules = serde_json::to_vec(rules).expect("JSON with text keys");
    let payload = Payload::Json(rules.into());
    store_paused(broker, key_of(namespace), payload, condition).await?;
    Ok(())
}

/// Rules that cannot be read count as none; that is logged.
fn texts_of(namespace: &Namespace, task: &Task) -> RuleTexts {
    serde_json::from_slice(task.definition.payload.bytes()).unwrap_or_else(|error| {
        tracing::error!(%namespace, %error, "stored touch rules cannot be read");
        RuleTexts::new()
    })
}

/// The key of the rules of a namespace. No alarm has it: the name of an alarm is not empty.
fn key_of(namespace: &Namespace) -> TaskKey {
    TaskKey::new(&format!("{namespace}//rules")).expect("a namespace and a short text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[(&str, &str)]) -> TouchRules {
        let text = |json: &str| RawValue::from_string(json.to_owned()).unwrap();
        let texts = texts.iter().map(|(prefix, json)| ((*prefix).to_owned(), text(json)));
        TouchRules::of(&texts.collect(), &Namespace::new("home").unwrap())
    }

    fn queue_of(command: &Command) -> String {
        let Command::Schedule(schedule) = command else { panic!("not a schedule: {command:?}") };
        format!("{:?}", schedule.new_task.target)
    }

    #[test]
    fn the_longest_prefix_of_a_key_decides() {
        let rules = rules(&[
            ("unit:", r#"{"within": "48h", "target": {"queue": "units"}}"#),
            ("unit:lamp-", r#"{"within": "1h", "target": {"queue": "lamps"}}"#),
            ("broken:", r#"{"within": "soon"}"#),
        ]);
        let created = |key: &str| rules.create(&TaskKey::new(key).unwrap());
        assert!(queue_of(&created("unit:7").unwrap()).contains("units"));
        assert!(queue_of(&created("unit:lamp-7").unwrap()).contains("lamps"));
        assert!(created("other:7").is_none() && created("broken:7").is_none());
        let keys = ["unit:7", "other:7", "unit:lamp-7"].map(|key| TaskKey::new(key).unwrap());
        let (ruled, others) = rules.split(keys.clone().into());
        assert_eq!(ruled, [keys[0].clone(), keys[2].clone()]);
        assert_eq!(others, [keys[1].clone()]);
    }

    #[test]
    fn a_rule_is_a_watch_without_a_key() {
        let check = |json: &str| {
            let body: TaskBody<'_> = serde_json::from_str(json).unwrap();
            check(body, &Namespace::new("home").unwrap()).map_err(|invalid| invalid.field)
        };
        assert!(check(r#"{"within": "48h", "target": {"queue": "q"}, "on_return": true}"#).is_ok());
        for (json, field) in [
            (r#"{"in": "48h", "target": {"queue": "q"}}"#, "within"),
            (r#"{"within": "48h", "target": {"queue": "q"}, "key": "k"}"#, "key"),
            (r#"{"within": "48h"}"#, "target"),
        ] {
            assert_eq!(check(json).unwrap_err(), field, "{json}");
        }
    }
}
