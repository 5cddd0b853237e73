//! Converts fires, dead letters, ended tasks and explanations to their messages.

use punctual_core::{
    Answer, AttemptNo, AttemptRecord, DeadLetter, EndKind, FireEnd, FireId, FireRecord, Invalid,
    Occasion, Origin, Outcome, Task, TaskKey, TaskState, Timestamp,
};
use punctual_proto::v1;

use super::{as_millis, known, state, task};
use crate::api::explain_task::ExplainedTask;
use crate::api::find_task::{LastLife, NamedTask, TaskFires};
use crate::explain::UpcomingFire;
use crate::fire_form::{lag_ms, reason_name, skip_name};

/// A fire that has ended.
pub(crate) fn ended_fire(record: &FireRecord) -> v1::Fire {
    let (reason, skipped) = match record.end {
        FireEnd::Dead(reason) => (reason_name(reason), None),
        FireEnd::Skipped(skipped) => {
            let (until_ms, reason) = (skipped.until.as_millis(), skip_name(skipped.why).to_owned());
            ("", Some(v1::SkippedFires { fires: skipped.fires, until_ms, reason }))
        }
        FireEnd::Done | FireEnd::Cancelled | FireEnd::Replaced => ("", None),
    };
    let key = record.key.as_ref();
    v1::Fire {
        ended_at_ms: Some(record.ended_at.as_millis()),
        end: end(record.end.kind()).into(),
        reason: reason.to_owned(),
        skipped,
        result: record.result().cloned().unwrap_or_default(),
        ..fire(record.fire_id, key, record.occasion, &record.attempts, record.due_at)
    }
}

/// The current fire of a task.
pub(crate) fn current_fire(task: &Task) -> v1::Fire {
    let key = task.origin().map_or(&task.definition.key, |origin| &origin.key);
    fire(task.fire().id, key.as_ref(), task.occasion, &task.attempts, task.due_at())
}

/// The fires of a task, newest first.
pub(crate) fn task_fires(TaskFires { current, ended }: &TaskFires) -> Vec<v1::Fire> {
    current.iter().map(current_fire).chain(ended.iter().map(ended_fire)).collect()
}

fn fire(
    fire_id: FireId,
    key: Option<&TaskKey>,
    occasion: Occasion,
    attempts: &[AttemptRecord],
    due_at: Timestamp,
) -> v1::Fire {
    let occasion = match occasion {
        Occasion::Due => v1::Occasion::Due,
        Occasion::Manual => v1::Occasion::Manual,
        Occasion::Return => v1::Occasion::Return,
    };
    let first = attempts.first().filter(|first| first.number == AttemptNo::FIRST);
    v1::Fire {
        fire_id: fire_id.to_string(),
        task: fire_id.task.to_string(),
        key: key.map_or_else(String::new, |key| key.as_str().to_owned()),
        occasion: occasion.into(),
        fire_at_ms: fire_id.nominal_at.as_millis(),
        fired_at_ms: first.map(|first| first.fired_at.as_millis()),
        lag_ms: first.map(|first| lag_ms(first.fired_at, due_at)),
        attempts: attempts.iter().map(attempt).collect(),
        ..v1::Fire::default()
    }
}

fn attempt(record: &AttemptRecord) -> v1::Attempt {
    let (outcome, reason, retry_in) = match &record.outcome {
        Outcome::Acked => ("acked", None, None),
        Outcome::Failed { reason, retry_in } => ("failed", Some(reason), *retry_in),
        Outcome::Refused { reason } => ("refused", Some(reason), None),
        Outcome::Expired => ("expired", None, None),
    };
    // The result of a worker is the result of the fire.
    let response = record.answer.as_deref().filter(|answer| !answer.is_result());
    v1::Attempt {
        attempt: record.number.get(),
        at_ms: record.fired_at.as_millis(),
        duration_ms: as_millis(record.ended_at.since(record.fired_at)),
        outcome: outcome.to_owned(),
        reason: reason.map_or_else(String::new, |reason| reason.as_str().to_owned()),
        retry_in_ms: retry_in.map(as_millis),
        status: response.and_then(|answer| answer.status()).map(u32::from),
        answer: response.map(answer),
    }
}

pub(crate) fn answer(answer: &Answer) -> v1::Answer {
    v1::Answer {
        content_type: answer.content_type().to_owned(),
        body: answer.body().clone(),
        truncated: answer.is_truncated(),
    }
}

const fn end(end: EndKind) -> v1::FireEnd {
    match end {
        EndKind::Done => v1::FireEnd::Done,
        EndKind::Dead => v1::FireEnd::Dead,
        EndKind::Cancelled => v1::FireEnd::Cancelled,
        EndKind::Replaced => v1::FireEnd::Replaced,
        EndKind::Skipped => v1::FireEnd::Skipped,
    }
}

/// How the listed fires ended; `None` for all.
pub(crate) fn end_filter(end: i32) -> Result<Option<EndKind>, Invalid> {
    Ok(match known("end", end)? {
        v1::FireEnd::Unspecified => None,
        v1::FireEnd::Done => Some(EndKind::Done),
        v1::FireEnd::Dead => Some(EndKind::Dead),
        v1::FireEnd::Cancelled => Some(EndKind::Cancelled),
        v1::FireEnd::Replaced => Some(EndKind::Replaced),
        v1::FireEnd::Skipped => Some(EndKind::Skipped),
    })
}

pub(crate) fn dead_letter(letter: &DeadLetter) -> v1::DeadLetter {
    v1::DeadLetter {
        fire_id: letter.fire_id().to_string(),
        reason: reason_name(letter.reason).to_owned(),
        died_at_ms: letter.died_at.as_millis(),
        attempts: letter.task.attempts.iter().map(attempt).collect(),
        task: Some(dead_task(letter)),
    }
}

/// The task in a dead letter: with the id and the key of the task that the fire belongs to.
fn dead_task(letter: &DeadLetter) -> v1::Task {
    let mut message = task(&letter.task);
    message.state = state(TaskState::Dead).into();
    if let Some(Origin { fire_id, key }) = letter.task.origin() {
        message.id = fire_id.task.to_string();
        if let Some(sent) = &mut message.sent {
            sent.key = key.as_ref().map_or_else(String::new, |key| key.as_str().to_owned());
        }
    }
    message
}

/// A task that has ended: whole if it is a dead letter, else what its last fire says.
pub(crate) fn ended_task(LastLife { id, record, letter }: &LastLife) -> v1::Task {
    let fired_at_ms = record.first_attempt().map(|first| first.fired_at.as_millis());
    let ended = v1::Task {
        end: end(record.end.kind()).into(),
        fired_at_ms,
        ended_at_ms: Some(record.ended_at.as_millis()),
        ..letter.as_ref().map(dead_task).unwrap_or_default()
    };
    if letter.is_some() {
        return ended;
    }
    let ended_state = match record.end {
        // The last fires of the series were skipped.
        FireEnd::Done | FireEnd::Skipped(_) => TaskState::Done,
        FireEnd::Dead(_) => TaskState::Dead,
        FireEnd::Cancelled | FireEnd::Replaced => TaskState::Cancelled,
    };
    let labels = record.labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    v1::Task {
        id: id.to_string(),
        namespace: record.namespace.as_str().to_owned(),
        state: state(ended_state).into(),
        fire_at_ms: record.due_at.as_millis(),
        nominal_at_ms: record.fire_id.nominal_at.as_millis(),
        attempt: record.attempts.last().map_or(0, |last| last.number.get()),
        sent: Some(v1::NewTask {
            key: record.key.as_ref().map_or_else(String::new, |key| key.as_str().to_owned()),
            labels: labels.collect(),
            ..v1::NewTask::default()
        }),
        ..ended
    }
}

pub(crate) fn explanation(explained: ExplainedTask) -> v1::Explanation {
    let subject = match &explained.subject {
        NamedTask::Living(living) => task(living),
        NamedTask::Ended(ended) => ended_task(ended),
    };
    let fires = task_fires(&explained.fires);
    let next = explained.next.into_iter().map(|UpcomingFire { fire_at, local, why }| {
        v1::NextFire { fire_at_ms: fire_at.as_millis(), local, why: why.unwrap_or_default() }
    });
    v1::Explanation {
        summary: explained.explanation.summary,
        waiting_for: explained.explanation.waiting_for.name().to_owned(),
        details: explained.explanation.details,
        task: Some(subject),
        partition: u32::from(explained.partition.get()),
        owner: explained.owner.unwrap_or_default(),
        epoch: explained.epoch,
        touches: explained.touches,
        touched_at_ms: explained.touched_at.map(Timestamp::as_millis),
        next: next.collect(),
        fires,
    }
}
