//! `Tasks`: schedule, cancel, touch, get, list.
//!
//! In: calls and streams of batches. Out: commands to the owners, and their answers in order.
//! Invariants: batches of one stream are decided in the order in which they came, several at a time; one bad task spoils no other;
//! what is under way is bounded for all streams together, and a stream that is over its share waits.

use std::pin::Pin;
use std::sync::Arc;

use prost::Message;
use punctual_core::{Clock as _, Invalid, Namespace, NewTask, TaskId, TaskKey, partition_of};
use punctual_engine::{
    COMMANDS_MAX, Cancelled, Command, Condition, EngineError, Push, Reply, ScheduleCommand,
    Scheduled, Subject,
};
use punctual_proto::v1;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::{admit, admitted, convert, drains, list, who};
use crate::api::calls::Calls;
use crate::api::error::Problem;
use crate::api::idempotency::{Creation, Idempotency, bound, bound_one};
use crate::api::when::check_fires;
use crate::auth::Who;
use crate::broker::Broker;

/// Tasks, keys or ids in one message.
const BATCH_MAX: usize = 10_000;
/// Batches of one stream that are under way: enough that the next is here when one is durable.
const BATCHES_MAX: usize = 16;
/// What is under way on all streams together, in tasks of up to 4 KiB: half of what one owner takes, so that single calls
/// always find a place.
const UNDER_WAY_MAX: usize = COMMANDS_MAX / 2;
/// Bytes that count as one task more.
const WEIGHT_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct TasksDoor {
    broker: Arc<Broker>,
    under_way: Arc<Semaphore>,
}

impl TasksDoor {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Self { broker, under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)) }
    }
}

type Scheduling = Pin<Box<dyn Future<Output = v1::ScheduledBatch> + Send>>;

#[tonic::async_trait]
impl v1::tasks_server::Tasks for TasksDoor {
    async fn schedule(
        &self,
        request: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::ScheduleResponse>, Status> {
        let namespace = admitted(&self.broker, request.metadata(), &request.get_ref().namespace)?;
        let request = request.into_inner();
        let idempotency = idempotency(&request.idempotency_key).map_err(convert::invalid)?;
        let sent = request.task.ok_or_else(|| missing("task"))?;
        let bytes = idempotency.as_ref().map_or_else(Vec::new, |_| sent.encode_to_vec());
        let new_task = checked(&self.broker, &namespace, sent).map_err(convert::invalid)?;
        let condition = convert::condition(request.condition);
        if new_task.key.is_none() && condition != Condition::Always {
            return Err(convert::invalid(Invalid::new("key", "must be given with a condition")));
        }
        let owners = &self.broker.owners;
        let creation = Creation::new(new_task, 0, &bytes, idempotency.as_ref());
        let creation = bound_one::<EngineError>(owners, creation).await.map_err(convert::failed)?;
        let (partition, order) = creation.order(condition, owners.partitions());
        let owner =
            partition.and_then(|partition| owners.of(partition)).unwrap_or_else(|| owners.any());
        let scheduled = owner.schedule(order).await;
        let scheduled = scheduled.map_err(|error| match (error, condition) {
            // A task that is not there has not got that version either.
            (EngineError::NotFound, Condition::Version(_)) => {
                convert::failed(EngineError::OtherVersion(punctual_core::Version::new(0)))
            }
            (error, _) => convert::failed(error),
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
        let who = who(&self.broker, request.metadata())?;
        let (scheduling, scheduled) = mpsc::channel(BATCHES_MAX);
        let (broker, under_way) = (Arc::clone(&self.broker), Arc::clone(&self.under_way));
        tokio::spawn(take_batches(broker, who, under_way, request.into_inner(), scheduling));
        // All of them are with their owners already; waiting in order keeps none of them.
        let answers = ReceiverStream::new(scheduled)
            .then(async |scheduling: Result<Scheduling, Status>| Ok(scheduling?.await));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        let namespace = admitted(&self.broker, request.metadata(), &request.get_ref().namespace)?;
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
        let mut calls = Calls::default();
        let asked: Vec<Result<(), Invalid>> = by_key
            .chain(by_id)
            .map(|found| {
                let (partition, subject) = found?;
                calls.push(partition, Command::Cancel(subject));
                Ok(())
            })
            .collect();
        let answers = calls.ask(owners).await;
        let results = in_place(asked, answers, |answer| match answer {
            Reply::Cancelled(cancelled) => cancelled,
            answer => unreachable!("another command's answer: {answer:?}"),
        });
        let results: Vec<_> =
            results.map(|result: Result<Cancelled, _>| convert::cancel_result(result)).collect();
        Ok(Response::new(v1::CancelResponse { results }))
    }

    async fn touch(
        &self,
        request: Request<v1::TouchRequest>,
    ) -> Result<Response<v1::TouchResponse>, Status> {
        let namespace = admitted(&self.broker, request.metadata(), &request.get_ref().namespace)?;
        let request = request.into_inner();
        check_count("keys", request.keys.len())?;
        let push = convert::push(request.to).map_err(convert::invalid)?;
        let model =
            request.create.map(|create| model(&self.broker, &namespace, create)).transpose();
        let model = model.map_err(|invalid| convert::invalid(invalid.within("create")))?;
        let keys = request.keys.iter().enumerate().map(|(index, key)| {
            let named = |invalid: Invalid| Invalid::new(format!("keys[{index}]"), invalid.problem);
            TaskKey::new(key).map_err(named)
        });
        let keys = keys.collect::<Result<Vec<_>, _>>().map_err(convert::invalid)?;
        let mut answer = v1::TouchResponse::default();
        let touch = |key: &TaskKey| touch(&namespace, key, push);
        let mut missing = self.ask_each(&namespace, keys, touch, &mut answer).await;
        if let Some(model) = model {
            let create = |key: &TaskKey| {
                let new_task = NewTask { key: Some(key.clone()), ..model.clone() };
                let condition = Condition::Absent;
                Command::Schedule(ScheduleCommand {
                    new_task: new_task.into(),
                    condition,
                    receipt: None,
                })
            };
            // Somebody else may have created one meanwhile: then it is there to be touched.
            let exist = self.ask_each(&namespace, missing, create, &mut answer).await;
            missing = self.ask_each(&namespace, exist, touch, &mut answer).await;
        }
        answer.missing = missing.iter().map(|key| key.as_str().to_owned()).collect();
        Ok(Response::new(answer))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::Task>, Status> {
        let namespace = admitted(&self.broker, request.metadata(), &request.get_ref().namespace)?;
        let v1::GetRequest { key_or_id, .. } = request.into_inner();
        let owners = &self.broker.owners;
        let key = TaskKey::new(&key_or_id)
            .map_err(|invalid| convert::invalid(Invalid::new("key_or_id", invalid.problem)))?;
        let owner = owners.of_key(&namespace, &key);
        // A key first, because keys are the caller's own and may look like anything.
        let mut found = owner.get(Subject::Key(namespace.clone(), key)).await;
        if found == Err(EngineError::NotFound)
            && let Ok(id) = key_or_id.parse::<TaskId>()
            && let Some(owner) = owners.of(id.partition())
        {
            found = owner.get(Subject::Id(namespace, id)).await;
        }
        let task = found.map_err(convert::failed)?;
        Ok(Response::new(convert::task(&task)))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let namespace = admitted(&self.broker, request.metadata(), &request.get_ref().namespace)?;
        let request = request.into_inner();
        list::list(&self.broker, namespace, request).await.map(Response::new)
    }
}

impl TasksDoor {
    /// Asks the owners about all keys, and notes what came of it. Out: keys that the other command is for.
    async fn ask_each(
        &self,
        namespace: &Namespace,
        keys: Vec<TaskKey>,
        command: impl Fn(&TaskKey) -> Command,
        answer: &mut v1::TouchResponse,
    ) -> Vec<TaskKey> {
        let owners = &self.broker.owners;
        let mut calls = Calls::default();
        for key in &keys {
            calls.push(partition_of(namespace, key, owners.partitions()), command(key));
        }
        let mut others = Vec::new();
        for (key, told) in keys.into_iter().zip(calls.ask(owners).await) {
            match told {
                Ok(Reply::Touched { .. }) => answer.touched += 1,
                Ok(Reply::Scheduled(_)) => answer.created += 1,
                Err(EngineError::NotFound | EngineError::Exists(_)) => others.push(key),
                Ok(told) => unreachable!("another command's answer: {told:?}"),
                Err(error) => answer.problems.push(v1::TouchProblem {
                    key: key.as_str().to_owned(),
                    problem: Some(convert::to_problem(&error.into())),
                }),
            }
        }
        others
    }
}

/// Takes batches as they come and gives them to their owners, until the caller or the broker has enough.
async fn take_batches(
    broker: Arc<Broker>,
    who: Who,
    under_way: Arc<Semaphore>,
    mut batches: Streaming<v1::ScheduleBatch>,
    scheduling: mpsc::Sender<Result<Scheduling, Status>>,
) {
    let mut draining = broker.draining.clone();
    loop {
        let batch = tokio::select! {
            () = drains(&mut draining) => return,
            batch = batches.message() => batch,
        };
        let Ok(Some(batch)) = batch else { return };
        let weight = batch.tasks.len() + batch.encoded_len() / WEIGHT_BYTES;
        let weight = u32::try_from(weight.min(UNDER_WAY_MAX)).unwrap_or(u32::MAX);
        let Ok(place) = scheduling.reserve().await else { return };
        let Ok(permit) = Arc::clone(&under_way).acquire_many_owned(weight).await else { return };
        match send_batch(&broker, &who, batch).await {
            Ok(scheduled) => place.send(Ok(Box::pin(async move {
                let scheduled = scheduled.await;
                drop(permit);
                scheduled
            }))),
            Err(status) => return place.send(Err(status)),
        }
    }
}

/// Gives a batch to its owners. Out: its answer, when they have it. A batch waits until its idempotency key is bound, and the
/// next ones behind it: what is sent first is decided first.
async fn send_batch(
    broker: &Broker,
    who: &Who,
    batch: v1::ScheduleBatch,
) -> Result<impl Future<Output = v1::ScheduledBatch> + Send + use<>, Status> {
    let namespace = namespace(&batch.namespace)?;
    admit(who, &namespace)?;
    check_count("tasks", batch.tasks.len())?;
    let idempotency = idempotency(&batch.idempotency_key).map_err(convert::invalid)?;
    let partitions = broker.owners.partitions();
    let any = broker.owners.any_partition();
    let creations = batch.tasks.into_iter().enumerate().map(|(index, sent)| {
        let bytes = idempotency.as_ref().map_or_else(Vec::new, |_| sent.encode_to_vec());
        let new_task = checked(broker, &namespace, sent)?;
        Ok(Creation::new(new_task, index, &bytes, idempotency.as_ref()))
    });
    let creations: Vec<Result<Creation, Problem>> = creations.collect();
    let mut calls = Calls::default();
    let asked = bound(&broker.owners, creations).await.into_iter().map(|creation| {
        let (partition, order) = creation?.order(Condition::Always, partitions);
        calls.push(partition.unwrap_or(any), Command::Schedule(order));
        Ok(())
    });
    let asked: Vec<Result<(), Problem>> = asked.collect();
    let sent = calls.send(&broker.owners);
    let number = batch.number;
    Ok(async move {
        let results = in_place(asked, sent.answers().await, |answer| match answer {
            Reply::Scheduled(scheduled) => scheduled,
            answer => unreachable!("another command's answer: {answer:?}"),
        });
        v1::ScheduledBatch { number, results: results.map(convert::schedule_result).collect() }
    })
}

/// Puts answers to where their commands stood, among those that were not asked.
fn in_place<T, E: Into<Problem>>(
    asked: Vec<Result<(), E>>,
    answers: Vec<Result<Reply, EngineError>>,
    expected: impl Fn(Reply) -> T,
) -> impl Iterator<Item = Result<T, Problem>> {
    let mut answers = answers.into_iter();
    asked.into_iter().map(move |asked| {
        asked.map_err(Into::into)?;
        let answer = answers.next().unwrap_or(Err(EngineError::Stopped))?;
        Ok(expected(answer))
    })
}

fn touch(namespace: &Namespace, key: &TaskKey, push: Push) -> Command {
    Command::Touch(Subject::Key(namespace.clone(), key.clone()), push)
}

/// A task that others are made after.
fn model(broker: &Broker, namespace: &Namespace, create: v1::NewTask) -> Result<NewTask, Invalid> {
    let new_task = checked(broker, namespace, create)?;
    if new_task.key.is_some() {
        return Err(Invalid::new("key", "must be left out; `keys` has them"));
    }
    Ok(new_task)
}

pub(super) fn namespace(name: &str) -> Result<Namespace, Status> {
    Namespace::new(name).map_err(convert::invalid)
}

fn missing(field: &str) -> Status {
    convert::invalid(Invalid::new(field, "must be given"))
}

fn check_count(field: &str, count: usize) -> Result<(), Status> {
    if count > BATCH_MAX {
        let problem = format!("must be at most {BATCH_MAX}, are {count}");
        return Err(convert::invalid(Invalid::new(field, problem)));
    }
    Ok(())
}

fn idempotency(key: &str) -> Result<Option<Idempotency>, Invalid> {
    let field = |invalid: Invalid| Invalid::new("idempotency_key", invalid.problem);
    (!key.is_empty()).then(|| Idempotency::new(key).map_err(field)).transpose()
}

/// A task that is valid, and may be called where it wants to be.
fn checked(broker: &Broker, namespace: &Namespace, sent: v1::NewTask) -> Result<NewTask, Invalid> {
    let new_task = convert::new_task(namespace, sent)?;
    check_fires(&new_task.schedule, broker.clock.now())?;
    broker.guard.check_target(&new_task.target)?;
    Ok(new_task)
}
