//! Converts fires, dead letters, explanations, counts, queues, lanes and workers.

use std::time::Duration;

use punctual_proto::v1;

use super::{error, non_empty, task};
use crate::delivery::{FireId, Occasion};
use crate::record::{
    Attempt, DeadGroup, DeadGroups, DeadLetterInfo, DeadLetters, Explanation, FireEnd, FireInfo,
    FirePage, Forecast, LaneFailure, LaneInfo, LaneList, NextFire, QueueInfo, Redriven,
    SkippedTimes, Stats, WebhookAnswer, WorkerInfo,
};
use crate::task_id::TaskId;
use crate::{Error, Timestamp};

pub(crate) fn fire_page(answer: v1::FiresResponse) -> FirePage {
    FirePage { fires: answer.fires.into_iter().map(fire).collect(), next: non_empty(answer.next) }
}

fn fire(fire: v1::Fire) -> FireInfo {
    let (occasion, end) = (occasion(fire.occasion()), fire_end(fire.end()));
    FireInfo {
        fire_id: FireId::new(fire.fire_id),
        task: TaskId::new(fire.task),
        key: non_empty(fire.key),
        occasion,
        fire_at: Timestamp::from_millis(fire.fire_at_ms),
        fired_at: fire.fired_at_ms.map(Timestamp::from_millis),
        ended_at: fire.ended_at_ms.map(Timestamp::from_millis),
        lag: fire.lag_ms.map(Duration::from_millis),
        end,
        reason: non_empty(fire.reason),
        skipped: fire.skipped.map(|skipped| SkippedTimes {
            fires: skipped.fires,
            until: Timestamp::from_millis(skipped.until_ms),
            reason: skipped.reason,
        }),
        result: fire.result,
        attempts: fire.attempts.into_iter().map(attempt).collect(),
    }
}

pub(super) const fn occasion(occasion: v1::Occasion) -> Occasion {
    match occasion {
        v1::Occasion::Unspecified | v1::Occasion::Due => Occasion::Due,
        v1::Occasion::Manual => Occasion::Manual,
        v1::Occasion::Return => Occasion::Return,
    }
}

pub(super) const fn fire_end(end: v1::FireEnd) -> Option<FireEnd> {
    match end {
        v1::FireEnd::Unspecified => None,
        v1::FireEnd::Done => Some(FireEnd::Done),
        v1::FireEnd::Dead => Some(FireEnd::Dead),
        v1::FireEnd::Cancelled => Some(FireEnd::Cancelled),
        v1::FireEnd::Replaced => Some(FireEnd::Replaced),
        v1::FireEnd::Skipped => Some(FireEnd::Skipped),
    }
}

pub(crate) const fn end_filter(end: FireEnd) -> v1::FireEnd {
    match end {
        FireEnd::Done => v1::FireEnd::Done,
        FireEnd::Dead => v1::FireEnd::Dead,
        FireEnd::Cancelled => v1::FireEnd::Cancelled,
        FireEnd::Replaced => v1::FireEnd::Replaced,
        FireEnd::Skipped => v1::FireEnd::Skipped,
    }
}

fn attempt(attempt: v1::Attempt) -> Attempt {
    Attempt {
        attempt: attempt.attempt,
        at: Timestamp::from_millis(attempt.at_ms),
        duration: Duration::from_millis(attempt.duration_ms),
        outcome: attempt.outcome,
        reason: non_empty(attempt.reason),
        retry_in: attempt.retry_in_ms.map(Duration::from_millis),
        status: attempt.status.and_then(|status| u16::try_from(status).ok()),
        answer: attempt.answer.map(webhook_answer),
    }
}

pub(super) fn webhook_answer(answer: v1::Answer) -> WebhookAnswer {
    WebhookAnswer {
        content_type: answer.content_type,
        body: answer.body,
        truncated: answer.truncated,
    }
}

pub(crate) fn dead_letter_page(answer: v1::DeadLettersResponse) -> Result<DeadLetters, Error> {
    let dead = answer.dead.into_iter().map(dead_letter).collect::<Result<_, _>>()?;
    Ok(DeadLetters { dead, next: non_empty(answer.next) })
}

fn dead_letter(letter: v1::DeadLetter) -> Result<DeadLetterInfo, Error> {
    Ok(DeadLetterInfo {
        fire_id: FireId::new(letter.fire_id),
        reason: letter.reason,
        died_at: Timestamp::from_millis(letter.died_at_ms),
        attempts: letter.attempts.into_iter().map(attempt).collect(),
        task: task(letter.task.ok_or(Error::Answer("a dead letter has no task"))?)?,
    })
}

pub(crate) fn dead_groups(answer: v1::DeadGroupsResponse) -> DeadGroups {
    let group = |group: v1::DeadGroup| DeadGroup {
        reason: group.reason,
        target: group.target,
        count: group.count,
        first_at: Timestamp::from_millis(group.first_at_ms),
        last_at: Timestamp::from_millis(group.last_at_ms),
        example: non_empty(group.example).map(|id| FireId::from(id.as_str())),
    };
    DeadGroups { groups: answer.groups.into_iter().map(group).collect(), more: answer.more }
}

pub(crate) fn redriven(answer: v1::RedriveResponse) -> Redriven {
    let problems = answer.problems.into_iter().map(|of_letter| {
        let why = of_letter.problem.map_or(Error::Answer("a problem is empty"), error);
        (FireId::new(of_letter.id), why)
    });
    Redriven { redriven: answer.redriven, problems: problems.collect(), more: answer.more }
}

pub(crate) fn explanation(answer: v1::Explanation) -> Result<Explanation, Error> {
    let next = answer.next.into_iter().map(|fire| NextFire {
        fire_at: Timestamp::from_millis(fire.fire_at_ms),
        local: fire.local,
        why: non_empty(fire.why),
    });
    Ok(Explanation {
        summary: answer.summary,
        waiting_for: answer.waiting_for,
        details: answer.details,
        task: task(answer.task.ok_or(Error::Answer("an explanation has no task"))?)?,
        partition: answer.partition,
        owner: non_empty(answer.owner),
        epoch: answer.epoch,
        touches: answer.touches,
        touched_at: answer.touched_at_ms.map(Timestamp::from_millis),
        next: next.collect(),
        fires: answer.fires.into_iter().map(fire).collect(),
    })
}

pub(crate) fn stats(answer: &v1::StatsResponse) -> Stats {
    Stats {
        accepted: answer.accepted,
        scheduled: answer.scheduled,
        firing: answer.firing,
        paused: answer.paused,
        done: answer.done,
        dead: answer.dead,
        cancelled: answer.cancelled,
        dead_letters: answer.dead_letters,
        queued: answer.queued,
        parked_lanes: answer.parked_lanes,
        oldest_overdue: answer.oldest_overdue_at_ms.map(Timestamp::from_millis),
    }
}

pub(crate) fn forecast(answer: v1::ForecastResponse) -> Forecast {
    Forecast {
        from: Timestamp::from_millis(answer.from_ms),
        step: Duration::from_millis(answer.step_ms),
        fires: answer.fires,
        targets: answer.targets.into_iter().map(|it| (it.target, it.fires)).collect(),
        complete_until: answer.complete_until_ms.map(Timestamp::from_millis),
    }
}

pub(crate) fn queue(queue: v1::QueueInfo) -> QueueInfo {
    QueueInfo {
        name: queue.name,
        waiting: queue.waiting,
        more: queue.more,
        in_flight: queue.in_flight,
        workers: queue.workers,
        oldest_overdue: Duration::from_millis(queue.oldest_overdue_ms),
    }
}

pub(crate) fn lanes(answer: v1::LanesResponse) -> LaneList {
    LaneList { lanes: answer.lanes.into_iter().map(lane).collect(), complete: answer.complete }
}

fn lane(lane: v1::LaneInfo) -> LaneInfo {
    LaneInfo {
        kind: lane.kind,
        target: lane.target,
        connection: non_empty(lane.connection),
        state: lane.state,
        since: lane.since_ms.map(Timestamp::from_millis),
        waiting: lane.waiting,
        more: lane.more,
        in_flight: lane.in_flight,
        capacity: lane.capacity,
        oldest_overdue: Duration::from_millis(lane.oldest_overdue_ms),
        failed: lane.failed,
        last_failure: lane.last_failure.map(|failure| LaneFailure {
            at: Timestamp::from_millis(failure.at_ms),
            reason: failure.reason,
            retry_at: failure.retry_at_ms.map(Timestamp::from_millis),
        }),
    }
}

pub(crate) fn worker(worker: v1::WorkerInfo) -> WorkerInfo {
    WorkerInfo {
        name: non_empty(worker.name),
        address: non_empty(worker.address),
        broker: worker.broker,
        queues: worker.queues,
        in_flight: worker.in_flight,
        credit: worker.credit,
        since: Timestamp::from_millis(worker.since_ms),
    }
}
