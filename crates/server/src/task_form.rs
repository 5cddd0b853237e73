//! The JSON form of a task: the types that are parsed from requests and written to responses.
//!
//! `body` has the fields; `target`, `message_target`, `answer_rules`, `retry`, `series` and `time`
//! have those with a form of their own. `parse` turns a [`TaskBody`] into a checked [`TaskToSchedule`], `render`
//! writes a task back, `schedule` does both for the fields that say when it is due, and `document`
//! has the rules which fields go together. `whole_number` reads numbers; `schedule_fields`,
//! `payload` and `pairs` hold checks that gRPC shares. No other part of the broker knows these
//! types.

mod answer_rules;
mod body;
mod document;
mod message_target;
mod pairs;
mod parse;
mod payload;
mod render;
mod retry;
mod schedule;
mod schedule_fields;
mod series;
mod target;
mod time;
mod to_schedule;
mod whole_number;

pub(crate) use crate::schema::InstantText;
pub(crate) use answer_rules::answer_rules;
pub(crate) use body::{Delay, Interval, TaskBody};
pub(crate) use document::{KeylessTask, NewTaskBody};
pub(crate) use message_target::{grpc_target, message_target, mqtt_qos};
pub(crate) use pairs::check_headers;
pub(crate) use payload::check_json;
pub(crate) use render::{EndName, EndedTask, TaskAnswer, end_name};
pub(crate) use retry::{Pause, factor_thousandths};
pub(crate) use schedule_fields::{ScheduleFields, check_fires, parse_cron};
pub(crate) use target::{HttpBody, queue_target, sql_target};
pub(crate) use time::{TimeValue, parse_duration_field, parse_time_field};
pub(crate) use to_schedule::TaskToSchedule;
pub(crate) use whole_number::WholeNumber;
