//! The calls of a namespace: schedule, cancel, touch, get, list, and workers. `reads` has more,
//! `alarms` those about alarms, `rules` those about rules, `operations` those about all tasks that
//! match and the series of measurements, `live` what happens now and what operators did, `polling`
//! leases without a worker.
//!
//! The client repeats a call only if repeating it has no further effect or if no broker has carried
//! it out. The [`Error`] of a call tells whether a broker may have carried it out. `task` builds
//! tasks, `batch` sends them in batches, `gather` sends calls about one task each together, and
//! `worker` has workers.

pub(crate) mod alarms;
pub(crate) mod live;
pub(crate) mod operations;
pub(crate) mod polling;
pub(crate) mod reads;
pub(crate) mod rules;

use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1;
use tokio::sync::oneshot;

use crate::answer::{CancelResult, Page, Touched};
use crate::batch::{ScheduleCall, TASKS_MAX, split};
use crate::brokers::channel::TasksStub;
use crate::client::state::ClientState;
use crate::client::unary::RetryWhen;
use crate::gather::{CancelBy, NamedCall, NamedVerb};
use crate::task::{NewTask, Scheduled, Task, TaskState};
use crate::task_id::TaskId;
use crate::time::millis_up;
use crate::worker::WorkerBuilder;
use crate::{Error, Timestamp, wire};

/// The tasks and workers of one namespace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Namespace {
    client: Arc<ClientState>,
    name: Arc<str>,
}

impl Namespace {
    pub(crate) fn new(client: Arc<ClientState>, name: Arc<str>) -> Self {
        Self { client, name }
    }

    /// The name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts a new task: choose time, target and payload, then `schedule().await`.
    pub fn task(&self) -> NewTask<Self> {
        NewTask::to(self.clone())
    }

    /// Starts a worker of a queue: choose its options, then give it a handler.
    pub fn worker(&self, queue: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(Arc::clone(&self.client), Arc::clone(&self.name), queue.into())
    }

    /// Schedules many tasks. Returns one result for each, in order.
    ///
    /// If a connection breaks before the answer, tasks with a key are sent again. Tasks without a
    /// key end with [`Error::Lost`], because they could be scheduled twice.
    pub async fn schedule_many(
        &self,
        tasks: impl IntoIterator<Item = NewTask>,
    ) -> Vec<Result<Scheduled, Error>> {
        self.schedule_batches(tasks, None).await
    }

    /// Schedules many tasks once, also those without keys: with the same idempotency key, the same
    /// tasks in the same order are scheduled only once, however often this is called. If a
    /// connection breaks, all of them are sent again.
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
        let mut invalid = Vec::new();
        let mut messages = Vec::new();
        for task in tasks {
            match task.into_message() {
                Ok(message) => messages.push(message),
                Err(error) => invalid.push((invalid.len() + messages.len(), error)),
            }
        }
        let count = messages.len() + invalid.len();
        let keys: Vec<String> = messages.iter().map(|task| task.key.clone()).collect();
        let mut waiting = Vec::with_capacity(count / TASKS_MAX + 1);
        for (number, tasks) in split(messages).enumerate() {
            let length = tasks.len();
            let idempotency_key =
                idempotency_key.as_ref().map_or(String::new(), |key| format!("{key}/{number}"));
            let (reply, answer) = oneshot::channel();
            let namespace = Arc::clone(&self.name);
            let call = ScheduleCall::Many { namespace, tasks, idempotency_key, reply };
            let queued = self.enqueue(call).await;
            waiting.push((length, queued.map(|()| answer)));
        }
        let mut answered = Vec::with_capacity(count);
        for (length, answer) in waiting {
            match self.answer(answer).await {
                Ok(answers) => answered.extend(answers),
                Err(error) => answered.extend((0..length).map(|_| Err(error.clone()))),
            }
        }
        for (answer, key) in answered.iter_mut().zip(keys) {
            if let Ok(scheduled) = answer {
                scheduled.set_key(key);
            }
        }
        for (index, error) in invalid {
            answered.insert(index.min(answered.len()), Err(error));
        }
        answered
    }

    /// Puts a call into the bounded queue of the batches.
    async fn enqueue(&self, call: ScheduleCall) -> Result<(), Error> {
        let queued = self.client.calls().send(call);
        match tokio::time::timeout(self.client.timeout(), queued).await {
            Ok(queued) => queued.map_err(|_| Error::Stopped),
            // The call was not sent.
            Err(_) => Err(Error::Unreachable("the queue of unsent tasks is full".to_owned())),
        }
    }

    async fn answer<T>(&self, answer: Result<oneshot::Receiver<T>, Error>) -> Result<T, Error> {
        match tokio::time::timeout(self.client.timeout(), answer?).await {
            Ok(answer) => answer.map_err(|_| Error::Stopped),
            Err(_) => Err(Error::TimedOut),
        }
    }

    /// Cancels the task with a key. After [`CancelResult::Cancelled`] it never fires again.
    ///
    /// Concurrent calls are sent together. Dropping this future does not stop the call.
    ///
    /// # Errors
    /// Any [`Error`]. After [`Error::Lost`] call again; [`CancelResult::NotFound`] may then mean
    /// that the first call has cancelled it.
    pub async fn cancel(&self, key: impl Into<String>) -> Result<CancelResult, Error> {
        self.cancel_one(CancelBy::Key, key.into()).await
    }

    /// Cancels the task with an id.
    ///
    /// # Errors
    /// Those of [`Namespace::cancel`].
    pub async fn cancel_id(&self, id: &TaskId) -> Result<CancelResult, Error> {
        self.cancel_one(CancelBy::Id, id.as_str().to_owned()).await
    }

    async fn cancel_one(&self, by: CancelBy, name: String) -> Result<CancelResult, Error> {
        let (reply, answer) = oneshot::channel();
        self.gather(name, NamedVerb::Cancel(by, reply)).await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Puts a call about one task into the queue of those that are sent together.
    async fn gather(&self, name: String, verb: NamedVerb) -> Result<(), Error> {
        let call = NamedCall { namespace: Arc::clone(&self.name), name, verb };
        self.client.named_calls().send(call).await.map_err(|_| Error::Stopped)
    }

    /// Cancels the tasks with these keys. Returns one result for each, in order.
    ///
    /// # Errors
    /// Those of [`Namespace::cancel`], if the whole call failed.
    pub async fn cancel_many<K: Into<String>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Result<CancelResult, Error>>, Error> {
        let keys = keys.into_iter().map(Into::into).collect();
        let (namespace, ids) = (self.name.to_string(), Vec::new());
        self.client.unary().cancel(v1::CancelRequest { namespace, keys, ids }).await
    }

    /// Cancels the tasks with these ids. Returns one result for each, in order.
    ///
    /// # Errors
    /// Those of [`Namespace::cancel`], if the whole call failed.
    pub async fn cancel_ids(
        &self,
        ids: impl IntoIterator<Item = TaskId>,
    ) -> Result<Vec<Result<CancelResult, Error>>, Error> {
        let ids = ids.into_iter().map(|id| id.as_str().to_owned()).collect();
        let (namespace, keys) = (self.name.to_string(), Vec::new());
        self.client.unary().cancel(v1::CancelRequest { namespace, keys, ids }).await
    }

    /// Touches the watch with a key: it is due after its `within` from now.
    ///
    /// Concurrent calls are sent together. Dropping this future does not stop the call.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 if there is no such task; any other [`Error`].
    pub async fn touch(&self, key: impl Into<String>) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.gather(key.into(), NamedVerb::Touch(reply)).await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Touches many tasks, and creates those that are missing if [`Touch::create`] was given.
    ///
    /// # Errors
    /// Any [`Error`]. It is safe to touch again, and the client does so if an answer is lost.
    pub async fn touch_many<K: Into<String>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        touch: Touch,
    ) -> Result<Touched, Error> {
        let request = v1::TouchRequest {
            namespace: self.name.to_string(),
            keys: keys.into_iter().map(Into::into).collect(),
            to: touch.to,
            create: touch.create.map(NewTask::into_message).transpose()?,
        };
        self.client.unary().touch(request).await
    }

    /// Returns the task with a key or an id; `None` if there is none. A task that has ended is
    /// found as long as its history is retained ([`Task::end`]); a key that names no living task
    /// finds the task that had it last.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn get(&self, key_or_id: impl Into<String>) -> Result<Option<Task>, Error> {
        let request =
            v1::GetRequest { namespace: self.name.to_string(), key_or_id: key_or_id.into() };
        let call = |mut tasks: TasksStub| {
            let request = request.clone();
            async move { tasks.get(request).await }
        };
        let answer =
            reads::unless_not_found(self.client.unary().call(RetryWhen::Always, call).await)?;
        answer.map(wire::task).transpose()
    }

    /// Returns a page of tasks, ordered by due time. Cancelled tasks are not listed.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn list(&self, list: List) -> Result<Page, Error> {
        let request = v1::ListRequest { namespace: self.name.to_string(), ..list.0 };
        let call = |mut tasks: TasksStub| {
            let request = request.clone();
            async move { tasks.list(request).await }
        };
        let answer = self.client.unary().call(RetryWhen::Always, call).await?;
        let next = if answer.next.is_empty() { None } else { Some(answer.next) };
        Ok(Page {
            tasks: answer.tasks.into_iter().map(wire::task).collect::<Result<_, _>>()?,
            next,
        })
    }
}

impl NewTask<Namespace> {
    /// Only creates: if there is a task with the key, the broker refuses (409).
    pub fn if_absent(mut self) -> Self {
        self.condition = Some(v1::schedule_request::Condition::IfAbsent(true));
        self
    }

    /// Only replaces this version: if the task has another one, the broker refuses (412).
    pub fn if_version(mut self, version: u64) -> Self {
        self.condition = Some(v1::schedule_request::Condition::IfVersion(version));
        self
    }

    /// Schedules the same task only once with this idempotency key, so that it is safe to call
    /// again for a task without a key.
    pub fn idempotency_key(mut self, idempotency_key: impl Into<String>) -> Self {
        self.idempotency_key = idempotency_key.into();
        self
    }

    /// Schedules the task. It is durable when this returns `Ok`.
    ///
    /// Concurrent calls are sent together in batches. If the connection breaks before the answer, a
    /// task with a key or an idempotency key and without a condition is sent again; all others end
    /// with [`Error::Lost`]. Dropping this future does not cancel the task.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::outcome_is_open`] tells whether the task may be scheduled.
    pub async fn schedule(mut self) -> Result<Scheduled, Error> {
        let condition = self.condition.take();
        let idempotency_key = std::mem::take(&mut self.idempotency_key);
        let namespace = self.to.clone();
        let task = self.into_message()?;
        if condition.is_none() && idempotency_key.is_empty() {
            let (reply, answer) = oneshot::channel();
            let (name, key) = (Arc::clone(&namespace.name), task.key.clone());
            namespace.enqueue(ScheduleCall::One { namespace: name, task, reply }).await?;
            let mut scheduled: Scheduled = namespace.answer(Ok(answer)).await??;
            scheduled.set_key(key);
            return Ok(scheduled);
        }
        // The condition of a second call would see the effect of the first.
        let retry_when = if condition.is_some() { RetryWhen::IfNotSeen } else { RetryWhen::Always };
        let request = v1::ScheduleRequest {
            namespace: namespace.name.to_string(),
            task: Some(task),
            condition,
            idempotency_key,
        };
        let call = |mut tasks: TasksStub| {
            let request = request.clone();
            async move { tasks.schedule(request).await }
        };
        wire::schedule_response(namespace.client.unary().call(retry_when, call).await?)
    }
}

/// Until when tasks are postponed by a touch. By default each watch by its own `within`.
#[derive(Debug, Default)]
#[must_use = "options do nothing until they are passed to `touch_many`"]
pub struct Touch {
    to: Option<v1::touch_request::To>,
    create: Option<NewTask>,
}

impl Touch {
    /// Until `delay` from now. For tasks that are due once.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.to = Some(v1::touch_request::To::InMs(millis_up(delay)));
        self
    }

    /// Until an instant. For tasks that are due once.
    pub fn at(mut self, fire_at: impl Into<Timestamp>) -> Self {
        self.to = Some(v1::touch_request::To::AtMs(fire_at.into().as_millis()));
        self
    }

    /// Until `within` from now, for this touch only, instead of the own `within` of each watch.
    pub fn within(mut self, within: Duration) -> Self {
        self.to = Some(v1::touch_request::To::WithinMs(millis_up(within)));
        self
    }

    /// Creates a task like this one for each key without a task.
    pub fn create(mut self, task: NewTask) -> Self {
        self.create = Some(task);
        self
    }
}

/// A filter for listing tasks. By default all tasks.
#[derive(Debug, Clone, Default)]
#[must_use = "a filter does nothing until it is passed to `list`"]
pub struct List(v1::ListRequest);

impl List {
    /// Only tasks in this state.
    pub fn state(mut self, state: TaskState) -> Self {
        self.0.state = wire::state_filter(Some(state)).into();
        self
    }

    /// Only tasks with this kind of schedule: `once`, `cron`, `every`, `watch`, or `recurring`,
    /// which is `cron` or `every`.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.0.kind = kind.into();
        self
    }

    /// Only tasks whose key begins with this prefix.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.0.key_prefix = prefix.into();
        self
    }

    /// Only tasks with this label.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.0.label = format!("{name}={value}");
        self
    }

    /// Only tasks that are due at or after this instant.
    pub fn from(mut self, from: impl Into<Timestamp>) -> Self {
        self.0.from_ms = from.into().as_millis();
        self
    }

    /// Only tasks that are due before this instant.
    pub fn to(mut self, to: impl Into<Timestamp>) -> Self {
        self.0.to_ms = to.into().as_millis();
        self
    }

    /// The most tasks of the page.
    pub fn limit(mut self, limit: u32) -> Self {
        self.0.limit = limit;
        self
    }

    /// Continues after another page: the [`Page::next`] of that one.
    pub fn cursor(mut self, cursor: impl Into<String>) -> Self {
        self.0.cursor = cursor.into();
        self
    }
}
