//! The `Tasks` service. Calls that read are in `list` and `reads`.
//!
//! The batches of a stream are decided in the order in which they arrive, several at a time. A task
//! that is wrong does not affect the others. What is in flight on all streams together is bounded;
//! a stream beyond that waits.

use std::pin::Pin;
use std::sync::Arc;

use prost::Message;
use punctual_core::{Clock as _, Invalid, Namespace, TaskId, TaskKey, partition_of};
use punctual_engine::{
    COMMANDS_MAX, Command, Condition, EngineError, Reply, Scheduled, Subject, TouchTo,
};
use punctual_proto::v1;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::caller::{
    action, action_of_operator, authorize, authorize_creation, authorized_namespace, identify,
};
use super::{convert, drained, list, namespaces, preview, reads, whoami};
use crate::actions::ActionDetail;
use crate::api::command_batch::{
    CommandBatch, CommandResult, expect_cancelled, expect_scheduled, next_result, unexpected_reply,
};
use crate::api::find_task::{NamedTask, command_task, find};
use crate::api::held_answer::AnswerPermit;
use crate::api::idempotency::{Creation, Idempotency, bind_all, bind_one};
use crate::auth::CallRight;
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::shares::SharePermit;
use crate::task_form::{TaskToSchedule, check_fires};
use crate::touch_rules::TouchRules;

/// Tasks, keys or ids in one message.
const BATCH_MAX: usize = 10_000;
/// Batches of one stream in flight: enough that the next one is here when one is durable.
const BATCHES_MAX: usize = 16;
/// Tasks of up to 4 KiB in flight on all streams together, until their owners reply: half of what
/// one owner accepts, so that single calls are not refused.
const IN_FLIGHT_MAX: usize = COMMANDS_MAX / 2;
/// Bytes that count as one more task.
const WEIGHT_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct TasksApi {
    broker: Arc<Broker>,
    in_flight: Arc<Semaphore>,
}

impl TasksApi {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Self { broker, in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)) }
    }
}

/// The response to a batch whose commands are with their owners.
type PendingBatch = Pin<Box<dyn Future<Output = Result<v1::ScheduledBatch, Status>> + Send>>;

#[tonic::async_trait]
impl v1::tasks_server::Tasks for TasksApi {
    async fn schedule(
        &self,
        request: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::ScheduleResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let request = request.into_inner();
        let idempotency = idempotency(&request.idempotency_key).map_err(convert::invalid)?;
        let sent = request.task.ok_or_else(|| missing("task"))?;
        let bytes = idempotency.as_ref().map_or_else(Vec::new, |_| sent.encode_to_vec());
        let task = checked(&self.broker, &namespace, sent).map_err(convert::invalid)?;
        let condition = convert::condition(request.condition);
        if task.new_task.key.is_none() && condition != Condition::Always {
            return Err(convert::invalid(Invalid::new("key", "must be given with a condition")));
        }
        let owners = &self.broker.owners;
        let key = task.new_task.key.clone();
        let creation = Creation::new(task, 0, &bytes, idempotency.as_ref());
        let creation = bind_one::<Problem>(owners, creation).await;
        let creation = creation.map_err(|problem| convert::to_status(&problem))?;
        let (partition, command) = creation.into_command(condition, owners.partitions());
        let owner =
            partition.and_then(|partition| owners.of(partition)).unwrap_or_else(|| owners.any());
        let scheduled = owner.schedule(command).await;
        let scheduled = scheduled.map_err(|error| match (&key, error, condition) {
            // A task that does not exist has another version, too.
            (Some(key), EngineError::NotFound, Condition::Version(_)) => {
                convert::to_status(&Problem::no_version(task_ref(&namespace, key)))
            }
            (Some(key), error, _) => convert::failed(error, task_ref(&namespace, key)),
            (None, error, _) => convert::to_status(&error.into()),
        })?;
        let replaced = matches!(scheduled, Scheduled::Replaced(_));
        let task = Some(convert::task(scheduled.task()));
        Ok(Response::new(v1::ScheduleResponse { task, replaced }))
    }

    type ScheduleManyStream =
        Pin<Box<dyn Stream<Item = Result<v1::ScheduledBatch, Status>> + Send>>;

    async fn schedule_many(
        &self,
        request: Request<Streaming<v1::ScheduleBatch>>,
    ) -> Result<Response<Self::ScheduleManyStream>, Status> {
        let right = identify(&request)?;
        let (scheduling, scheduled) = mpsc::channel(BATCHES_MAX);
        let (broker, in_flight) = (Arc::clone(&self.broker), Arc::clone(&self.in_flight));
        tokio::spawn(take_batches(broker, right, in_flight, request.into_inner(), scheduling));
        // All of them are with their owners already, so waiting in order delays none.
        let responses = ReceiverStream::new(scheduled)
            .then(async |pending: Result<PendingBatch, Status>| pending?.await);
        Ok(Response::new(Box::pin(responses)))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let action = action_of_operator(&self.broker, &request, &namespace, "cancel_tasks")?;
        let v1::CancelRequest { keys, ids, .. } = request.into_inner();
        if !keys.is_empty() && !ids.is_empty() {
            let problem = "exactly one of `keys` and `ids` must be given";
            return Err(convert::invalid(Invalid::new("keys", problem)));
        }
        check_count("keys", keys.len().max(ids.len()))?;
        let owners = &self.broker.owners;
        let by_key = keys.iter().map(|key| {
            let key = TaskKey::new(key)?;
            let partition = partition_of(&namespace, &key, owners.partitions());
            Ok((partition, Subject::Key(namespace.clone(), key)))
        });
        let by_id = ids.iter().map(|id| {
            let id: TaskId = id.parse().map_err(|error| Invalid::new("ids", format!("{error}")))?;
            Ok((id.partition(), Subject::Id(namespace.clone(), id)))
        });
        let mut batch = CommandBatch::default();
        let sent: Vec<Result<(), Invalid>> = by_key
            .chain(by_id)
            .map(|subject| {
                let (partition, subject) = subject?;
                batch.push(partition, Command::Cancel(subject));
                Ok(())
            })
            .collect();
        let mut replies = batch.run(owners).await.into_iter();
        let names = keys.iter().chain(&ids);
        let results = sent.into_iter().zip(names).map(|(sent, name)| {
            let cancelled = sent.map_err(Problem::from).and_then(|()| {
                let task = TaskRef { namespace: &namespace, name };
                let reply = next_result(&mut replies).and_then(expect_cancelled);
                reply.map_err(|error| Problem::of_task(error, task))
            });
            convert::cancel_result(cancelled)
        });
        let results: Vec<v1::CancelResult> = results.collect();
        if let Some(action) = action {
            let cancelled = results.iter().filter(|result| convert::is_cancelled(result)).count();
            action.end(ActionDetail::of_many(results.len(), cancelled));
        }
        Ok(Response::new(v1::CancelResponse { results }))
    }

    async fn touch(
        &self,
        request: Request<v1::TouchRequest>,
    ) -> Result<Response<v1::TouchResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        if request.get_ref().create.is_some() {
            authorize_creation(&request, &namespace)?;
        }
        let action = action_of_operator(&self.broker, &request, &namespace, "touch_tasks")?;
        let request = request.into_inner();
        let count = request.keys.len();
        check_count("keys", count)?;
        let push = convert::push(request.to).map_err(convert::invalid)?;
        let template =
            request.create.map(|create| template(&self.broker, &namespace, create)).transpose();
        let template = template.map_err(|invalid| convert::invalid(invalid.within("create")))?;
        let keys = request.keys.iter().enumerate().map(|(index, key)| {
            let named = |invalid: Invalid| Invalid::new(format!("keys[{index}]"), invalid.problem);
            TaskKey::new(key).map_err(named)
        });
        let keys = keys.collect::<Result<Vec<_>, _>>().map_err(convert::invalid)?;
        let mut response = v1::TouchResponse::default();
        let touch = |key: &TaskKey| touch(&namespace, key, push);
        let mut missing = self.run_each(&namespace, keys, touch, &mut response).await;
        if let Some(template) = template {
            let create = |key: &TaskKey| {
                let mut task = template.clone();
                task.new_task.key = Some(key.clone());
                Command::Schedule(task.into_command(Condition::Absent, None))
            };
            // Another caller may have created some of them meanwhile; those are touched.
            let exist = self.run_each(&namespace, missing, create, &mut response).await;
            missing = self.run_each(&namespace, exist, touch, &mut response).await;
        } else if !missing.is_empty() {
            let rules = TouchRules::read(&self.broker, &namespace).await;
            let rules = rules.map_err(|error| convert::to_status(&error.into()))?;
            let (ruled, others) = rules.split(missing);
            let create = |key: &TaskKey| rules.create(key).unwrap_or_else(|| touch(key));
            let exist = self.run_each(&namespace, ruled, create, &mut response).await;
            missing = self.run_each(&namespace, exist, touch, &mut response).await;
            missing.extend(others);
        }
        response.missing = missing.iter().map(|key| key.as_str().to_owned()).collect();
        if let Some(action) = action {
            let touched = usize::try_from(response.touched + response.created);
            action.end(ActionDetail::of_many(count, touched.unwrap_or(usize::MAX)));
        }
        Ok(Response::new(response))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::Task>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let v1::GetRequest { key_or_id, .. } = request.into_inner();
        let task = TaskRef { namespace: &namespace, name: &key_or_id };
        let found = find(&self.broker, task).await;
        Ok(Response::new(match found.map_err(|problem| convert::to_status(&problem))? {
            NamedTask::Living(found) => convert::task(&found),
            NamedTask::Ended(ended) => convert::fires::ended_task(&ended),
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (page, permit) = list::list(&self.broker, namespace, request.into_inner()).await?;
        kept.put(permit);
        Ok(Response::new(page))
    }

    async fn pause(&self, request: Request<v1::TaskRequest>) -> Result<Response<v1::Task>, Status> {
        self.change(request, "pause_task", Command::Pause).await
    }

    async fn resume(
        &self,
        request: Request<v1::TaskRequest>,
    ) -> Result<Response<v1::Task>, Status> {
        self.change(request, "resume_task", Command::Resume).await
    }

    async fn fire(&self, request: Request<v1::TaskRequest>) -> Result<Response<v1::Task>, Status> {
        self.change(request, "fire_task", Command::Fire).await
    }

    async fn fires(
        &self,
        request: Request<v1::FiresRequest>,
    ) -> Result<Response<v1::FiresResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (answer, permit) =
            reads::list_fires(&self.broker, namespace, request.into_inner()).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn explain(
        &self,
        request: Request<v1::TaskRequest>,
    ) -> Result<Response<v1::Explanation>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (answer, permit) =
            reads::explain(&self.broker, &namespace, &request.get_ref().key_or_id).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn dead_letters(
        &self,
        request: Request<v1::DeadLettersRequest>,
    ) -> Result<Response<v1::DeadLettersResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (answer, permit) =
            reads::dead_letters(&self.broker, &namespace, request.into_inner()).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn redrive(
        &self,
        request: Request<v1::RedriveRequest>,
    ) -> Result<Response<v1::RedriveResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let action = action(&self.broker, &request, &namespace, "redrive_dead_letters", "")?;
        let (answer, did) = reads::redrive(&self.broker, &namespace, request.into_inner()).await?;
        action.end(did);
        Ok(Response::new(answer))
    }

    async fn delete_dead_letter(
        &self,
        request: Request<v1::DeleteDeadLetterRequest>,
    ) -> Result<Response<v1::DeleteDeadLetterResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let fire_id = &request.get_ref().fire_id;
        let action = action(&self.broker, &request, &namespace, "delete_dead_letter", fire_id)?;
        let answer = reads::delete_dead_letter(&self.broker, &namespace, fire_id).await?;
        action.end(ActionDetail::default());
        Ok(Response::new(answer))
    }

    async fn stats(
        &self,
        request: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::StatsResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        Ok(Response::new(reads::stats(&self.broker, &namespace).await?))
    }

    async fn namespaces(
        &self,
        request: Request<v1::NamespacesRequest>,
    ) -> Result<Response<v1::NamespacesResponse>, Status> {
        let kept = answer_permit(&request);
        let (answer, permit) = namespaces::list(&self.broker, request.get_ref()).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn preview(
        &self,
        request: Request<v1::PreviewRequest>,
    ) -> Result<Response<v1::PreviewResponse>, Status> {
        Ok(Response::new(preview::preview(&self.broker, request.get_ref())?))
    }

    async fn forecast(
        &self,
        request: Request<v1::ForecastRequest>,
    ) -> Result<Response<v1::ForecastResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        Ok(Response::new(reads::forecast(&self.broker, namespace, request.into_inner()).await?))
    }

    async fn queues(
        &self,
        request: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::QueuesResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (answer, permit) = reads::queues(&self.broker, &namespace).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn workers(
        &self,
        request: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::WorkersResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (answer, permit) = reads::workers(&self.broker, &namespace).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn lanes(
        &self,
        request: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::LanesResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (answer, permit) = reads::lanes(&self.broker, &namespace).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn dead_groups(
        &self,
        request: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::DeadGroupsResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let kept = answer_permit(&request);
        let (answer, permit) = reads::dead_groups(&self.broker, &namespace).await?;
        kept.put(permit);
        Ok(Response::new(answer))
    }

    async fn delete_dead_letters(
        &self,
        request: Request<v1::DeleteDeadLettersRequest>,
    ) -> Result<Response<v1::DeleteDeadLettersResponse>, Status> {
        let namespace = authorized_namespace(&request, &request.get_ref().namespace)?;
        let action = action(&self.broker, &request, &namespace, "delete_dead_letters", "")?;
        let (answer, did) =
            reads::delete_letters(&self.broker, &namespace, request.into_inner()).await?;
        action.end(did);
        Ok(Response::new(answer))
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        let right = identify(&request)?;
        Ok(Response::new(whoami::whoami(&self.broker, &right.identity)))
    }
}

impl TasksApi {
    /// Sends a command of an operator whose reply is a task. `call` is its name in the OpenAPI
    /// document.
    async fn change(
        &self,
        request: Request<v1::TaskRequest>,
        call: &'static str,
        command: fn(Subject) -> Command,
    ) -> Result<Response<v1::Task>, Status> {
        let v1::TaskRequest { namespace, key_or_id } = request.get_ref();
        let namespace = authorized_namespace(&request, namespace)?;
        let action = action(&self.broker, &request, &namespace, call, key_or_id)?;
        let task = TaskRef { namespace: &namespace, name: key_or_id };
        let changed = command_task(&self.broker, task, command).await;
        let changed = changed.and_then(|found| found.ok_or_else(|| Problem::task_not_found(task)));
        let changed = changed.map_err(|problem| convert::to_status(&problem))?;
        action.end(ActionDetail::default());
        Ok(Response::new(convert::task(&changed)))
    }

    /// Runs a command for each key and adds the results to `response`. Returns the keys whose task
    /// does not exist (touch) or exists already (create).
    async fn run_each(
        &self,
        namespace: &Namespace,
        keys: Vec<TaskKey>,
        command: impl Fn(&TaskKey) -> Command,
        response: &mut v1::TouchResponse,
    ) -> Vec<TaskKey> {
        let owners = &self.broker.owners;
        let mut batch = CommandBatch::default();
        for key in &keys {
            batch.push(partition_of(namespace, key, owners.partitions()), command(key));
        }
        let mut others = Vec::new();
        for (key, result) in keys.into_iter().zip(batch.run(owners).await) {
            match result {
                Ok(Reply::Touched { .. }) => response.touched += 1,
                Ok(Reply::Scheduled(_)) => response.created += 1,
                Err(EngineError::NotFound | EngineError::Exists(_)) => others.push(key),
                failed => {
                    let error = failed.map_or_else(|error| error, |reply| unexpected_reply(&reply));
                    let problem = Problem::of_task(error, task_ref(namespace, &key));
                    response.problems.push(v1::TouchProblem {
                        key: key.as_str().to_owned(),
                        problem: Some(convert::to_problem(&problem)),
                    });
                }
            }
        }
        others
    }
}

/// Where the permit of a response is kept until it was sent.
fn answer_permit<T>(request: &Request<T>) -> AnswerPermit {
    request.extensions().get::<AnswerPermit>().cloned().unwrap_or_default()
}

/// Sends batches to their owners as they arrive, until the stream ends or the broker drains.
async fn take_batches(
    broker: Arc<Broker>,
    right: CallRight,
    in_flight: Arc<Semaphore>,
    mut batches: Streaming<v1::ScheduleBatch>,
    scheduling: mpsc::Sender<Result<PendingBatch, Status>>,
) {
    let mut draining = broker.draining.clone();
    let mut stream_permit = None;
    loop {
        let batch = tokio::select! {
            () = drained(&mut draining) => return,
            batch = batches.message() => batch,
        };
        let batch = match batch {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            // A batch that does not arrive in time, for example.
            Err(status) => {
                _ = scheduling.send(Err(status)).await;
                return;
            }
        };
        if stream_permit.is_none() {
            match permit_stream(&broker, &right, &batch.namespace) {
                Ok(permit) => stream_permit = Some(permit),
                Err(status) => {
                    _ = scheduling.send(Err(status)).await;
                    return;
                }
            }
        }
        let weight = batch.tasks.len() + batch.encoded_len() / WEIGHT_BYTES;
        let weight = u32::try_from(weight.min(IN_FLIGHT_MAX)).unwrap_or(u32::MAX);
        let Ok(slot) = scheduling.reserve().await else { return };
        let unread = match permit_batch(&broker, &right, &batch.namespace).await {
            Ok(permit) => permit,
            Err(status) => return slot.send(Err(status)),
        };
        let Ok(permit) = Arc::clone(&in_flight).acquire_many_owned(weight).await else { return };
        match send_batch(&broker, &right, batch).await {
            Ok(scheduled) => {
                // Spawned, so that a client that does not read its responses does not keep the
                // permit of all streams.
                let replied = tokio::spawn(async move {
                    let scheduled = scheduled.await;
                    drop(permit);
                    scheduled
                });
                slot.send(Ok(Box::pin(async move {
                    let scheduled = replied.await;
                    drop(unread);
                    scheduled.map_err(|_| convert::to_status(&EngineError::Stopped.into()))
                })));
            }
            Err(status) => return slot.send(Err(status)),
        }
    }
}

/// Takes a permit for a stream, in the share of the namespace that it begins with.
fn permit_stream(broker: &Broker, right: &CallRight, name: &str) -> Result<SharePermit, Status> {
    let namespace = namespace(name)?;
    authorize(right, &namespace)?;
    let permit = broker.limits.streams.try_acquire(&namespace);
    permit.map_err(|problem| convert::to_status(&problem))
}

/// Takes a permit for a batch until its response is read, in the share of its namespace.
async fn permit_batch(
    broker: &Broker,
    right: &CallRight,
    name: &str,
) -> Result<SharePermit, Status> {
    let namespace = namespace(name)?;
    authorize(right, &namespace)?;
    let permit = broker.limits.batches.acquire(&namespace).await;
    permit.map_err(|problem| convert::to_status(&problem))
}

/// Sends a batch to its owners, and returns a future of its response. A batch waits until its
/// idempotency key is bound, and the batches after it wait with it, to keep their order.
async fn send_batch(
    broker: &Broker,
    right: &CallRight,
    batch: v1::ScheduleBatch,
) -> Result<impl Future<Output = v1::ScheduledBatch> + Send + use<>, Status> {
    let namespace = namespace(&batch.namespace)?;
    authorize(right, &namespace)?;
    check_count("tasks", batch.tasks.len())?;
    let idempotency = idempotency(&batch.idempotency_key).map_err(convert::invalid)?;
    let partitions = broker.owners.partitions();
    let any = broker.owners.any_partition();
    let creations = batch.tasks.into_iter().enumerate().map(|(index, sent)| {
        let bytes = idempotency.as_ref().map_or_else(Vec::new, |_| sent.encode_to_vec());
        let task = checked(broker, &namespace, sent)?;
        Ok(Creation::new(task, index, &bytes, idempotency.as_ref()))
    });
    let creations: Vec<Result<Creation, Problem>> = creations.collect();
    let mut commands = CommandBatch::default();
    let sent = bind_all(&broker.owners, creations).await.into_iter().map(|creation| {
        let (partition, command) = creation?.into_command(Condition::Always, partitions);
        commands.push(partition.unwrap_or(any), Command::Schedule(command));
        Ok(())
    });
    let sent: Vec<Result<(), Problem>> = sent.collect();
    let pending = commands.send(&broker.owners);
    let number = batch.number;
    Ok(async move {
        let results = results_of(sent, pending.wait().await);
        v1::ScheduledBatch { number, results: results.map(convert::schedule_result).collect() }
    })
}

/// One result per task of a batch: its problem if it was not sent, else the reply of its owner.
fn results_of(
    sent: Vec<Result<(), Problem>>,
    replies: Vec<CommandResult>,
) -> impl Iterator<Item = Result<Scheduled, Problem>> {
    let mut replies = replies.into_iter();
    sent.into_iter().map(move |sent| {
        sent?;
        Ok(next_result(&mut replies).and_then(expect_scheduled)?)
    })
}

fn task_ref<'a>(namespace: &'a Namespace, key: &'a TaskKey) -> TaskRef<'a> {
    TaskRef { namespace, name: key.as_str() }
}

fn touch(namespace: &Namespace, key: &TaskKey, push: TouchTo) -> Command {
    Command::Touch(Subject::Key(namespace.clone(), key.clone()), push)
}

/// The task that missing ones are created from; it has no key.
fn template(
    broker: &Broker,
    namespace: &Namespace,
    create: v1::NewTask,
) -> Result<TaskToSchedule, Invalid> {
    let task = checked(broker, namespace, create)?;
    if task.new_task.key.is_some() {
        return Err(Invalid::new("key", "must be left out; the keys are in `keys`"));
    }
    Ok(task)
}

pub(super) fn namespace(name: &str) -> Result<Namespace, Status> {
    Namespace::new(name).map_err(convert::invalid)
}

fn missing(field: &str) -> Status {
    convert::invalid(Invalid::new(field, "must be given"))
}

fn check_count(field: &str, count: usize) -> Result<(), Status> {
    if count > BATCH_MAX {
        let problem = format!("must have at most {BATCH_MAX} entries, has {count}");
        return Err(convert::invalid(Invalid::new(field, problem)));
    }
    Ok(())
}

fn idempotency(key: &str) -> Result<Option<Idempotency>, Invalid> {
    let field = |invalid: Invalid| Invalid::new("idempotency_key", invalid.problem);
    (!key.is_empty()).then(|| Idempotency::new(key).map_err(field)).transpose()
}

/// Checks a task: its fields, that it fires, and that its targets are allowed.
fn checked(
    broker: &Broker,
    namespace: &Namespace,
    sent: v1::NewTask,
) -> Result<TaskToSchedule, Invalid> {
    let task = convert::new_task(namespace, sent)?;
    check_fires(&task.new_task.schedule, broker.clock.now())?;
    broker.guard.check_targets(&task.new_task)?;
    Ok(task)
}
