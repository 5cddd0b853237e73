//! Dead letters and fire records in the file, and their conversion from and to `core`.

use std::collections::BTreeMap;

use anyhow::anyhow;
use punctual_core::{
    DeadLetter, FireEnd, FireRecord, Labels, Namespace, Occasion, Skipped, TaskKey,
};
use serde::{Deserialize, Serialize};

use super::attempts::{ExportedAttempt, export_attempts, read_attempts};
use super::task::{ExportedTask, export_task, read_task};
use super::values::{DeadName, OccasionName, SkipName, TimeText};

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedDeadLetter {
    died_at: TimeText,
    reason: DeadName,
    task: ExportedTask,
}

/// How a fire ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedFire {
    fire_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redriven_as: Option<String>,
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    due_at: TimeText,
    ended_at: TimeText,
    end: ExportedFireEnd,
    attempts: Vec<ExportedAttempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    occasion: Option<OccasionName>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ExportedFireEnd {
    Done,
    Dead(DeadName),
    Cancelled,
    Replaced,
    Skipped { fires: u32, until: TimeText, why: SkipName },
}

pub(crate) fn export_dead_letter(letter: &DeadLetter) -> ExportedDeadLetter {
    ExportedDeadLetter {
        died_at: TimeText(letter.died_at),
        reason: letter.reason.into(),
        task: export_task(&letter.task),
    }
}

pub(crate) fn read_dead_letter(exported: ExportedDeadLetter) -> anyhow::Result<DeadLetter> {
    Ok(DeadLetter {
        died_at: exported.died_at.0,
        reason: exported.reason.into(),
        task: read_task(exported.task)?,
    })
}

pub(crate) fn export_fire(record: &FireRecord) -> ExportedFire {
    ExportedFire {
        fire_id: record.fire_id.to_string(),
        redriven_as: record.redriven_as.map(|id| id.to_string()),
        namespace: record.namespace.as_str().to_owned(),
        key: record.key.as_ref().map(|key| key.as_str().to_owned()),
        due_at: TimeText(record.due_at),
        ended_at: TimeText(record.ended_at),
        end: match record.end {
            FireEnd::Done => ExportedFireEnd::Done,
            FireEnd::Dead(reason) => ExportedFireEnd::Dead(reason.into()),
            FireEnd::Cancelled => ExportedFireEnd::Cancelled,
            FireEnd::Replaced => ExportedFireEnd::Replaced,
            FireEnd::Skipped(Skipped { fires, until, why }) => {
                ExportedFireEnd::Skipped { fires, until: TimeText(until), why: why.into() }
            }
        },
        attempts: export_attempts(&record.attempts),
        occasion: (record.occasion != Occasion::Due).then(|| record.occasion.into()),
        labels: record.labels.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
    }
}

pub(crate) fn read_fire(exported: ExportedFire) -> anyhow::Result<FireRecord> {
    let redriven_as = exported.redriven_as.map(|text| text.parse()).transpose();
    Ok(FireRecord {
        redriven_as: redriven_as.map_err(|error| anyhow!("redriven_as: {error}"))?,
        fire_id: exported.fire_id.parse().map_err(|error| anyhow!("fire_id: {error}"))?,
        namespace: Namespace::from_stored(&exported.namespace)?,
        key: exported.key.as_deref().map(TaskKey::new).transpose()?,
        due_at: exported.due_at.0,
        ended_at: exported.ended_at.0,
        end: match exported.end {
            ExportedFireEnd::Done => FireEnd::Done,
            ExportedFireEnd::Dead(reason) => FireEnd::Dead(reason.into()),
            ExportedFireEnd::Cancelled => FireEnd::Cancelled,
            ExportedFireEnd::Replaced => FireEnd::Replaced,
            ExportedFireEnd::Skipped { fires, until, why } => {
                FireEnd::Skipped(Skipped { fires, until: until.0, why: why.into() })
            }
        },
        attempts: read_attempts(exported.attempts)?,
        occasion: exported.occasion.map_or(Occasion::Due, Into::into),
        labels: Labels::new(exported.labels)?,
    })
}
