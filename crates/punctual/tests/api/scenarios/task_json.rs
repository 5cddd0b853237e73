//! Tasks between the JSON of the HTTP API and the types of the Rust client.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use punctual_client::{
    Gap, Guarantee, Misfire, NewTask, Overlap, Retry, Target, Task, TaskState, Timestamp, Twice,
};
use punctual_core::{format_duration, parse_duration};
use punctual_proto::v1;
use serde_json::{Map, Value, json};

use super::StepFailure;

pub(super) fn duration(text: &str) -> Result<Duration, StepFailure> {
    parse_duration(text).map_err(|error| StepFailure::Other(format!("{text}: {error}")))
}

pub(super) fn time(value: &Value) -> Result<Timestamp, StepFailure> {
    if let Some(millis) = value.as_u64() {
        return Ok(Timestamp::from_millis(millis));
    }
    let parsed = punctual_core::Timestamp::parse_rfc3339(value.as_str().unwrap_or_default());
    let parsed = parsed.map_err(|error| StepFailure::Other(format!("{value}: {error}")))?;
    Ok(Timestamp::from_millis(parsed.as_millis()))
}

pub(super) fn time_text(time: Timestamp) -> String {
    millis_text(time.as_millis())
}

fn millis_text(millis: u64) -> String {
    punctual_core::Timestamp::try_from_millis(millis.into()).unwrap().to_string()
}

pub(super) fn duration_text(duration: Duration) -> String {
    format_duration(duration)
}

/// Sets all fields of a task. A field that the builder does not have is an error.
pub(super) fn build<To>(mut task: NewTask<To>, json: &Value) -> Result<NewTask<To>, StepFailure> {
    let fields = json.as_object().ok_or("a task is an object")?;
    for (name, value) in fields {
        let text = value.as_str().unwrap_or_default();
        task = match name.as_str() {
            "key" => task.key(text),
            "in" => task.delay(duration(text)?),
            "at" => task.at(time(value)?),
            "every" => task.every(duration(text)?),
            "within" => task.within(duration(text)?),
            "cron" => task.cron(text),
            "timezone" => task.timezone(text),
            "dst" => dst(task, value)?,
            "starts_at" => task.starts_at(time(value)?),
            "ends_at" => task.ends_at(time(value)?),
            "count" => task.count(number(value)?),
            "misfire" => task.misfire(match text {
                "fire_all" => Misfire::FireAll,
                "skip" => Misfire::Skip,
                _ => Misfire::FireOnce,
            }),
            "overlap" => task.overlap(match text {
                "skip" => Overlap::Skip,
                "queue_one" => Overlap::QueueOne,
                _ => Overlap::Allow,
            }),
            "jitter" => task.jitter(duration(text)?),
            "postpone_max" => task.postpone_max(duration(text)?),
            "on_return" if value == &json!(true) => task.on_return(),
            "paused" if value == &json!(true) => task.paused(),
            "target" => task.target(target(value)?),
            "on_done" => task.on_done(target(value)?),
            "on_dead" => task.on_dead(target(value)?),
            "payload" => task.payload_json(value),
            "payload_base64" => {
                let bytes = BASE64.decode(text).map_err(|error| error.to_string())?;
                task.payload(bytes, json["content_type"].as_str().unwrap_or_default())
            }
            "content_type" => task,
            "guarantee" => task.guarantee(match text {
                "at_most_once" => Guarantee::AtMostOnce,
                "exactly_once" => Guarantee::ExactlyOnce,
                _ => Guarantee::AtLeastOnce,
            }),
            "retry" => task.retry(retry(value)?),
            "timeout" => task.timeout(duration(text)?),
            "expires_after" => task.expires_after(duration(text)?),
            "labels" => {
                let labels = value.as_object().ok_or("labels are an object")?;
                let add = |task: NewTask<To>, (name, value): (&String, &Value)| {
                    task.label(name, value.as_str().unwrap_or_default())
                };
                labels.iter().fold(task, add)
            }
            other => return Err(format!("the builder of a task has no {other}").into()),
        };
    }
    Ok(task)
}

fn dst<To>(mut task: NewTask<To>, dst: &Value) -> Result<NewTask<To>, StepFailure> {
    for (name, value) in dst.as_object().ok_or("dst is an object")? {
        task = match (name.as_str(), value.as_str()) {
            ("gap", Some("after")) => task.dst_gap(Gap::After),
            ("gap", Some("skip")) => task.dst_gap(Gap::Skip),
            ("overlap", Some("once")) => task.dst_overlap(Twice::Once),
            ("overlap", Some("both")) => task.dst_overlap(Twice::Both),
            _ => return Err(format!("dst has no {name}: {value}").into()),
        };
    }
    Ok(task)
}

fn number(value: &Value) -> Result<u32, StepFailure> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| StepFailure::Other(format!("{value} is no count")))
}

fn statuses(rule: &Value) -> Vec<u16> {
    let statuses = rule["statuses"].as_array().into_iter().flatten();
    statuses.filter_map(|status| u16::try_from(status.as_u64()?).ok()).collect()
}

fn target(json: &Value) -> Result<Target, StepFailure> {
    if let Some(queue) = json["queue"].as_str() {
        return Ok(Target::queue(queue));
    }
    let http = json["http"].as_object().ok_or("a target is a queue or a webhook")?;
    let mut target = Target::http(http.get("url").and_then(Value::as_str).unwrap_or_default());
    for (name, value) in http {
        target = match name.as_str() {
            "url" => target,
            "method" => target.method(value.as_str().unwrap_or_default()),
            "headers" => {
                let headers = value.as_object().into_iter().flatten();
                headers.fold(target, |target, (name, value)| {
                    target.header(name, value.as_str().unwrap_or_default())
                })
            }
            "success" => {
                let success = target.success_statuses(statuses(value));
                let json = value["json"].as_object().into_iter().flatten();
                json.fold(success, |target, (pointer, value)| target.success_json(pointer, value))
            }
            "refuse" => target.refuse_statuses(statuses(value)),
            other => return Err(format!("a webhook has no {other}").into()),
        };
    }
    Ok(target)
}

fn retry(json: &Value) -> Result<Retry, StepFailure> {
    let mut retry = Retry::attempts_max(match &json["attempts_max"] {
        Value::Null => 0,
        attempts => number(attempts)?,
    });
    let text = |value: &Value| duration(value.as_str().unwrap_or_default());
    let backoff = &json["backoff"];
    if !backoff["fixed"].is_null() {
        retry = retry.fixed(text(&backoff["fixed"])?);
    }
    if let Some(pauses) = backoff["list"].as_array() {
        retry = retry.list(pauses.iter().map(text).collect::<Result<Vec<_>, _>>()?);
    }
    let exponential = &backoff["exponential"];
    if !exponential.is_null() {
        let (first, max) = (text(&exponential["first"])?, text(&exponential["max"])?);
        retry = retry.exponential(first, exponential["factor"].as_f64().unwrap_or(2.0), max);
    }
    Ok(match json["jitter"].as_f64() {
        Some(share) => retry.jitter(share),
        None => retry,
    })
}

pub(super) fn state(state: TaskState) -> &'static str {
    match state {
        TaskState::Scheduled => "scheduled",
        TaskState::Firing => "firing",
        TaskState::Paused => "paused",
        TaskState::Done => "done",
        TaskState::Dead => "dead",
        TaskState::Cancelled => "cancelled",
        _ => "unknown",
    }
}

/// Adds a payload as the HTTP API shows it.
pub(super) fn add_payload(to: &mut Map<String, Value>, payload: &[u8], content_type: &str) {
    if content_type == "application/json" || content_type.is_empty() {
        if !payload.is_empty() {
            let json = serde_json::from_slice(payload).unwrap_or_default();
            to.insert("payload".to_owned(), json);
        }
        return;
    }
    to.insert("payload_base64".to_owned(), json!(BASE64.encode(payload)));
    to.insert("content_type".to_owned(), json!(content_type));
}

/// A task as the HTTP API answers it.
pub(super) fn task(task: &Task) -> Value {
    let mut json = definition(task.definition());
    add_payload(&mut json, &task.payload, &task.content_type);
    let mut put = |name: &str, value: Value| _ = json.insert(name.to_owned(), value);
    put("id", json!(task.id.as_str()));
    put("namespace", json!(task.namespace));
    if let Some(key) = &task.key {
        put("key", json!(key));
    }
    put("state", json!(state(task.state)));
    put("fire_at", json!(time_text(task.fire_at)));
    put("nominal_at", json!(time_text(task.nominal_at)));
    put("version", json!(task.version));
    put("attempt", json!(task.attempt));
    put("created_at", json!(time_text(task.created_at)));
    put("updated_at", json!(time_text(task.updated_at)));
    put("labels", json!(task.labels));
    Value::Object(json)
}

fn definition(sent: &v1::NewTask) -> Map<String, Value> {
    let mut json = Map::new();
    let millis = |millis: u64| json!(format_duration(Duration::from_millis(millis)));
    let mut put = |name: &str, value: Value| _ = json.insert(name.to_owned(), value);
    match &sent.when {
        Some(v1::new_task::When::InMs(delay)) => put("in", millis(*delay)),
        Some(v1::new_task::When::AtMs(at)) => put("at", json!(millis_text(*at))),
        Some(v1::new_task::When::EveryMs(every)) => put("every", millis(*every)),
        Some(v1::new_task::When::WithinMs(within)) => put("within", millis(*within)),
        Some(v1::new_task::When::Cron(cron)) => {
            put("cron", json!(cron.expression));
            put("timezone", json!(cron.timezone));
            let gap = if cron.dst_gap() == v1::Gap::Skip { "skip" } else { "after" };
            let overlap = if cron.dst_overlap() == v1::Twice::Both { "both" } else { "once" };
            put("dst", json!({"gap": gap, "overlap": overlap}));
        }
        None => {}
    }
    for (name, target) in
        [("target", &sent.target), ("on_done", &sent.on_done), ("on_dead", &sent.on_dead)]
    {
        if let Some(to) = target.as_ref().and_then(|target| target.to.as_ref()) {
            put(name, target_json(to));
        }
    }
    let guarantee = match sent.guarantee() {
        v1::Guarantee::AtMostOnce => "at_most_once",
        v1::Guarantee::ExactlyOnce => "exactly_once",
        _ => "at_least_once",
    };
    put("guarantee", json!(guarantee));
    if let Some(retry) = &sent.retry {
        let backoff = match &retry.backoff {
            Some(v1::retry::Backoff::FixedMs(pause)) => json!({"fixed": millis(*pause)}),
            Some(v1::retry::Backoff::List(list)) => {
                let pauses = list.pauses_ms.iter().map(|pause| millis(*pause));
                json!({"list": pauses.collect::<Vec<_>>()})
            }
            Some(v1::retry::Backoff::Exponential(it)) => json!({"exponential": {
                "first": millis(it.first_ms), "factor": it.factor, "max": millis(it.max_ms)}}),
            None => Value::Null,
        };
        let attempts = retry.attempts_max;
        put("retry", json!({"attempts_max": attempts, "backoff": backoff, "jitter": retry.jitter}));
    }
    put("timeout", millis(sent.timeout_ms));
    put("expires_after", millis(sent.expires_after_ms));
    put("postpone_max", millis(sent.postpone_max_ms));
    put("on_return", json!(sent.on_return));
    if let Some(series) = &sent.series {
        put(
            "misfire",
            json!(match series.misfire() {
                v1::Misfire::FireAll => "fire_all",
                v1::Misfire::Skip => "skip",
                _ => "fire_once",
            }),
        );
        put(
            "overlap",
            json!(match series.overlap() {
                v1::Overlap::Skip => "skip",
                v1::Overlap::QueueOne => "queue_one",
                _ => "allow",
            }),
        );
        put("jitter", millis(series.jitter_ms));
        if let Some(count) = series.count {
            put("count", json!(count));
        }
    }
    json
}

fn target_json(to: &v1::target::To) -> Value {
    let http = match to {
        v1::target::To::Queue(queue) => return json!({"queue": queue}),
        v1::target::To::Sql(sql) => {
            let params = sql.params.iter().map(|(name, value)| {
                (name.clone(), serde_json::from_str::<Value>(value).unwrap_or_default())
            });
            let params: Map<String, Value> = params.collect();
            let (connection, statement) = (&sql.connection, &sql.statement);
            return json!({"sql": {
                "connection": connection, "statement": statement, "params": params,
            }});
        }
        v1::target::To::Kafka(to) => {
            let v1::KafkaTarget { connection, topic, key, headers } = to;
            return json!({"kafka": {
                "connection": connection, "topic": topic, "key": key, "headers": headers,
            }});
        }
        v1::target::To::Amqp(to) => {
            let v1::AmqpTarget { connection, exchange, routing_key, headers } = to;
            return json!({"amqp": {
                "connection": connection, "exchange": exchange, "routing_key": routing_key,
                "headers": headers,
            }});
        }
        v1::target::To::Nats(to) => {
            return json!({"nats": {"connection": to.connection, "subject": to.subject}});
        }
        v1::target::To::Mqtt(to) => {
            let v1::MqttTarget { connection, topic, qos, retain } = to;
            return json!({"mqtt": {
                "connection": connection, "topic": topic, "qos": qos, "retain": retain,
            }});
        }
        v1::target::To::RedisStream(to) => {
            let v1::RedisStreamTarget { connection, stream, maxlen } = to;
            return json!({"redis_stream": {
                "connection": connection, "stream": stream, "maxlen": maxlen,
            }});
        }
        v1::target::To::Grpc(to) => {
            return json!({"grpc": {"url": to.url, "method": to.method}});
        }
        v1::target::To::Http(http) => http,
    };
    let mut json = json!({"url": http.url, "method": http.method, "headers": http.headers});
    if let Some(success) = &http.success {
        let rules = success.json.iter().map(|(pointer, value)| {
            (pointer.clone(), serde_json::from_str::<Value>(value).unwrap_or_default())
        });
        let rules: Map<String, Value> = rules.collect();
        json["success"] = json!({"statuses": success.statuses, "json": rules});
    }
    if let Some(refuse) = &http.refuse {
        json["refuse"] = json!({"statuses": refuse.statuses});
    }
    json!({"http": json})
}
