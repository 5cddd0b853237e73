//! Runs scenarios through the public methods of the Rust client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use punctual_client::{
    Attempt, CancelResult, Client, CronExpression, Delivery, Error, Failure, FireEnd, FireId,
    FireInfo, Fires, LeaseOptions, List, Namespace, NewTask, Occasion, Scheduled, SettleAnswer,
    Task, TaskId, TaskState, Timestamp, Touch, webhook,
};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::task_json::{
    add_payload, build, duration, duration_text, state, task as task_json, time, time_text,
};
use super::{Arguments, Driver, StepFailure, StepResult, WORK_MAX};

/// The most pages of a list: no scenario has so many.
const PAGES_MAX: usize = 1_000;

pub(super) fn driver(addresses: &[SocketAddr]) -> Box<dyn Driver> {
    let runtime = Runtime::new().unwrap();
    let urls = addresses.iter().map(|address| format!("http://{address}")).collect();
    Box::new(RustClient { urls, clients: HashMap::new(), runtime })
}

struct RustClient {
    urls: Vec<String>,
    /// By token.
    clients: HashMap<Option<String>, Client>,
    runtime: Runtime,
}

impl Driver for RustClient {
    fn call(&mut self, verb: &str, args: &mut Arguments, token: Option<&str>) -> StepResult {
        let _in_runtime = self.runtime.enter();
        let urls = &self.urls;
        let client = self.clients.entry(token.map(str::to_owned)).or_insert_with(|| {
            let builder = Client::builder(&urls[0]).and_all(&urls[1..]).timeout(WORK_MAX);
            let builder = token.into_iter().fold(builder, |builder, token| builder.token(token));
            builder.connect().unwrap()
        });
        let shop = client.namespace(args.namespace());
        self.runtime.block_on(call(client, &shop, verb, args))
    }
}

/// The problem document of an error.
fn problem(error: &Error) -> Value {
    match error {
        Error::Problem(problem) => {
            let mut json =
                json!({"type": problem.kind, "status": problem.status, "detail": problem.detail});
            if let Some(field) = &problem.field {
                json["field"] = json!(field);
            }
            if let Some(existing) = &problem.existing {
                json["existing"] = json!({"id": existing.id.as_str(),
                    "fire_at": time_text(existing.fire_at), "version": existing.version});
            }
            json
        }
        other => json!({"detail": other.to_string()}),
    }
}

impl From<Error> for StepFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Problem(_) => Self::Problem(problem(&error)),
            other => Self::Other(other.to_string()),
        }
    }
}

fn not_found(kind: &str) -> StepFailure {
    StepFailure::Problem(json!({"status": 404, "type": format!("urn:punctual:{kind}-not-found")}))
}

fn found<T>(answer: Option<T>) -> Result<T, StepFailure> {
    answer.ok_or_else(|| not_found("task"))
}

async fn call(client: &Client, shop: &Namespace, verb: &str, args: &mut Arguments) -> StepResult {
    match verb {
        "schedule" => schedule(shop, args).await,
        "schedule_many" => schedule_many(shop, args).await,
        "get" => Ok(task_json(&get(shop, &args.required("task")?).await?)),
        "cancel" => cancel(shop, &args.required("task")?).await,
        "cancel_many" => cancel_many(shop, args).await,
        "pause" => Ok(task_json(&shop.pause(args.required("task")?).await?)),
        "resume" => Ok(task_json(&shop.resume(args.required("task")?).await?)),
        "fire" => Ok(task_json(&shop.fire(args.required("task")?).await?)),
        "explain" => explain(shop, &args.required("task")?).await,
        "touch" => touch(shop, args).await,
        "touch_many" => touch_many(shop, args).await,
        "rules" => Ok(json!({"rules": shop.rules().await?})),
        "put_rule" => {
            let create = args.take("create").unwrap_or_default();
            Ok(json!(shop.put_rule(&args.required("prefix")?, &create).await?))
        }
        "delete_rule" => match shop.delete_rule(&args.required("prefix")?).await? {
            true => Ok(json!({"result": "deleted"})),
            false => Err(not_found("rule")),
        },
        "list" => list(shop, args).await,
        "fires" => fires(shop, args).await,
        "dead" => dead(shop, args).await,
        "redrive" => redrive(shop, args).await,
        "delete_dead" => {
            match shop.delete_dead_letter(&FireId::from(args.required("fire_id")?.as_str())).await?
            {
                true => Ok(json!({"result": "deleted"})),
                false => Err(not_found("dead-letter")),
            }
        }
        "stats" => stats(shop).await,
        "lanes" => lanes(shop).await,
        "queues" | "workers" => queues_or_workers(shop, verb).await,
        "forecast" => forecast(shop, args).await,
        "namespaces" => namespaces(client).await,
        "topology" => Ok(client.topology().await?),
        "whoami" => whoami(client).await,
        "preview" => preview(client, args).await,
        "lease" => lease(shop, args).await,
        "ack" | "fail" | "refuse" | "extend" => settle(shop, verb, args).await,
        "work" => work(shop, args).await,
        "verify" => verify(args),
        other => Err(format!("the Rust client has no {other}").into()),
    }
}

async fn get(shop: &Namespace, name: &str) -> Result<Task, StepFailure> {
    found(shop.get(name).await?)
}

async fn schedule(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let mut task = build(shop.task(), &args.take("task").unwrap_or_default())?;
    if let Some(key) = args.text("key") {
        task = task.key(key);
    }
    if let Some(key) = args.text("idempotency_key") {
        task = task.idempotency_key(key);
    }
    if let Some(version) = args.text("if_match") {
        task = task.if_version(version.parse().map_err(|_| "if_match is a version")?);
    }
    if args.text("if_none_match").is_some() {
        task = task.if_absent();
    }
    let scheduled = task.schedule().await?;
    whole(shop, &scheduled).await
}

/// The answer to a new task, completed by the task if the token may read it.
async fn whole(shop: &Namespace, scheduled: &Scheduled) -> StepResult {
    let mut json = match get(shop, scheduled.id.as_str()).await {
        Ok(task) => task_json(&task),
        Err(StepFailure::Problem(problem)) if problem["status"] == 403 => json!({}),
        Err(failure) => return Err(failure),
    };
    if let Some(key) = &scheduled.key {
        json["key"] = json!(key);
    }
    json["id"] = json!(scheduled.id.as_str());
    json["fire_at"] = json!(time_text(scheduled.fire_at));
    json["version"] = json!(scheduled.version);
    Ok(json)
}

async fn schedule_many(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let tasks = args.take("tasks").unwrap_or_default();
    let tasks = tasks.as_array().into_iter().flatten();
    let tasks = tasks.map(|task| build(NewTask::new(), task)).collect::<Result<Vec<_>, _>>()?;
    let mut results = Vec::new();
    for result in shop.schedule_many(tasks).await {
        results.push(match result {
            Ok(scheduled) => whole(shop, &scheduled).await?,
            Err(error) => problem(&error),
        });
    }
    Ok(json!({"results": results}))
}

fn cancelled(result: CancelResult) -> StepResult {
    match result {
        CancelResult::Cancelled => Ok(json!({"result": "cancelled"})),
        CancelResult::Firing { attempt } => Ok(json!({"result": "firing", "attempt": attempt})),
        CancelResult::AlreadyFired { fired_at } => {
            Ok(json!({"result": "already_fired", "fired_at": time_text(fired_at)}))
        }
        _ => Err(not_found("task")),
    }
}

async fn cancel(shop: &Namespace, name: &str) -> StepResult {
    // A key or an id: the client has a method for each.
    match shop.cancel(name).await? {
        CancelResult::NotFound => match shop.cancel_id(&TaskId::from(name)).await {
            // It is no id either.
            Err(Error::Problem(problem)) if problem.status == 422 => Err(not_found("task")),
            result => cancelled(result?),
        },
        result => cancelled(result),
    }
}

async fn cancel_many(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let keys = args.texts("keys");
    let (name, names) = match keys {
        Some(keys) => ("key", keys),
        None => ("id", args.texts("ids").unwrap_or_default()),
    };
    let results = match name {
        "key" => shop.cancel_many(names.clone()).await?,
        _ => shop.cancel_ids(names.iter().map(|id| TaskId::from(id.as_str()))).await?,
    };
    let json = |(of, result): (String, Result<CancelResult, Error>)| -> StepResult {
        let mut json = match cancelled(result?) {
            Ok(json) => json,
            Err(_) => json!({"result": "not_found"}),
        };
        json[name] = json!(of);
        Ok(json)
    };
    let results = names.into_iter().zip(results).map(json).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({"results": results}))
}

async fn explain(shop: &Namespace, name: &str) -> StepResult {
    let answer = found(shop.explain(name).await?)?;
    let next =
        answer.next.iter().map(|it| json!({"fire_at": time_text(it.fire_at), "local": it.local}));
    Ok(json!({"summary": answer.summary, "waiting_for": answer.waiting_for,
              "details": answer.details, "task": task_json(&answer.task),
              "next": next.collect::<Vec<_>>(),
              "fires": answer.fires.iter().map(fire).collect::<Vec<_>>()}))
}

fn touch_options(args: &mut Arguments) -> Result<Touch, StepFailure> {
    let mut touch = Touch::default();
    if let Some(delay) = args.text("in") {
        touch = touch.delay(duration(&delay)?);
    }
    if let Some(at) = args.take("at") {
        touch = touch.at(time(&at)?);
    }
    if let Some(within) = args.text("within") {
        touch = touch.within(duration(&within)?);
    }
    if let Some(task) = args.take("create") {
        touch = touch.create(build(NewTask::new(), &task)?);
    }
    Ok(touch)
}

async fn touch(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let key = args.required("task")?;
    let touched = shop.touch_many([key.clone()], touch_options(args)?).await?;
    if let Some((_, error)) = touched.problems.into_iter().next() {
        return Err(error.into());
    }
    match touched.missing.is_empty() {
        true => Ok(task_json(&get(shop, &key).await?)),
        false => Err(not_found("task")),
    }
}

async fn touch_many(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let keys = args.texts("keys").unwrap_or_default();
    let touched = shop.touch_many(keys, touch_options(args)?).await?;
    let problems = touched.problems.iter();
    let problems = problems.map(|(key, error)| json!({"key": key, "problem": problem(error)}));
    Ok(json!({"touched": touched.touched, "created": touched.created,
              "missing": touched.missing, "problems": problems.collect::<Vec<_>>()}))
}

fn label(args: &mut Arguments) -> Option<(String, String)> {
    let label = args.text("label")?;
    let (name, value) = label.split_once([':', '='])?;
    Some((name.to_owned(), value.to_owned()))
}

fn pages_max(args: &mut Arguments) -> usize {
    args.number("pages").map_or(PAGES_MAX, |pages| pages as usize)
}

async fn list(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let mut filter = List::default();
    if let Some(name) = args.text("state") {
        let states = [
            TaskState::Scheduled,
            TaskState::Firing,
            TaskState::Paused,
            TaskState::Done,
            TaskState::Dead,
            TaskState::Cancelled,
        ];
        let found = states.into_iter().find(|it| state(*it) == name);
        filter = filter.state(found.ok_or("there is no such state")?);
    }
    if let Some(prefix) = args.text("key_prefix") {
        filter = filter.key_prefix(prefix);
    }
    if let Some((name, value)) = label(args) {
        filter = filter.label(&name, &value);
    }
    if let Some(from) = args.take("from") {
        filter = filter.from(time(&from)?);
    }
    if let Some(to) = args.take("to") {
        filter = filter.to(time(&to)?);
    }
    if let Some(limit) = args.number("limit") {
        filter = filter.limit(limit);
    }
    let mut tasks = Vec::new();
    for _ in 0..pages_max(args) {
        let page = shop.list(filter.clone()).await?;
        tasks.extend(page.tasks.iter().map(task_json));
        match page.next {
            Some(cursor) => filter = filter.cursor(cursor),
            None => break,
        }
    }
    Ok(json!({"tasks": tasks}))
}

async fn fires(shop: &Namespace, args: &mut Arguments) -> StepResult {
    if let Some(task) = args.text("task") {
        let page = found(shop.fires_of(task).await?)?;
        return Ok(json!({"fires": page.fires.iter().map(fire).collect::<Vec<_>>()}));
    }
    let mut filter = Fires::default();
    if let Some(name) = args.text("end") {
        let ends =
            [FireEnd::Done, FireEnd::Dead, FireEnd::Cancelled, FireEnd::Replaced, FireEnd::Skipped];
        let found = ends.into_iter().find(|it| end(*it) == name);
        filter = filter.end(found.ok_or("there is no such end")?);
    }
    if let Some(prefix) = args.text("key_prefix") {
        filter = filter.key_prefix(prefix);
    }
    if let Some((name, value)) = label(args) {
        filter = filter.label(&name, &value);
    }
    if let Some(limit) = args.number("limit") {
        filter = filter.limit(limit);
    }
    let mut fires = Vec::new();
    for _ in 0..pages_max(args) {
        let page = shop.fires(filter.clone()).await?;
        fires.extend(page.fires.iter().map(fire));
        match page.next {
            Some(cursor) => filter = filter.cursor(cursor),
            None => break,
        }
    }
    Ok(json!({"fires": fires}))
}

fn end(end: FireEnd) -> &'static str {
    match end {
        FireEnd::Done => "done",
        FireEnd::Dead => "dead",
        FireEnd::Cancelled => "cancelled",
        FireEnd::Replaced => "replaced",
        FireEnd::Skipped => "skipped",
        _ => "unknown",
    }
}

fn occasion(occasion: Occasion) -> &'static str {
    match occasion {
        Occasion::Manual => "manual",
        Occasion::Return => "return",
        _ => "due",
    }
}

fn fire(fire: &FireInfo) -> Value {
    let attempts: Vec<Value> = fire.attempts.iter().map(attempt).collect();
    let mut json = json!({"fire_id": fire.fire_id.as_str(), "task": fire.task.as_str(),
        "occasion": occasion(fire.occasion), "fire_at": time_text(fire.fire_at),
        "attempts": attempts});
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            json[name] = value;
        }
    };
    put("key", fire.key.as_ref().map(|key| json!(key)));
    put("fired_at", fire.fired_at.map(|at| json!(time_text(at))));
    put("ended_at", fire.ended_at.map(|at| json!(time_text(at))));
    put("end", fire.end.map(|it| json!(end(it))));
    put("reason", fire.reason.as_ref().map(|reason| json!(reason)));
    put("result", serde_json::from_slice(&fire.result).ok());
    put(
        "skipped",
        fire.skipped.as_ref().map(
            |it| json!({"fires": it.fires, "until": time_text(it.until), "reason": it.reason}),
        ),
    );
    json
}

fn attempt(attempt: &Attempt) -> Value {
    let mut json = json!({"attempt": attempt.attempt, "at": time_text(attempt.at),
                          "outcome": attempt.outcome});
    if let Some(reason) = &attempt.reason {
        json["reason"] = json!(reason);
    }
    if let Some(pause) = attempt.retry_in {
        json["retry_in"] = json!(duration_text(pause));
    }
    if let Some(status) = attempt.status {
        json["status"] = json!(status);
    }
    if let Some(answer) = &attempt.answer {
        json["answer"] = json!({"content_type": answer.content_type,
            "text": String::from_utf8_lossy(&answer.body), "truncated": answer.truncated});
    }
    json
}

async fn dead(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let limit = args.number("limit").unwrap_or(100);
    let (mut dead, mut cursor) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = shop.dead_letters(limit, cursor).await?;
        dead.extend(page.dead.iter().map(|letter| {
            let attempts: Vec<Value> = letter.attempts.iter().map(attempt).collect();
            json!({"fire_id": letter.fire_id.as_str(), "reason": letter.reason,
                   "died_at": time_text(letter.died_at), "attempts": attempts,
                   "task": task_json(&letter.task)})
        }));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    Ok(json!({"dead": dead}))
}

async fn redrive(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let redriven = match args.texts("ids") {
        Some(ids) => shop.redrive(ids.iter().map(|id| FireId::from(id.as_str()))).await?,
        None if args.take("all") == Some(json!(true)) => shop.redrive_all().await?,
        None => return Err("redrive needs ids or all".into()),
    };
    let problems = redriven.problems.iter();
    let problems =
        problems.map(|(id, error)| json!({"id": id.as_str(), "problem": problem(error)}));
    let problems: Vec<Value> = problems.collect();
    Ok(json!({"redriven": redriven.redriven, "more": redriven.more, "problems": problems}))
}

async fn stats(shop: &Namespace) -> StepResult {
    let it = shop.stats().await?;
    Ok(json!({"namespace": shop.name(), "accepted": it.accepted, "scheduled": it.scheduled,
        "firing": it.firing, "paused": it.paused, "done": it.done, "dead": it.dead,
        "cancelled": it.cancelled, "dead_letters": it.dead_letters}))
}

async fn queues_or_workers(shop: &Namespace, verb: &str) -> StepResult {
    if verb == "queues" {
        let queues = shop.queues().await?.into_iter().map(|it| {
            json!({"name": it.name, "waiting": it.waiting, "more": it.more,
                   "in_flight": it.in_flight, "workers": it.workers})
        });
        return Ok(json!({"queues": queues.collect::<Vec<_>>()}));
    }
    let workers = shop.workers().await?.into_iter().map(|it| {
        json!({"name": it.name, "queues": it.queues, "in_flight": it.in_flight,
               "credit": it.credit, "broker": it.broker})
    });
    Ok(json!({"workers": workers.collect::<Vec<_>>()}))
}

async fn lanes(shop: &Namespace) -> StepResult {
    let list = shop.lanes().await?;
    let lanes = list.lanes.into_iter().map(|it| {
        let last_failure = it.last_failure.map(|failure| {
            let retry_at = failure.retry_at.map(time_text);
            json!({"at": time_text(failure.at), "reason": failure.reason, "retry_at": retry_at})
        });
        json!({"kind": it.kind, "target": it.target, "connection": it.connection,
               "state": it.state, "since": it.since.map(time_text), "waiting": it.waiting,
               "more": it.more, "in_flight": it.in_flight, "capacity": it.capacity,
               "failed": it.failed, "last_failure": last_failure})
    });
    Ok(json!({"lanes": lanes.collect::<Vec<_>>(), "complete": list.complete}))
}

async fn forecast(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let (ahead, step) = (args.required("for")?, args.required("step")?);
    let forecast = shop.forecast(duration(&ahead)?, duration(&step)?).await?;
    let steps: Vec<Value> = forecast.fires.iter().map(|fires| json!({"fires": fires})).collect();
    Ok(json!({"from": time_text(forecast.from), "step": duration_text(forecast.step),
              "steps": steps, "complete": forecast.complete_until.is_none()}))
}

async fn namespaces(client: &Client) -> StepResult {
    let page = client.namespaces(1_000, None).await?;
    let namespaces = page.namespaces.into_iter().map(|it| {
        json!({"name": it.name, "accepted": it.accepted, "scheduled": it.scheduled,
               "cancelled": it.cancelled})
    });
    Ok(json!({"namespaces": namespaces.collect::<Vec<_>>()}))
}

async fn whoami(client: &Client) -> StepResult {
    let it = client.whoami().await?;
    let namespaces = it.namespaces.iter();
    let namespaces = namespaces.map(|(name, rights)| json!({"name": name, "rights": rights}));
    Ok(json!({"tokens": it.tokens, "admin": it.admin, "version": it.version,
        "namespaces": namespaces.collect::<Vec<_>>(), "time": time_text(it.time)}))
}

async fn preview(client: &Client, args: &mut Arguments) -> StepResult {
    let mut cron = CronExpression::new(args.required("cron")?);
    if let Some(timezone) = args.text("timezone") {
        cron = cron.timezone(timezone);
    }
    if let Some(count) = args.number("count") {
        cron = cron.count(count);
    }
    if let Some(from) = args.take("from") {
        cron = cron.from(time(&from)?);
    }
    let preview = client.preview(cron).await?;
    let fires = preview.fires.iter().map(|fire| {
        let mut json = json!({"fire_at": time_text(fire.fire_at), "local": fire.local});
        if let Some(note) = &fire.why {
            json["note"] = json!(note);
        }
        json
    });
    Ok(json!({"timezone": preview.timezone, "fires": fires.collect::<Vec<_>>()}))
}

async fn lease(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let mut options = LeaseOptions::default();
    if let Some(max) = args.number("max") {
        options = options.max(max);
    }
    if let Some(wait) = args.text("wait") {
        options = options.wait(duration(&wait)?);
    }
    if let Some(lease) = args.text("lease") {
        options = options.lease(duration(&lease)?);
    }
    if let Some(worker) = args.text("worker") {
        options = options.worker(worker);
    }
    Ok(json!({"deliveries": shop.lease(&args.required("queue")?, options).await?}))
}

async fn settle(shop: &Namespace, verb: &str, args: &mut Arguments) -> StepResult {
    let queue = args.required("queue")?;
    if verb == "ack" {
        let tokens = args.texts("tokens").unwrap_or_default();
        let mut acks: Vec<(String, Option<Value>)> =
            tokens.into_iter().map(|token| (token, None)).collect();
        for ack in args.take("acks").unwrap_or_default().as_array().into_iter().flatten() {
            let token = ack["token"].as_str().unwrap_or_default().to_owned();
            acks.push((token, ack.get("result").cloned()));
        }
        let results: Vec<SettleAnswer> = shop.ack(&queue, acks).await?;
        return Ok(json!({"results": results}));
    }
    let token = args.required("token")?;
    let settled = match verb {
        "extend" => shop.extend(&queue, &token, duration(&args.required("lease")?)?).await?,
        "refuse" => shop.refuse(&queue, &token, &args.required("reason")?).await?,
        _ => {
            let pause = args.text("retry_in").map(|pause| duration(&pause)).transpose()?;
            shop.fail(&queue, &token, &args.required("reason")?, pause).await?
        }
    };
    Ok(json!(settled))
}

fn verify(args: &mut Arguments) -> StepResult {
    let (secret, body) = (args.required("secret")?, args.required("body")?);
    let headers = args.take("headers").unwrap_or_default();
    let now: u64 = args.required("now")?.parse().map_err(|_| "now is in seconds")?;
    let now = Timestamp::from_millis(now * 1000);
    // A receiver finds a header by its name in any case.
    let header = |name: &str| {
        let mut headers = headers.as_object()?.iter();
        headers.find(|(given, _)| given.eq_ignore_ascii_case(name))?.1.as_str()
    };
    let result = webhook::verify(&secret, header, body.as_bytes(), now);
    Ok(json!({"valid": result.is_ok()}))
}

/// What a handler does with one delivery.
fn outcome(outcome: &Value) -> Result<Value, Failure> {
    let reason = outcome["reason"].as_str().unwrap_or("failed");
    match outcome["do"].as_str() {
        Some("ok") => Ok(outcome["result"].clone()),
        Some("refuse") => Err(Failure::refuse(reason)),
        Some("error") => Err(std::io::Error::other(reason.to_owned()).into()),
        _ => {
            let failure = Failure::fail(reason);
            let pause = outcome["after"].as_str().and_then(|after| duration(after).ok());
            Err(pause.into_iter().fold(failure, Failure::retry_in))
        }
    }
}

async fn work(shop: &Namespace, args: &mut Arguments) -> StepResult {
    let count = args.number("count").ok_or("count is missing")? as usize;
    let outcomes = args.take("handler").unwrap_or_default().as_array().cloned().unwrap_or_default();
    let handled: Arc<Mutex<Vec<Value>>> = Arc::default();
    let done = Arc::new(Notify::new());
    let (log, all) = (Arc::clone(&handled), Arc::clone(&done));
    let worker = shop.worker(args.required("queue")?).concurrency(1).handler(move |delivery| {
        let (log, all, outcomes) = (Arc::clone(&log), Arc::clone(&all), outcomes.clone());
        async move {
            let number = {
                let mut log = log.lock().unwrap();
                log.push(delivery_json(&delivery));
                log.len()
            };
            if number >= count {
                all.notify_one();
            }
            outcome(&outcomes[(number - 1).min(outcomes.len() - 1)])
        }
    });
    let stop = async { _ = tokio::time::timeout(WORK_MAX, done.notified()).await };
    worker.run_until(stop).await?;
    // The broker has the settlements a moment after the worker has sent them.
    let settled = async {
        while shop.queues().await?.iter().any(|queue| queue.in_flight > 0) {}
        Ok::<(), Error>(())
    };
    tokio::time::timeout(WORK_MAX, settled).await.map_err(|_| "a delivery is in flight")??;
    let handled = handled.lock().unwrap().clone();
    match handled.len() {
        given if given >= count => Ok(json!({"handled": handled})),
        given => Err(format!("{given} of {count} deliveries came").into()),
    }
}

fn delivery_json(delivery: &Delivery) -> Value {
    let mut json = Map::new();
    add_payload(&mut json, &delivery.payload, &delivery.content_type);
    let mut put = |name: &str, value: Value| _ = json.insert(name.to_owned(), value);
    put("fire_id", json!(delivery.fire_id.as_str()));
    put("task", json!(delivery.task.as_str()));
    put("key", json!(delivery.key));
    put("attempt", json!(delivery.attempt));
    put("occasion", json!(occasion(delivery.occasion)));
    put("fire_at", json!(time_text(delivery.fire_at)));
    put("fired_at", json!(time_text(delivery.fired_at)));
    put("version", json!(delivery.version));
    Value::Object(json)
}
