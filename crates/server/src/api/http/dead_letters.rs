//! Dead letters: listed, sent back to be fired, deleted.
//!
//! In: a namespace, and which letters. Out: pages of letters, or what came of each. Bound: letters are sent back in batches of
//! [`REDRIVE_BATCH`], and no more than [`REDRIVE_MAX`] by one call, which says whether there are more.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{DeadLetter, FireId, Invalid, Namespace, TaskState};
use punctual_engine::{Command, EngineError, Subject};
use punctual_store::{Page, TaskStore as _};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::calls::Calls;
use super::cursor;
use super::error::Problem;
use super::fires::{Attempt, attempts_of, reason_name};
use super::list::{PAGE_DEFAULT, PAGE_MAX, read_dead};
use super::request::{self, Asked, In, NAMES_BYTES_MAX, Named, Sent, check_count};
use super::task::TaskAnswer;
use crate::broker::Broker;

/// Letters that go back together: one commit, and a moment's work for an owner.
const REDRIVE_BATCH: usize = 500;
/// Letters that one call sends back: some seconds.
const REDRIVE_MAX: usize = 100_000;

/// A page of dead letters.
#[derive(Debug, Serialize, ToSchema)]
struct Letters<'a> {
    dead: Vec<Letter<'a>>,
    next: Option<String>,
}

/// A fire that came to nothing.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadLetter)]
struct Letter<'a> {
    fire_id: String,
    /// `exhausted`, `refused`, `expired`, or `unknown`: sent at most once, and no answer has come so far. A letter whose answer comes yet
    /// is gone with it, and while one may come it is not sent back.
    reason: &'static str,
    died_at: String,
    attempts: Vec<Attempt>,
    task: TaskAnswer<'a>,
}

/// Lists dead letters in the order of their fire ids.
#[utoipa::path(
    get, path = "/v1/{namespace}/dead", tag = "dead letters",
    params(
        ("limit" = Option<u32>, Query, description = "1 to 1000; 100 unless given"),
        ("cursor" = Option<String>, Query, description = "the `next` of the page before"),
    ),
    responses((status = 200, description = "a page", body = Letters))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    mut asked: Asked,
) -> Answer {
    let limit = asked.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    let after = cursor::letter(asked.take("cursor")?.as_deref())?;
    asked.end()?;
    let Page { items, next } = read_dead(&broker, &namespace, after, limit).await?;
    let dead = items.iter().map(Letter::of).collect();
    answer::ok(&Letters { dead, next: next.map(cursor::of_letter) })
}

impl<'a> Letter<'a> {
    fn of(letter: &'a DeadLetter) -> Self {
        Self {
            fire_id: letter.fire_id().to_string(),
            reason: reason_name(letter.reason),
            died_at: letter.died_at.to_string(),
            attempts: attempts_of(&letter.task.attempts),
            task: TaskAnswer::in_state(&letter.task, TaskState::Dead),
        }
    }
}

/// Which letters go back: by their fire ids, or all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = Redrive)]
struct RedriveBody {
    #[serde(default)]
    ids: Option<Vec<String>>,
    #[serde(default)]
    all: Option<bool>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema, Default)]
struct Redriven {
    redriven: usize,
    /// Letters that could not go back.
    problems: Vec<LetterProblem>,
    /// Of `all`: whether there are more than one call sends back.
    more: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct LetterProblem {
    id: String,
    problem: Problem,
}

/// Sends dead letters back to be fired.
#[utoipa::path(
    post, path = "/v1/{namespace}/dead/redrive", tag = "dead letters", request_body = RedriveBody,
    responses((status = 200, description = "how many, and which not", body = Redriven))
)]
pub(crate) async fn redrive(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    Sent(body): Sent<NAMES_BYTES_MAX>,
) -> Answer {
    let body: RedriveBody = request::json(&body, "a list of ids, or `all`")?;
    let mut redriven = Redriven::default();
    match (body.ids, body.all) {
        (Some(ids), None) => redrive_ids(&broker, &namespace, &ids, &mut redriven).await?,
        (None, Some(true)) => redrive_all(&broker, &namespace, &mut redriven).await?,
        _ => {
            let problem = "exactly one of `ids` and `all: true` must be given";
            return Err(Invalid::new("ids", problem).into());
        }
    }
    answer::ok(&redriven)
}

async fn redrive_ids(
    broker: &Broker,
    namespace: &Namespace,
    ids: &[String],
    redriven: &mut Redriven,
) -> Result<(), Problem> {
    check_count("ids", ids.len())?;
    for batch in ids.chunks(REDRIVE_BATCH) {
        let mut letters = Vec::new();
        for id in batch {
            match letter(broker, namespace, id).await {
                Ok(letter) => letters.push(letter),
                Err(problem) => {
                    redriven.problems.push(LetterProblem { id: id.clone(), problem });
                }
            }
        }
        send_back(broker, namespace, letters, redriven).await;
    }
    Ok(())
}

/// Goes forward only: a letter that dies again stands where it stood, and is not met twice.
async fn redrive_all(
    broker: &Broker,
    namespace: &Namespace,
    redriven: &mut Redriven,
) -> Result<(), Problem> {
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = read_dead(broker, namespace, after, REDRIVE_BATCH).await?;
        seen += page.items.len();
        send_back(broker, namespace, page.items, redriven).await;
        after = page.next;
        redriven.more = after.is_some();
        if after.is_none() || seen >= REDRIVE_MAX {
            return Ok(());
        }
    }
}

async fn letter(broker: &Broker, namespace: &Namespace, id: &str) -> Result<DeadLetter, Problem> {
    let fire_id = fire_id("ids", id)?;
    let partition = fire_id.task.partition();
    if broker.owners.of(partition).is_none() {
        return Err(EngineError::NoLetter.into());
    }
    let letter = broker.store.dead_letter(partition, fire_id).await?;
    let letter = letter.filter(|letter| letter.task.definition.namespace == *namespace);
    letter.ok_or_else(|| EngineError::NoLetter.into())
}

async fn send_back(
    broker: &Broker,
    namespace: &Namespace,
    letters: Vec<DeadLetter>,
    redriven: &mut Redriven,
) {
    let mut calls = Calls::default();
    for letter in &letters {
        let subject = match &letter.task.definition.key {
            Some(key) => Subject::Key(namespace.clone(), key.clone()),
            None => Subject::Id(namespace.clone(), letter.task.id),
        };
        let command = Command::Redrive { subject, fire_id: letter.fire_id() };
        calls.push(letter.task.id.partition(), command);
    }
    for (letter, told) in letters.iter().zip(calls.ask(&broker.owners).await) {
        match told {
            Ok(_) => redriven.redriven += 1,
            Err(error) => {
                let id = letter.fire_id().to_string();
                redriven.problems.push(LetterProblem { id, problem: error.into() });
            }
        }
    }
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
struct Deleted {
    /// `deleted`.
    result: &'static str,
}

/// Deletes a dead letter.
#[utoipa::path(
    delete, path = "/v1/{namespace}/dead/{fire_id}", tag = "dead letters",
    responses((status = 200, description = "deleted", body = Deleted))
)]
pub(crate) async fn delete(
    State(broker): State<Arc<Broker>>,
    Named(namespace, id): Named,
) -> Answer {
    let fire_id = fire_id("fire_id", &id)?;
    let mut calls = Calls::default();
    calls.push(fire_id.task.partition(), Command::Forget { namespace, fire_id });
    match calls.ask(&broker.owners).await.into_iter().next() {
        Some(Ok(_)) => answer::ok(&Deleted { result: "deleted" }),
        Some(Err(EngineError::NotFound)) => Err(EngineError::NoLetter.into()),
        Some(Err(error)) => Err(error.into()),
        None => Err(EngineError::Stopped.into()),
    }
}

fn fire_id(field: &str, text: &str) -> Result<FireId, Problem> {
    let fire_id = text.parse::<FireId>();
    Ok(fire_id.map_err(|error| Invalid::new(field, error.to_string()))?)
}
