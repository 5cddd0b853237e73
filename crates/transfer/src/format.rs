//! The file format: one JSON document per line.
//!
//! Each line is an [`ExportLine`]. The field names are those of the API where the API has them.
//! What is written reads back the same; what is read is checked like a request of a client, and an
//! unknown field is refused. [`crate::file`] puts lines into a file and notices a damaged one.

mod attempts;
mod fire;
mod schedule;
mod task;
mod values;

use serde::{Deserialize, Serialize};

pub(crate) use fire::{
    ExportedDeadLetter, ExportedFire, export_dead_letter, export_fire, read_dead_letter, read_fire,
};
pub(crate) use task::{ExportedTask, export_task, read_task};
pub(crate) use values::TimeText;

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExportLine {
    /// The first line, exactly once.
    Header(ExportHeader),
    /// A live task.
    Task(Box<ExportedTask>),
    Dead(Box<ExportedDeadLetter>),
    /// A record of a fire that has ended.
    Fire(Box<ExportedFire>),
    /// The last line, exactly once.
    End(ExportTrailer),
}

/// What the file was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportHeader {
    /// The version of the file format.
    pub(crate) format: u32,
    /// The version of the program that wrote the file. Informative.
    pub(crate) version: String,
    /// A description of the exported store. Informative.
    pub(crate) from: String,
    pub(crate) exported_at: TimeText,
    pub(crate) partitions: u16,
    /// The largest epoch of any partition when the export began.
    pub(crate) epoch_max: u32,
}

/// How many lines of each kind precede the last line, so that a truncated file is noticed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportTrailer {
    pub(crate) tasks: u64,
    pub(crate) dead: u64,
    pub(crate) fires: u64,
    /// XXH3 (64 bits) of all bytes before this line, in hex.
    pub(crate) checksum: String,
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::{
        NOW, at, attempts, epoch, id, letter, partition, rich_task, task,
    };

    use std::sync::Arc;
    use std::time::Duration;

    use punctual_core::{
        AttemptNo, Cron, DeadReason, Dst, Due, FireEnd, FireRecord, Gap, Misfire, Occasion,
        Overlap, OverlappingFire, Payload, Schedule, Series, SkipReason, Skipped, Task, TaskId,
        TaskState, Timestamp, Twice, Zone,
    };

    use super::*;

    fn written_and_read(line: &ExportLine) -> ExportLine {
        let text = serde_json::to_string(line).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn tasks() -> Vec<Task> {
        let id = |number| id(at(number), partition(3), epoch(2), number);
        let series = Arc::new(Series {
            starts_at: Some(at(1)),
            ends_at: Some(at(9_999_999)),
            count: Some(7),
            misfire: Misfire::FireAll,
            overlap: Overlap::QueueOne,
            jitter: Duration::from_millis(1_001),
        });
        let dst = Dst { gap: Some(Gap::Skip), overlap: Some(Twice::Both) };
        let zone = Zone::new("Europe/Berlin").unwrap();
        let cron = Arc::new(Cron::new("0 9 * * MON-FRI", zone, dst).unwrap());
        let plain = task(id(1)).schedule(Schedule::Once(Due::In(Duration::from_millis(5)))).build();
        let json = Payload::Json(br#"{"a": [1, "\u00e4"]}"#.as_slice().into());
        let cron = task(id(2))
            .key("a b/c")
            .payload(json)
            .schedule(Schedule::Cron { cron, series: Arc::clone(&series) })
            .build();
        let watch = Schedule::Watch {
            within: Duration::from_secs(48 * 3600),
            postpone_max: Some(Duration::from_secs(99 * 86_400)),
            on_return: true,
        };
        let watch = task(id(3)).key("w").schedule(watch).build();
        let interval = Duration::from_secs(60);
        let every = task(id(4)).schedule(Schedule::Every { interval, series }).paused().build();
        let overlapping = OverlappingFire {
            nominal_at: at(3),
            fire_at: at(4),
            attempts: attempts(),
            occasion: Occasion::Return,
        };
        vec![
            plain,
            Task { fires: 9, given_at: Some(at(5)), overlapping: vec![overlapping], ..cron },
            Task {
                state: TaskState::Done,
                fire_at: Timestamp::MAX,
                armed_at: Some(at(8)),
                occasion: Occasion::Manual,
                ..watch
            },
            every,
            rich_task(id(5)),
            rich_task(id(5)).redriven_apart(id(6), at(99)),
            redriven_often(id(7)),
        ]
    }

    fn redriven_often(id: TaskId) -> Task {
        let mut task = Task { attempts: attempts(), ..task(id).build() };
        for attempt in &mut task.attempts {
            attempt.number = AttemptNo::new(attempt.number.get() + 1000);
        }
        task.redriven(at(99))
    }

    #[test]
    fn a_written_line_reads_back_the_same() {
        for task in tasks() {
            let line = ExportLine::Task(Box::new(export_task(&task)));
            let ExportLine::Task(exported) = written_and_read(&line) else {
                panic!("another line")
            };
            assert_eq!(read_task(*exported).unwrap(), task);
            let letter = letter(&task, NOW);
            let ExportLine::Dead(exported) =
                written_and_read(&ExportLine::Dead(Box::new(export_dead_letter(&letter))))
            else {
                panic!("another line")
            };
            assert_eq!(read_dead_letter(*exported).unwrap(), letter);
            let skipped = Skipped { fires: 3, until: at(99), why: SkipReason::Overlap };
            for end in [
                FireEnd::Done,
                FireEnd::Dead(DeadReason::Unknown),
                FireEnd::Cancelled,
                FireEnd::Replaced,
                FireEnd::Skipped(skipped),
            ] {
                let record = FireRecord::of(&task, end, at(11));
                let line = ExportLine::Fire(Box::new(export_fire(&record)));
                let ExportLine::Fire(exported) = written_and_read(&line) else {
                    panic!("another line")
                };
                assert_eq!(read_fire(*exported).unwrap(), record);
            }
        }
    }

    #[test]
    fn a_task_that_the_api_would_refuse_is_refused() {
        let good = serde_json::to_value(export_task(&tasks()[1])).unwrap();
        for (field, value) in [
            ("id", "x".into()),
            ("namespace", "sh op".into()),
            ("timeout", "0s".into()),
            ("fire_at", "soon".into()),
            ("state", "asleep".into()),
            ("payload", serde_json::json!({"json": {"base64": "?"}})),
            ("unknown_field", 1.into()),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let read = serde_json::from_value::<ExportedTask>(bad).map_err(anyhow::Error::from);
            assert!(read.and_then(read_task).is_err(), "{field}");
        }
    }
}
