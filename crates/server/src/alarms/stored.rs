//! Alarms in the store: each is a paused task of an internal namespace, with rule and status as its
//! payload.
//!
//! The key of the task is the namespace and the name of the alarm, so all alarms of a namespace
//! have a common prefix. Every change names the version that it was decided from: of two brokers
//! that evaluate at the same time, one fails.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    ALARMS_MAX, AlarmName, AlarmRule, AlarmState, AlarmStatus, AlarmValue, Clock as _, Due,
    Namespace, NewTask, Notice, PartitionId, Payload, Queue, Schedule, Target, Task, TaskKey,
    Timestamp, Version,
};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, ScheduleCommand, StartState, Subject,
};
use punctual_store::{Filter, Position, StoreError, TaskStore as _};
use serde::{Deserialize, Serialize};

use super::rule_form::AlarmRuleBody;
use crate::broker::Broker;
use crate::problem::Problem;

/// Alarms that are read at once.
const READ: usize = 500;
/// Alarms of all namespaces. More are neither accepted nor evaluated.
pub(crate) const ALL_ALARMS_MAX: usize = 16_384;
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

/// Lists the alarms of a namespace by name, or those of all namespaces.
pub(crate) async fn list(
    broker: &Broker,
    namespace: Option<&Namespace>,
) -> Result<Vec<StoredAlarm>, StoreError> {
    let mut filter = Filter::all(Namespace::of_alarms());
    filter.key_prefix = namespace.map_or_else(String::new, |namespace| format!("{namespace}/"));
    let (mut alarms, mut after) = (Vec::new(), Some(Position::START));
    while let Some(position) = after.filter(|_| alarms.len() < ALL_ALARMS_MAX) {
        let page = broker.store.list(PartitionId::FIRST, &filter, position, READ).await?;
        alarms.extend(page.items.iter().filter_map(StoredAlarm::read));
        after = page.next;
    }
    alarms.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    Ok(alarms)
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
                check_count(broker, namespace).await?;
                StoredAlarm::new(namespace, name, rule, broker.clock.now())
            }
        };
        match alarm.store(broker, is_new).await {
            Ok(alarm) if is_new => return Ok(PutAlarm::Created(alarm)),
            Ok(alarm) => return Ok(PutAlarm::Replaced(alarm)),
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(EngineError::Busy.into())
}

async fn check_count(broker: &Broker, namespace: &Namespace) -> Result<(), Problem> {
    let all = broker.store.counts(PartitionId::FIRST, &Namespace::of_alarms()).await?.paused;
    if usize::try_from(all).is_ok_and(|all| all >= ALL_ALARMS_MAX) {
        let problem = format!("the store has {ALL_ALARMS_MAX} alarms, the most it may have");
        return Err(punctual_core::Invalid::new("name", problem).into());
    }
    if list(broker, Some(namespace)).await?.len() < ALARMS_MAX {
        return Ok(());
    }
    let namespace = namespace.as_str();
    let problem = format!("namespace {namespace:?} has {ALARMS_MAX} alarms, the most it may have");
    Err(punctual_core::Invalid::new("name", problem).into())
}

/// Deletes an alarm. Returns whether there was one.
pub(crate) async fn remove(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<bool, EngineError> {
    let owner = broker.owners.of_key(&Namespace::of_alarms(), &key_of(namespace, name));
    // A key that names no living task answers for its last life, so a cancel alone cannot tell.
    let cancelled = match owner.task(Command::Get(subject(namespace, name))).await {
        Ok(_) => owner.cancel(subject(namespace, name)).await,
        Err(error) => Err(error),
    };
    match cancelled {
        Ok(Cancelled::Cancelled) => Ok(true),
        Ok(_) | Err(EngineError::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
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

    /// Stores a status that was decided from this alarm. Fails if the alarm was changed since.
    pub(crate) async fn with_status(
        &self,
        broker: &Broker,
        status: AlarmStatus,
    ) -> Result<Self, EngineError> {
        Self { status, ..self.clone() }.store(broker, false).await
    }

    async fn store(self, broker: &Broker, is_new: bool) -> Result<Self, EngineError> {
        let namespace = Namespace::of_alarms();
        let key = key_of(&self.namespace, &self.name);
        let owner = broker.owners.of_key(&namespace, &key);
        let unused = Target::Queue(Queue::new("alarms").expect("a valid name"));
        let new_task = NewTask {
            key: Some(key),
            payload: Payload::Json(AlarmDocument::of(&self).bytes()),
            ..NewTask::new(namespace, Schedule::Once(NEVER), unused)
        };
        let condition = match is_new {
            true => Condition::Absent,
            false => Condition::Version(self.version),
        };
        let start = StartState::Paused;
        let command =
            ScheduleCommand { new_task: Arc::new(new_task), condition, receipt: None, start };
        let version = owner.schedule(command).await?.task().version;
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
