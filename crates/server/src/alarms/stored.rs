//! Alarms in the store: each is a paused task of an internal namespace, with rule and status as its
//! payload.
//!
//! The key of the task is the namespace and the name of the alarm; `name_list` has which there are.
//! Every change names the version that it was decided from: of two brokers that evaluate at the
//! same time, one fails.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    ALARMS_MAX, AlarmName, AlarmRule, AlarmState, AlarmStatus, AlarmValue, Clock as _, Due,
    Namespace, NewTask, Notice, Payload, Queue, Schedule, Target, Task, TaskKey, Timestamp,
    Version,
};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, ScheduleCommand, StartState, Subject,
};
use punctual_store::StoreError;
use serde::{Deserialize, Serialize};

use super::name_list::{NameList, read_lists, read_tasks};
use super::rule_form::AlarmRuleBody;
use crate::broker::Broker;
use crate::problem::Problem;

/// Namespaces that may have alarms. Their names fit one task.
const NAMESPACES_MAX: usize = 3_600;
/// How often a change is tried again because the alarm was changed in between.
const TRIES: usize = 8;
/// Alarms are never due; a task has a time nevertheless.
const NEVER: Due = Due::At(Timestamp::MAX);

/// An alarm as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredAlarm {
    pub(crate) namespace: Namespace,
    pub(crate) name: AlarmName,
    pub(crate) rule: AlarmRule,
    pub(crate) status: AlarmStatus,
    /// When the alarm was created. With the name and the number of a notice it identifies the
    /// notice, also if an alarm of the same name was deleted before.
    pub(crate) created_at: Timestamp,
    version: Version,
}

/// What became of a rule that was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PutAlarm {
    Created(StoredAlarm),
    Replaced(StoredAlarm),
}

/// Lists the alarms of a namespace by name.
pub(crate) async fn list(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<Vec<StoredAlarm>, StoreError> {
    list_of(broker, std::slice::from_ref(namespace)).await
}

/// Lists the alarms of all namespaces.
pub(crate) async fn list_all(broker: &Broker) -> Result<Vec<StoredAlarm>, StoreError> {
    let namespaces = read_lists(broker, &[namespaces_key()]).await?.into_iter().flatten();
    let namespaces: Vec<_> = namespaces.filter_map(|name| Namespace::new(&name).ok()).collect();
    list_of(broker, &namespaces).await
}

async fn list_of(
    broker: &Broker,
    namespaces: &[Namespace],
) -> Result<Vec<StoredAlarm>, StoreError> {
    let lists: Vec<_> = namespaces.iter().map(names_key).collect();
    let lists = read_lists(broker, &lists).await?;
    let names = namespaces.iter().zip(lists).flat_map(|(namespace, names)| {
        let key = |name: String| Some(key_of(namespace, &AlarmName::new(&name).ok()?));
        names.into_iter().filter_map(key).collect::<Vec<_>>()
    });
    let tasks = read_tasks(broker, &names.collect::<Vec<_>>()).await?;
    Ok(tasks.iter().flatten().filter_map(StoredAlarm::read).collect())
}

/// The key of the list of namespaces that have alarms. No namespace has this name.
fn namespaces_key() -> TaskKey {
    TaskKey::new("/").expect("a valid key")
}

/// The key of the list of alarms of a namespace.
fn names_key(namespace: &Namespace) -> TaskKey {
    TaskKey::new(namespace.as_str()).expect("a namespace is a valid key")
}

fn namespaces_list() -> NameList {
    let is_full =
        format!("{NAMESPACES_MAX} namespaces have alarms, the most that a store may have");
    NameList::new(namespaces_key(), NAMESPACES_MAX, is_full)
}

fn names_list(namespace: &Namespace) -> NameList {
    let name = namespace.as_str();
    let is_full = format!("namespace {name:?} has {ALARMS_MAX} alarms, the most it may have");
    NameList::new(names_key(namespace), ALARMS_MAX, is_full)
}

/// Returns an alarm if there is one.
pub(crate) async fn get(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<Option<StoredAlarm>, EngineError> {
    let owner = broker.owners.of_key(&Namespace::of_alarms(), &key_of(namespace, name));
    match owner.task(Command::Get(subject(namespace, name))).await {
        Ok(task) => Ok(StoredAlarm::read(&task)),
        Err(EngineError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates an alarm, or replaces its rule. The status stays: if the alarm is raised and the new
/// condition does not hold, it is over with the next evaluation.
pub(crate) async fn put(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
    rule: &AlarmRule,
) -> Result<PutAlarm, Problem> {
    for _ in 0..TRIES {
        let before = get(broker, namespace, name).await?;
        let is_new = before.is_none();
        let alarm = match before {
            Some(before) if before.rule == *rule => return Ok(PutAlarm::Replaced(before)),
            Some(before) => StoredAlarm { rule: rule.clone(), ..before },
            None => {
                add_to_lists(broker, namespace, name).await?;
                StoredAlarm::new(namespace, name, rule, broker.clock.now())
            }
        };
        match alarm.store(broker, is_new).await {
            Ok(alarm) if is_new => {
                add_to_lists(broker, namespace, name).await?;
                return Ok(PutAlarm::Created(alarm));
            }
            Ok(alarm) => return Ok(PutAlarm::Replaced(alarm)),
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(EngineError::Busy.into())
}

/// Adds an alarm to the lists by which it is found.
async fn add_to_lists(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<(), Problem> {
    namespaces_list().add(broker, namespace.as_str()).await?;
    names_list(namespace).add(broker, name.as_str()).await
}

/// Removes an alarm that was deleted from the lists, unless it was created anew meanwhile.
async fn remove_from_lists(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<(), Problem> {
    let names = names_list(namespace);
    if names.remove(broker, name.as_str()).await? {
        namespaces_list().remove(broker, namespace.as_str()).await?;
        if !names.is_empty(broker).await? {
            namespaces_list().add(broker, namespace.as_str()).await?;
        }
    }
    match get(broker, namespace, name).await? {
        Some(_) => add_to_lists(broker, namespace, name).await,
        None => Ok(()),
    }
}

/// Deletes an alarm. Returns whether there was one.
pub(crate) async fn remove(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<bool, Problem> {
    let owner = broker.owners.of_key(&Namespace::of_alarms(), &key_of(namespace, name));
    // A key that names no living task answers for its last life, so a cancel alone cannot tell.
    let cancelled = match owner.task(Command::Get(subject(namespace, name))).await {
        Ok(_) => owner.cancel(subject(namespace, name)).await,
        Err(error) => Err(error),
    };
    let is_deleted = match cancelled {
        Ok(Cancelled::Cancelled) => true,
        Ok(_) | Err(EngineError::NotFound) => false,
        Err(error) => return Err(error.into()),
    };
    // Also if there is none: an earlier call may have ended in between.
    remove_from_lists(broker, namespace, name).await?;
    Ok(is_deleted)
}

/// Stores a paused task beside the alarms. Returns its version.
pub(crate) async fn store_paused(
    broker: &Broker,
    key: TaskKey,
    payload: Payload,
    condition: Condition,
) -> Result<Version, EngineError> {
    let namespace = Namespace::of_alarms();
    let owner = broker.owners.of_key(&namespace, &key);
    let unused = Target::Queue(Queue::new("alarms").expect("a valid name"));
    let new_task = NewTask {
        key: Some(key),
        payload,
        ..NewTask::new(namespace, Schedule::Once(NEVER), unused)
    };
    let (new_task, start) = (Arc::new(new_task), StartState::Paused);
    let command = ScheduleCommand { new_task, condition, receipt: None, start };
    Ok(owner.schedule(command).await?.task().version)
}

/// Whether a change failed because another one came first.
pub(crate) const fn is_conflict(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::VersionMismatch(_) | EngineError::Exists(_) | EngineError::NotFound
    )
}

fn key_of(namespace: &Namespace, name: &AlarmName) -> TaskKey {
    TaskKey::new(&format!("{namespace}/{name}"))
        .expect("two short names without control characters")
}

fn subject(namespace: &Namespace, name: &AlarmName) -> Subject {
    Subject::Key(Namespace::of_alarms(), key_of(namespace, name))
}

impl StoredAlarm {
    pub(crate) fn new(
        namespace: &Namespace,
        name: &AlarmName,
        rule: &AlarmRule,
        now: Timestamp,
    ) -> Self {
        Self {
            namespace: namespace.clone(),
            name: name.clone(),
            rule: rule.clone(),
            status: AlarmStatus::new(now),
            created_at: now,
            version: Version::FIRST,
        }
    }

    /// The key of the last notice: its number, and when the alarm was created.
    pub(crate) fn last_notice_key(&self) -> TaskKey {
        let (created, number) = (self.created_at.as_millis(), self.status.notices);
        let key = format!("{}/{created}/{number}", self.name);
        TaskKey::new(&key).expect("a short name and numbers")
    }

    /// The key of the last test.
    pub(crate) fn test_key(&self) -> TaskKey {
        let key = format!("{}/{}/test", self.name, self.created_at.as_millis());
        TaskKey::new(&key).expect("a short name and a number")
    }

    /// Stores a status that was decided from this alarm. Fails if the alarm was changed since.
    pub(crate) async fn with_status(
        &self,
        broker: &Broker,
        status: AlarmStatus,
    ) -> Result<Self, EngineError> {
        Self { status, ..self.clone() }.store(broker, false).await
    }

    async fn store(self, broker: &Broker, is_new: bool) -> Result<Self, EngineError> {
        let condition = match is_new {
            true => Condition::Absent,
            false => Condition::Version(self.version),
        };
        let payload = Payload::Json(AlarmDocument::of(&self).bytes());
        let key = key_of(&self.namespace, &self.name);
        let version = store_paused(broker, key, payload, condition).await?;
        Ok(Self { version, ..self })
    }

    /// Returns `None` for a task that a later version has written, which is logged.
    fn read(task: &Task) -> Option<Self> {
        let key = task.definition.key.as_ref()?.as_str();
        let read = || {
            let (namespace, name) = key.split_once('/')?;
            let (namespace, name) = (Namespace::new(namespace).ok()?, AlarmName::new(name).ok()?);
            let document: AlarmDocument =
                serde_json::from_slice(task.definition.payload.bytes()).ok()?;
            let rule = document.rule.into_rule().ok()?;
            let status = document.status.into_status()?;
            let created_at = time(document.created_at_ms)?;
            Some(Self { namespace, name, rule, status, created_at, version: task.version })
        };
        let alarm = read();
        if alarm.is_none() {
            tracing::error!(key, "stored alarm cannot be read");
        }
        alarm
    }
}

/// The payload of the task of an alarm.
#[derive(Debug, Serialize, Deserialize)]
struct AlarmDocument {
    rule: AlarmRuleBody,
    status: StatusDocument,
    created_at_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct StatusDocument {
    is_raised: bool,
    since_ms: u64,
    notices: u64,
    noticed_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending: Option<NoticeDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<ValueDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raised_for_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NoticeDocument {
    Raised,
    Repeated,
    Over,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ValueDocument {
    Count(u64),
    Share { failed: u64, total: u64 },
    TimeMs(u64),
}

impl AlarmDocument {
    fn of(alarm: &StoredAlarm) -> Self {
        Self {
            rule: AlarmRuleBody::of(&alarm.rule),
            status: StatusDocument::of(&alarm.status),
            created_at_ms: alarm.created_at.as_millis(),
        }
    }

    fn bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("text and numbers only").into()
    }
}

impl StatusDocument {
    fn of(status: &AlarmStatus) -> Self {
        Self {
            is_raised: status.state == AlarmState::Raised,
            since_ms: status.since.as_millis(),
            notices: status.notices,
            noticed_at_ms: status.noticed_at.as_millis(),
            pending: status.pending.map(|notice| match notice {
                Notice::Raised => NoticeDocument::Raised,
                Notice::Repeated => NoticeDocument::Repeated,
                Notice::Over => NoticeDocument::Over,
            }),
            value: status.value.map(|value| match value {
                AlarmValue::Count(count) => ValueDocument::Count(count),
                AlarmValue::Share { failed, total } => ValueDocument::Share { failed, total },
                AlarmValue::Time(time) => ValueDocument::TimeMs(millis(time)),
            }),
            raised_for_ms: status.raised_for.map(millis),
        }
    }

    fn into_status(self) -> Option<AlarmStatus> {
        Some(AlarmStatus {
            state: if self.is_raised { AlarmState::Raised } else { AlarmState::Ok },
            since: time(self.since_ms)?,
            notices: self.notices,
            noticed_at: time(self.noticed_at_ms)?,
            pending: self.pending.map(|notice| match notice {
                NoticeDocument::Raised => Notice::Raised,
                NoticeDocument::Repeated => Notice::Repeated,
                NoticeDocument::Over => Notice::Over,
            }),
            value: self.value.map(|value| match value {
                ValueDocument::Count(count) => AlarmValue::Count(count),
                ValueDocument::Share { failed, total } => AlarmValue::Share { failed, total },
                ValueDocument::TimeMs(millis) => AlarmValue::Time(Duration::from_millis(millis)),
            }),
            raised_for: self.raised_for_ms.map(Duration::from_millis),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn time(millis: u64) -> Option<Timestamp> {
    Timestamp::try_from_millis(i128::from(millis)).ok()
}

#[cfg(test)]
mod tests {
    use punctual_core::{AlarmCondition, AlarmReceiver, HttpTarget, Method, TaskId};

    use super::*;

    #[test]
    fn an_alarm_is_read_back_unchanged() {
        let webhook = HttpTarget::new("http://h/x", Method::Post, vec![]).unwrap();
        let at = Timestamp::from_millis(1_700_000_000_000);
        let alarm = StoredAlarm {
            namespace: Namespace::new("shop").unwrap(),
            name: AlarmName::new("errors").unwrap(),
            rule: AlarmRule {
                when: AlarmCondition::DeadLetters { over: 3 },
                to: AlarmReceiver::Http(webhook),
                repeat_after: Some(Duration::from_secs(3600)),
            },
            status: AlarmStatus::new(at),
            created_at: at,
            version: Version::FIRST,
        };
        for (pending, value, raised_for) in [
            (None, None, None),
            (Some(Notice::Raised), Some(AlarmValue::Count(4)), None),
            (Some(Notice::Repeated), Some(AlarmValue::Share { failed: 1, total: 2 }), None),
            (
                Some(Notice::Over),
                Some(AlarmValue::Time(Duration::from_millis(5))),
                Some(Duration::from_secs(720)),
            ),
        ] {
            let status = AlarmStatus { pending, value, raised_for, notices: 7, ..alarm.status };
            let alarm = StoredAlarm { status, ..alarm.clone() };
            let definition = NewTask {
                key: Some(key_of(&alarm.namespace, &alarm.name)),
                payload: Payload::Json(AlarmDocument::of(&alarm).bytes()),
                ..NewTask::new(
                    Namespace::of_alarms(),
                    Schedule::Once(NEVER),
                    Target::Queue(Queue::new("alarms").unwrap()),
                )
            };
            let task = Task::new(TaskId::floor(at), Arc::new(definition), at, Version::FIRST);
            assert_eq!(StoredAlarm::read(&task), Some(alarm));
        }
    }
}
