//! Explains what a task waits for, in one sentence and some facts.
//!
//! [`explain`] is a pure function: `api/explain_task` gathers the [`Facts`] from the owner, the
//! store and the topology. `next_fires` has the fires that follow.

mod next_fires;
#[cfg(test)]
mod tests;

use std::time::Duration;

use punctual_core::{
    AttemptRecord, DeadReason, Due, FireEnd, FireRecord, Misfire, Occasion, Outcome, Overlap,
    Schedule, SinkTarget, Target, Task, TaskState, Timestamp, Zone, format_duration,
};
use punctual_engine::LaneView;

use crate::fire_form::answer_text;
use crate::namespace_view::NamespaceView;
pub(crate) use next_fires::{UpcomingFire, next_fires};

/// Deliveries of one namespace to one receiver that are in flight at once, unless the receiver is
/// slow.
const WEBHOOKS_AT_ONCE: usize = 256;
/// Characters of an answer in a sentence: a message, not a page.
const ANSWER_CHARS_MAX: usize = 120;

/// What a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitingFor {
    /// Its due time.
    Time,
    /// The next attempt, after one that failed.
    Retry,
    /// A worker that takes the delivery, or settles it.
    Worker,
    /// A receiver, a connection or memory that other deliveries use.
    Capacity,
    /// A share of what all namespaces use.
    Limit,
    /// Its resumption.
    Pause,
    /// A broker that owns its partition and can write to the store.
    Owner,
    /// Nothing: an attempt is in flight, or the task has ended.
    Nothing,
}

impl WaitingFor {
    pub(crate) const ALL: [Self; 8] = [
        Self::Time,
        Self::Retry,
        Self::Worker,
        Self::Capacity,
        Self::Limit,
        Self::Pause,
        Self::Owner,
        Self::Nothing,
    ];

    /// The name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Retry => "retry",
            Self::Worker => "worker",
            Self::Capacity => "capacity",
            Self::Limit => "limit",
            Self::Pause => "pause",
            Self::Owner => "owner",
            Self::Nothing => "nothing",
        }
    }
}

/// What is known of a living task.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) task: &'a Task,
    pub(crate) now: Timestamp,
    /// The broker that owns the partition, or did last; `None` if none is known.
    pub(crate) owner: Option<&'a str>,
    /// What that broker says; `None` if it does not answer.
    pub(crate) view: Option<&'a NamespaceView>,
}

/// Why a task is in its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskExplanation {
    /// One sentence.
    pub(crate) summary: String,
    pub(crate) waiting_for: WaitingFor,
    /// More sentences, each about one fact.
    pub(crate) details: Vec<String>,
}

/// Explains a task that has not ended.
pub(crate) fn explain(facts: &Facts<'_>) -> TaskExplanation {
    let (waiting_for, what) = cause(facts);
    let summary = format!("{} {what}.", name_of(facts.task));
    TaskExplanation { summary, waiting_for, details: details(facts, waiting_for) }
}

/// Explains a task that has ended, by its last fire.
pub(crate) fn explain_ended(record: &FireRecord) -> TaskExplanation {
    let name = record.key.as_ref().map_or_else(
        || format!("Task {}", record.fire_id.task),
        |key| format!("Task {:?}", key.as_str()),
    );
    let ended = record.ended_at;
    let attempts = count(record.attempts.len(), "attempt");
    let what = match record.end {
        FireEnd::Done => format!("is done: its last fire succeeded at {ended} after {attempts}"),
        FireEnd::Dead(DeadReason::Unknown) => format!(
            "is dead: its last fire was sent at most once, and the outcome is not known; it was \
             given up at {ended}"
        ),
        FireEnd::Dead(_) => {
            let why = record.attempts.last().map_or_else(|| "no attempt was made".into(), outcome);
            format!("is dead: its last fire was given up at {ended} after {attempts} ({why})")
        }
        FireEnd::Cancelled => format!("was cancelled at {ended}"),
        FireEnd::Replaced => format!("was replaced at {ended}"),
        FireEnd::Skipped(_) => format!("has ended: its last fires were skipped, at {ended}"),
    };
    let summary = format!("{name} {what}.");
    let mut details = vec![format!("The last fire was due at {}.", record.due_at)];
    if let Some(lag) = record.lag() {
        details.push(format!("Its first attempt was sent {} late.", format_duration(lag)));
    }
    TaskExplanation { summary, waiting_for: WaitingFor::Nothing, details }
}

fn name_of(task: &Task) -> String {
    match &task.definition.key {
        Some(key) => format!("Task {:?}", key.as_str()),
        None => format!("Task {}", task.id),
    }
}

/// What the task waits for, and the rest of the sentence that says so.
fn cause(facts: &Facts<'_>) -> (WaitingFor, String) {
    let Facts { task, now, owner, view } = *facts;
    let Some(view) = view else {
        return (WaitingFor::Owner, no_owner(task, owner));
    };
    match task.state {
        TaskState::Paused => {
            let what = format!("is paused since {}; resume it to fire again", task.updated_at);
            (WaitingFor::Pause, what)
        }
        TaskState::Done | TaskState::Dead | TaskState::Cancelled => {
            (WaitingFor::Nothing, "is a watch that has fired; a touch arms it again".to_owned())
        }
        TaskState::Firing => in_flight(task),
        TaskState::Scheduled if task.fire_at > now => not_due(task, now),
        TaskState::Scheduled => due(task, view, now),
    }
}

fn no_owner(task: &Task, owner: Option<&str>) -> String {
    let partition = task.id.partition().get();
    match owner {
        Some(owner) => format!(
            "waits for an owner: broker {owner}, which owned partition {partition} last, does not \
             answer"
        ),
        None => format!("waits for an owner: no broker owns partition {partition} right now"),
    }
}

/// An attempt was sent.
fn in_flight(task: &Task) -> (WaitingFor, String) {
    let (attempt, timeout) = (task.attempt_next().get(), format_duration(task.definition.timeout));
    match &task.definition.target {
        Target::Queue(queue) => {
            let queue = queue.as_str();
            let what = format!(
                "is firing: a worker of queue {queue:?} has attempt {attempt} and has not settled \
                 it; it has {timeout} unless it extends the lease"
            );
            (WaitingFor::Worker, what)
        }
        Target::Http(http) => called(http.origin(), attempt, &timeout),
        Target::Grpc(grpc) => called(grpc.origin(), attempt, &timeout),
        Target::Mail(_) => (WaitingFor::Nothing, "is firing: its mail is being sent".to_owned()),
        Target::Sink(sink) => {
            let what = format!(
                "is firing: attempt {attempt} was sent over connection {:?}, which has {timeout} \
                 to confirm it",
                sink.connection.as_str()
            );
            (WaitingFor::Nothing, what)
        }
    }
}

fn called(origin: &str, attempt: u32, timeout: &str) -> (WaitingFor, String) {
    let what =
        format!("is firing: attempt {attempt} was sent to {origin}, which has {timeout} to answer");
    (WaitingFor::Nothing, what)
}

fn not_due(task: &Task, now: Timestamp) -> (WaitingFor, String) {
    let (at, wait) = (task.fire_at, rough(task.fire_at.since(now)));
    let Some(last) = task.attempts.last() else {
        let rule = rule(task);
        return (
            WaitingFor::Time,
            format!("waits for its time: it is due at {at}, in {wait}{rule}"),
        );
    };
    let (next, max) = (task.attempt_next().get(), task.definition.retry.attempts_max);
    let what = format!(
        "waits for a retry: attempt {next} of {max} is due at {at}, in {wait}, because attempt {} \
         {}",
        last.number.get(),
        outcome(last)
    );
    (WaitingFor::Retry, what)
}

/// Why the task is due at that time, as the end of a sentence.
fn rule(task: &Task) -> String {
    if task.occasion != Occasion::Due {
        return String::new();
    }
    match &task.definition.schedule {
        Schedule::Once(Due::In(delay)) => format!(", {} after it was set", format_duration(*delay)),
        Schedule::Once(Due::At(_)) => String::new(),
        Schedule::Every { interval, .. } => format!(", every {}", format_duration(*interval)),
        Schedule::Cron { cron, .. } => {
            format!(", by cron {:?} in {}", cron.expression(), cron.zone().name())
        }
        Schedule::Watch { within, .. } => {
            format!(", if it is not touched within {}", format_duration(*within))
        }
    }
}

/// The task is due and no attempt was sent.
fn due(task: &Task, view: &NamespaceView, now: Timestamp) -> (WaitingFor, String) {
    let late = rough(now.since(task.fire_at));
    if view.owner.store_away {
        let what = format!("is {late} overdue: its owner cannot reach the store");
        return (WaitingFor::Owner, what);
    }
    let lane = view.owner.lanes.first();
    let at_target = match &task.definition.target {
        Target::Queue(queue) => queue_cause(queue.as_str(), view, lane),
        Target::Http(http) => webhook_cause(http.origin(), view, lane),
        Target::Grpc(grpc) => webhook_cause(grpc.origin(), view, lane),
        Target::Mail(_) => None,
        Target::Sink(sink) => sink_cause(sink, lane),
    };
    let waiting = lane.is_some_and(|lane| lane.waiting > 0 || lane.spilled_since.is_some());
    let (waiting_for, why) = match at_target {
        Some((WaitingFor::Worker, why)) => (WaitingFor::Worker, why),
        _ if waiting && view.owner.share_used_up => {
            let namespace = task.definition.namespace.as_str();
            let why = format!(
                "namespace {namespace:?} has as much in flight as its share of the owner's memory"
            );
            (WaitingFor::Limit, why)
        }
        Some(found) => found,
        None => behind(task, view),
    };
    (waiting_for, format!("is {late} overdue: {why}"))
}

fn queue_cause(
    queue: &str,
    view: &NamespaceView,
    lane: Option<&LaneView>,
) -> Option<(WaitingFor, String)> {
    let is_of = |name: &&punctual_core::Queue| name.as_str() == queue;
    let workers = view.workers.iter().filter(|worker| worker.queues.iter().find(is_of).is_some());
    let workers = workers.count();
    if workers == 0 && lane.is_none_or(|lane| lane.capacity == 0) {
        let why = format!("no worker is connected to queue {queue:?}");
        return Some((WaitingFor::Worker, why));
    }
    let lane = lane.filter(|lane| is_full(lane))?;
    let why = format!(
        "{} of queue {queue:?} {} {}, as many as their credit, and {} {} before or with this one",
        count(workers, "worker"),
        if workers == 1 { "has" } else { "have" },
        count(lane.in_flight + lane.unsent, "unsettled delivery"),
        count(lane.waiting, "task"),
        if lane.waiting == 1 { "waits" } else { "wait" },
    );
    Some((WaitingFor::Capacity, why))
}

fn webhook_cause(
    origin: &str,
    view: &NamespaceView,
    lane: Option<&LaneView>,
) -> Option<(WaitingFor, String)> {
    let lane = lane?;
    if lane.unsent > 0 && view.connection_waits > 0 {
        let why = format!(
            "{} to {origin} {} for a connection; the broker has {} open, as many as it may have \
             for this receiver now",
            count(lane.unsent, "delivery"),
            if lane.unsent == 1 { "waits" } else { "wait" },
            count(usize::try_from(view.connections).unwrap_or(usize::MAX), "connection"),
        );
        return Some((WaitingFor::Capacity, why));
    }
    if is_full(lane) && lane.capacity < WEBHOOKS_AT_ONCE {
        let why = format!(
            "{origin} is slow: it did not answer in time, so at most {} are sent to it at once, \
             and {} before or with this one",
            count(lane.capacity, "delivery"),
            waits(lane.waiting),
        );
        return Some((WaitingFor::Capacity, why));
    }
    if is_full(lane) {
        let why = format!(
            "{origin} has {} that it has not answered, the most at once, and {} before or with \
             this one",
            count(lane.in_flight + lane.unsent, "delivery"),
            waits(lane.waiting),
        );
        return Some((WaitingFor::Capacity, why));
    }
    if lane.unsent > 0 && lane.waiting == 0 {
        let why = format!("a connection to {origin} is being opened");
        return Some((WaitingFor::Capacity, why));
    }
    None
}

fn sink_cause(sink: &SinkTarget, lane: Option<&LaneView>) -> Option<(WaitingFor, String)> {
    let (lane, connection) = (lane?, sink.connection.as_str());
    if lane.capacity == 0 {
        let since = lane.starved_since.map_or_else(String::new, |at| format!(" since {at}"));
        let why = format!("it waits for connection {connection:?}, which is away{since}");
        return Some((WaitingFor::Capacity, why));
    }
    if lane.unsent == 0 && !is_full(lane) {
        return None;
    }
    let why = format!(
        "connection {connection:?} has {} that it has not sent and {} that are not confirmed, and \
         {} before or with this one",
        count(lane.unsent, "delivery"),
        count(lane.in_flight, "delivery"),
        waits(lane.waiting),
    );
    Some((WaitingFor::Capacity, why))
}

fn is_full(lane: &LaneView) -> bool {
    lane.in_flight + lane.unsent >= lane.capacity
}

/// Nothing at the target holds the task up.
fn behind(task: &Task, view: &NamespaceView) -> (WaitingFor, String) {
    match view.owner.unread_since {
        Some(read) if read <= task.fire_at => {
            let why = format!(
                "its owner has more due tasks than memory, and has read them up to {read} so far"
            );
            (WaitingFor::Capacity, why)
        }
        _ => (WaitingFor::Nothing, "it is being sent".to_owned()),
    }
}

/// Facts beside the summary.
fn details(facts: &Facts<'_>, waiting_for: WaitingFor) -> Vec<String> {
    let Facts { task, now, view, .. } = *facts;
    let mut details = Vec::new();
    details.extend(view.is_none().then(|| {
        "The task is shown as the store has it; whether an attempt is in flight is not known."
            .to_owned()
    }));
    details.extend(schedule_details(task, waiting_for));
    if let Some(last) = task.attempts.last().filter(|_| waiting_for != WaitingFor::Retry) {
        details.push(format!("Attempt {} {}.", last.number.get(), outcome(last)));
    }
    details.extend(task.redrive.as_ref().map(|redrive| {
        format!("The current fire is a dead letter that was redriven at {}.", redrive.at)
    }));
    details.extend(task.expires_at().map(|at| match at <= now {
        true => format!("The fire expired at {at} and becomes a dead letter."),
        false => format!("The fire expires at {at}."),
    }));
    let late = now.since(task.fire_at);
    if let Some(view) = view.filter(|_| task.state == TaskState::Scheduled && !late.is_zero()) {
        details.extend(view.owner.lanes.first().map(lane_detail));
    }
    let suspect = view.and_then(|view| view.clock_suspect.as_ref());
    details.extend(suspect.map(|why| format!("The clock of the owner is suspect: {why}.")));
    details
}

/// Why the fire is due when it is.
fn schedule_details(task: &Task, waiting_for: WaitingFor) -> Vec<String> {
    let mut details = Vec::new();
    match task.occasion {
        Occasion::Due => {}
        Occasion::Manual => details.push("A caller asked for this fire.".to_owned()),
        Occasion::Return => {
            details.push("The watch was touched after it had fired.".to_owned());
        }
    }
    if let Schedule::Cron { cron, .. } = &task.definition.schedule {
        details.push(format!("Its local time is {}.", cron.zone().local(task.nominal_at)));
        details.extend(cron.note(task.nominal_at).map(|note| format!("Clock change: {note}.")));
    }
    if waiting_for == WaitingFor::Time && task.fire_at > task.nominal_at {
        let jitter = format_duration(task.fire_at.since(task.nominal_at));
        details.push(format!("Jitter moves it from {} by {jitter}.", task.nominal_at));
    }
    if let Some(series) = task.definition.schedule.series() {
        let policy = match series.misfire {
            Misfire::FireOnce => {
                "If fires are missed, the latest one is fired late (misfire \
                                  fire_once)."
            }
            Misfire::FireAll => {
                "If fires are missed, all of them are fired late (misfire \
                                 fire_all)."
            }
            Misfire::Skip => "If fires are missed, they are skipped (misfire skip).",
        };
        details.push(policy.to_owned());
        details.extend(overlap_detail(series.overlap).map(str::to_owned));
    }
    details
}

const fn overlap_detail(overlap: Overlap) -> Option<&'static str> {
    match overlap {
        Overlap::Allow => None,
        Overlap::Skip => {
            Some("Fires that are due while another is in flight are skipped (overlap skip).")
        }
        Overlap::QueueOne => Some(
            "Of the fires that are due while another is in flight, the first one waits for its \
             end and the others are skipped (overlap queue_one).",
        ),
    }
}

fn lane_detail(lane: &LaneView) -> String {
    let mut detail = format!(
        "Its lane: {} in memory, {} not sent yet, {} in flight, {} at once.",
        waits(lane.waiting),
        count(lane.unsent, "delivery"),
        lane.in_flight,
        lane.capacity,
    );
    if let Some(since) = lane.spilled_since {
        detail.push_str(&format!(" Tasks due since {since} wait in the store only."));
    }
    detail
}

/// What came of an attempt, as the end of a sentence.
fn outcome(attempt: &AttemptRecord) -> String {
    let message = || message(attempt).map_or_else(String::new, |text| format!(": {text}"));
    match &attempt.outcome {
        Outcome::Acked => "succeeded".to_owned(),
        Outcome::Failed { reason, retry_in } => {
            let asked = retry_in.map_or_else(String::new, |pause| {
                format!(", and the receiver asked for a pause of {}", format_duration(pause))
            });
            format!("failed: {}{}{asked}", reason.as_str(), message())
        }
        Outcome::Refused { reason } => format!("was refused: {}{}", reason.as_str(), message()),
        Outcome::Expired => "was not answered in time".to_owned(),
    }
}

/// The beginning of what the receiver answered, on one line; `None` if it is empty or not text.
fn message(attempt: &AttemptRecord) -> Option<String> {
    let text = answer_text(attempt.answer.as_ref()?)?;
    let words = |c: char| c.is_whitespace() || c.is_control();
    let line = text.split(words).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let mut shown: String = line.chars().take(ANSWER_CHARS_MAX).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    (!shown.is_empty()).then_some(shown)
}

fn waits(tasks: usize) -> String {
    let verb = if tasks == 1 { "waits" } else { "wait" };
    format!("{} {verb}", count(tasks, "task"))
}

fn count(number: usize, one: &str) -> String {
    match (number, one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {one}s"),
    }
}

/// A duration without the parts that do not matter to people.
fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let shown = match seconds {
        0..10 => duration,
        10..3_600 => Duration::from_secs(seconds),
        _ => Duration::from_secs(seconds - seconds % 60),
    };
    format_duration(shown)
}

/// The zone of the local times of a task.
pub(crate) fn zone_of(task: &Task) -> Zone {
    match &task.definition.schedule {
        Schedule::Cron { cron, .. } => cron.zone().clone(),
        _ => Zone::utc(),
    }
}
