//! What can be asked of a namespace: schedule, cancel, touch, get, list, and work.
//!
//! In: the caller's verbs. Out: one answer each, or an [`Error`] that says whether the broker may have done it.
//! Invariant: a call is made again by itself only where twice is as good as once, or the broker has not seen it.
//! Next door: a task's wishes (`task`), how tasks are gathered (`batch`), workers (`worker`).

use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1;
use tokio::sync::oneshot;

use crate::batch::{Ask, TASKS_MAX, split};
use crate::client::{Again, Tasks};
use crate::task::{NewTask, Scheduled, Task, TaskId, TaskState};
use crate::time::millis_up;
use crate::worker::WorkerBuilder;
use crate::{Client, Error, Timestamp, wire};

/// The tasks and workers of one namespace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Namespace {
    client: Client,
    name: Arc<str>,
}

impl Namespace {
    pub(crate) fn new(client: Client, name: Arc<str>) -> Self {
        Self { client, name }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A new task: say when, where to and with what, then `schedule().await`.
    pub fn task(&self) -> NewTask<Self> {
        NewTask::to(self.clone())
    }

    /// A worker of this queue: say how, then give it a handler.
    pub fn worker(&self, queue: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(self.clone(), queue.into())
    }

    /// Schedules many tasks; one result each, in order.
    ///
    /// Tasks with a key are sent again by themselves when a connection breaks before they are answered; those without
    /// one then end as [`Error::Lost`], because sending them twice could schedule them twice.
    pub async fn schedule_many(
        &self,
        tasks: impl IntoIterator<Item = NewTask>,
    ) -> Vec<Result<Scheduled, Error>> {
        self.schedule_batches(tasks, None).await
    }

    /// The same for tasks that need no key to be scheduled once: under the same idempotency key the same tasks, in the
    /// same order, are scheduled only once, however often this is called. All of them are sent again by themselves
    /// when a connection breaks.
    pub async fn schedule_many_once(
        &self,
        idempotency_key: impl Into<String>,
        tasks: impl IntoIterator<Item = NewTask>,
    ) -> Vec<Result<Scheduled, Error>> {
        self.schedule_batches(tasks, Some(idempotency_key.into())).await
    }

    async fn schedule_batches(
        &self,
        tasks: impl IntoIterator<Item = NewTask>,
        idempotency_key: Option<String>,
    ) -> Vec<Result<Scheduled, Error>> {
        let mut results = Vec::new();
        let mut sent = Vec::new();
        for task in tasks {
            match task.into_asked() {
                Ok(asked) => sent.push(asked),
                Err(error) => results.push((results.len() + sent.len(), error)),
            }
        }
        let count = sent.len() + results.len();
        let mut waiting = Vec::with_capacity(count / TASKS_MAX + 1);
        for (number, tasks) in split(sent).enumerate() {
            let length = tasks.len();
            let idempotency_key =
                idempotency_key.as_ref().map_or(String::new(), |key| format!("{key}/{number}"));
            let (reply, answer) = oneshot::channel();
            let namespace = Arc::clone(&self.name);
            let asked = self.ask(Ask::Many { namespace, tasks, idempotency_key, reply }).await;
            waiting.push((length, asked.map(|()| answer)));
        }
        let mut answered = Vec::with_capacity(count);
        for (length, answer) in waiting {
            match self.answer(answer).await {
                Ok(answers) => answered.extend(answers),
                Err(error) => answered.extend((0..length).map(|_| Err(error.clone()))),
            }
        }
        for (place, error) in results {
            answered.insert(place.min(answered.len()), Err(error));
        }
        answered
    }

    /// Puts a wish in the line of the batches, which has a bound.
    async fn ask(&self, ask: Ask) -> Result<(), Error> {
        let sent = self.client.asks().send(ask);
        match tokio::time::timeout(self.client.timeout(), sent).await {
            Ok(sent) => sent.map_err(|_| Error::Stopped),
            // It is still here: nobody has seen it.
            Err(_) => Err(Error::Unreachable("the line of unsent tasks is full".to_owned())),
        }
    }

    async fn answer<T>(&self, answer: Result<oneshot::Receiver<T>, Error>) -> Result<T, Error> {
        match tokio::time::timeout(self.client.timeout(), answer?).await {
            Ok(answer) => answer.map_err(|_| Error::Stopped),
            Err(_) => Err(Error::TimedOut),
        }
    }

    /// Stops the task of this key before its next fire. After [`CancelResult::Cancelled`] it never fires.
    ///
    /// # Errors
    /// Any [`Error`]. After [`Error::Lost`] ask again: [`CancelResult::NotFound`] may then mean that it had worked.
    pub async fn cancel(&self, key: impl Into<String>) -> Result<CancelResult, Error> {
        one(self.cancel_many([key]).await?)
    }

    /// The same by id.
    ///
    /// # Errors
    /// As [`Namespace::cancel`].
    pub async fn cancel_id(&self, id: &TaskId) -> Result<CancelResult, Error> {
        one(self.cancel_asked(Vec::new(), vec![id.as_str().to_owned()]).await?)
    }

    /// Stops the tasks of these keys before their next fire; one result each, in order.
    ///
    /// # Errors
    /// As [`Namespace::cancel`], when none of them was looked at.
    pub async fn cancel_many<K: Into<String>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Result<CancelResult, Error>>, Error> {
        self.cancel_asked(keys.into_iter().map(Into::into).collect(), Vec::new()).await
    }

    async fn cancel_asked(
        &self,
        keys: Vec<String>,
        ids: Vec<String>,
    ) -> Result<Vec<Result<CancelResult, Error>>, Error> {
        let asked = keys.len() + ids.len();
        let request = v1::CancelRequest { namespace: self.name.to_string(), keys, ids };
        let call = |mut tasks: Tasks| {
            let request = request.clone();
            async move { tasks.cancel(request).await }
        };
        let answer = self.client.call(Again::IfNotSeen, call).await?;
        if answer.results.len() != asked {
            return Err(Error::Answer("cancel answered another number of tasks"));
        }
        Ok(answer.results.into_iter().map(wire::cancel_result).collect())
    }

    /// Pushes the watch of this key out by what it was given as `within`.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 when there is none.
    pub async fn touch(&self, key: impl Into<String>) -> Result<(), Error> {
        let key = key.into();
        let mut touched = self.touch_many([key.clone()], Touch::default()).await?;
        match (touched.problems.pop(), touched.missing.is_empty()) {
            (Some((_, error)), _) => Err(error),
            (None, true) => Ok(()),
            (None, false) => Err(Error::Problem(crate::Problem {
                kind: "urn:punctual:task-not-found".to_owned(),
                status: 404,
                detail: format!("task {key:?} not found in namespace {:?}", self.name),
                field: None,
            })),
        }
    }

    /// Pushes many tasks out, and creates those that are missing if `touch` says from what.
    ///
    /// # Errors
    /// Any [`Error`]; touching again is safe, and is done when an answer is lost.
    pub async fn touch_many<K: Into<String>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        touch: Touch,
    ) -> Result<Touched, Error> {
        let request = v1::TouchRequest {
            namespace: self.name.to_string(),
            keys: keys.into_iter().map(Into::into).collect(),
            to: touch.to,
            create: touch.create.map(NewTask::into_asked).transpose()?,
        };
        let call = |mut tasks: Tasks| {
            let request = request.clone();
            async move { tasks.touch(request).await }
        };
        self.client.call(Again::Always, call).await.map(wire::touched)
    }

    /// One task, by key or id; none if there is no such one.
    ///
    /// # Errors
    /// Any [`Error`] but a 404.
    pub async fn get(&self, key_or_id: impl Into<String>) -> Result<Option<Task>, Error> {
        let request =
            v1::GetRequest { namespace: self.name.to_string(), key_or_id: key_or_id.into() };
        let call = |mut tasks: Tasks| {
            let request = request.clone();
            async move { tasks.get(request).await }
        };
        match self.client.call(Again::Always, call).await {
            Ok(task) => wire::task(task).map(Some),
            Err(Error::Problem(problem)) if problem.status == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A page of living tasks in the order in which they are due.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn list(&self, list: List) -> Result<Page, Error> {
        let request = v1::ListRequest { namespace: self.name.to_string(), ..list.0 };
        let call = |mut tasks: Tasks| {
            let request = request.clone();
            async move { tasks.list(request).await }
        };
        let answer = self.client.call(Again::Always, call).await?;
        let next = if answer.next.is_empty() { None } else { Some(answer.next) };
        Ok(Page {
            tasks: answer.tasks.into_iter().map(wire::task).collect::<Result<_, _>>()?,
            next,
        })
    }
}

impl NewTask<Namespace> {
    /// Creates only: a task of that key is a conflict (409).
    pub fn if_absent(mut self) -> Self {
        self.condition = Some(v1::schedule_request::Condition::IfAbsent(true));
        self
    }

    /// Replaces only this version: another one is refused (412).
    pub fn if_version(mut self, version: u64) -> Self {
        self.condition = Some(v1::schedule_request::Condition::IfVersion(version));
        self
    }

    /// The same idempotency key with the same task schedules once, so that asking again is safe without a key.
    pub fn idempotency_key(mut self, idempotency_key: impl Into<String>) -> Self {
        self.idempotency_key = idempotency_key.into();
        self
    }

    /// Schedules it. When this answers, the task is durable.
    ///
    /// Calls that are under way at once travel together in batches. A task with a key or an idempotency key, and no
    /// condition, is sent again by itself when the connection breaks before it is answered. Any other then ends as
    /// [`Error::Lost`]. Dropping this future does not take the task back: cancel it.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::outcome_is_open`] says whether the broker may have done it.
    pub async fn schedule(mut self) -> Result<Scheduled, Error> {
        let condition = self.condition.take();
        let idempotency_key = std::mem::take(&mut self.idempotency_key);
        let namespace = self.to.clone();
        let task = self.into_asked()?;
        if condition.is_none() && idempotency_key.is_empty() {
            let (reply, answer) = oneshot::channel();
            let name = Arc::clone(&namespace.name);
            namespace.ask(Ask::One { namespace: name, task, reply }).await?;
            return namespace.answer(Ok(answer)).await?;
        }
        // A second try of a conditional one would meet its own first.
        let again = if condition.is_some() { Again::IfNotSeen } else { Again::Always };
        let request = v1::ScheduleRequest {
            namespace: namespace.name.to_string(),
            task: Some(task),
            condition,
            idempotency_key,
        };
        let call = |mut tasks: Tasks| {
            let request = request.clone();
            async move { tasks.schedule(request).await }
        };
        wire::schedule_response(namespace.client.call(again, call).await?)
    }
}

/// What became of a wish to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelResult {
    /// It will never fire.
    Cancelled,
    /// Too late: an attempt is under way.
    Firing {
        /// Which one.
        attempt: u32,
    },
    /// Too late: it has fired.
    AlreadyFired {
        /// When.
        fired_at: Timestamp,
    },
    /// There is no such task.
    NotFound,
}

/// How far out tasks are pushed. By default each watch by its own `within`.
#[derive(Debug, Default)]
#[must_use = "it says how, and is given to `touch_many`"]
pub struct Touch {
    to: Option<v1::touch_request::To>,
    create: Option<NewTask>,
}

impl Touch {
    /// So long from now: what a task that is due once needs.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.to = Some(v1::touch_request::To::InMs(millis_up(delay)));
        self
    }

    /// To this instant.
    pub fn at(mut self, fire_at: impl Into<Timestamp>) -> Self {
        self.to = Some(v1::touch_request::To::AtMs(fire_at.into().as_millis()));
        self
    }

    /// Watches by so much, this once, instead of their own `within`.
    pub fn within(mut self, within: Duration) -> Self {
        self.to = Some(v1::touch_request::To::WithinMs(millis_up(within)));
        self
    }

    /// Missing keys are created from this.
    pub fn create(mut self, task: NewTask) -> Self {
        self.create = Some(task);
        self
    }
}

/// What became of a wish to touch.
#[derive(Debug)]
#[non_exhaustive]
pub struct Touched {
    /// How many were pushed out.
    pub touched: u64,
    /// How many were missing, and created.
    pub created: u64,
    /// Keys of which there is no task.
    pub missing: Vec<String>,
    /// Keys that were found and could not be touched, each with why.
    pub problems: Vec<(String, Error)>,
}

/// Which tasks to list; by default all.
#[derive(Debug, Clone, Default)]
#[must_use = "it says which, and is given to `list`"]
pub struct List(v1::ListRequest);

impl List {
    /// Only those in this state.
    pub fn state(mut self, state: TaskState) -> Self {
        self.0.state = wire::state_asked(Some(state)).into();
        self
    }

    /// Only those whose key begins so.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.0.key_prefix = prefix.into();
        self
    }

    /// Only those with this label.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.0.label = format!("{name}={value}");
        self
    }

    /// Only those due from here on.
    pub fn from(mut self, from: impl Into<Timestamp>) -> Self {
        self.0.from_ms = from.into().as_millis();
        self
    }

    /// Only those due before this.
    pub fn to(mut self, to: impl Into<Timestamp>) -> Self {
        self.0.to_ms = to.into().as_millis();
        self
    }

    /// At most so many.
    pub fn limit(mut self, limit: u32) -> Self {
        self.0.limit = limit;
        self
    }

    /// From where the page before ended: its [`Page::next`].
    pub fn cursor(mut self, cursor: impl Into<String>) -> Self {
        self.0.cursor = cursor.into();
        self
    }
}

/// A page of tasks.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// In the order in which they are due.
    pub tasks: Vec<Task>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

fn one<T>(results: Vec<Result<T, Error>>) -> Result<T, Error> {
    results.into_iter().next().unwrap_or(Err(Error::Answer("there is no result")))
}
