//! `punctual schedule --file`: schedules the tasks in the lines of a file, in batches.
//!
//! Each line is a task or gets its own problem; a line that is wrong does not stop the others. With
//! `--json` each result is one line, in the order of the file; without it only failures are shown.
//! If a whole batch is refused, the command ends and says from which line on nothing is known.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::ScheduleArgs;
use crate::cli::broker::part;
use crate::cli::output;
use crate::transfer::progress_bar;

/// Tasks of one batch: enough that a call costs little per task, and the bar moves often.
const TASKS_MAX: usize = 5_000;
/// Bytes of one batch: the broker takes 64 MiB.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Bytes of one line: the broker takes no task as long as this.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// What became of the tasks so far.
#[derive(Debug, Default)]
struct FileProgress {
    scheduled: u64,
    failed: u64,
}

/// Lines that are sent together.
#[derive(Debug, Default)]
struct LineBatch {
    /// The lines to send, with their breaks.
    body: Vec<u8>,
    /// The number of each line in the file, from 1, and whether it is in `body`.
    lines: Vec<(u64, LineFate)>,
    /// Bytes of the file that were read for it.
    bytes_read: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineFate {
    Sent,
    /// It is longer than any task, and was not read.
    TooLong,
}

impl ScheduleArgs {
    /// Schedules all tasks of a file; `-` is standard input.
    pub(super) fn run_many(&self, file: &str) -> anyhow::Result<()> {
        let (mut input, length) = open(file)?;
        let bar = progress_bar(length, "scheduling");
        let mut done = FileProgress::default();
        let mut line = 0;
        for number in 0_u64.. {
            let batch = LineBatch::read(&mut input, &mut line);
            let batch =
                batch.with_context(|| format!("cannot read line {} of {file}", line + 1))?;
            let Some((first, _)) = batch.lines.first() else { break };
            if let Err(error) = self.send_batch(&batch, number, &bar, &mut done) {
                bar.finish_and_clear();
                // With --json the results say how far it came, and the error stays as it is.
                if !self.broker.json {
                    output::print_line(&format!(
                        "scheduled {}; no result for line {first} and those after it",
                        done.scheduled
                    ))?;
                }
                return Err(error);
            }
            bar.inc(batch.bytes_read);
        }
        bar.finish_and_clear();
        done.end(file, self.broker.json)
    }

    fn send_batch(
        &self,
        batch: &LineBatch,
        number: u64,
        bar: &ProgressBar,
        done: &mut FileProgress,
    ) -> anyhow::Result<()> {
        let mut headers = vec![("content-type", "application/x-ndjson".to_owned())];
        if let Some(key) = &self.idempotency_key {
            headers.push(("idempotency-key", format!("{key}/{number}")));
        }
        let path = format!("/v1/{}/tasks", part(&self.namespace));
        let mut answer = match batch.body.is_empty() {
            false => self.broker.send("POST", &path, &headers, batch.body.clone())?,
            true => Value::Null,
        };
        let mut results = match answer["results"].take() {
            Value::Array(results) => results.into_iter(),
            _ => Vec::new().into_iter(),
        };
        for (line, fate) in &batch.lines {
            let result = match fate {
                LineFate::Sent => {
                    results.next().context("the answer of the broker has too few results")?
                }
                LineFate::TooLong => too_long(),
            };
            let is_task = result["id"].is_string();
            done.count(is_task);
            let text = match (self.broker.json, is_task) {
                (true, _) => output::json_text(&result),
                (false, true) => continue,
                (false, false) => failure(*line, &result),
            };
            bar.suspend(|| output::print_line(&text))?;
        }
        Ok(())
    }
}

impl FileProgress {
    fn count(&mut self, is_task: bool) {
        match is_task {
            true => self.scheduled += 1,
            false => self.failed += 1,
        }
    }

    /// Prints the counts, and fails if a task was not scheduled.
    fn end(&self, file: &str, json: bool) -> anyhow::Result<()> {
        let all = self.scheduled + self.failed;
        if all == 0 {
            bail!("{file} has no tasks; it must have one per line");
        }
        if !json {
            output::print_line(&format!("scheduled {} of {all}", self.scheduled))?;
        }
        match self.failed {
            0 => Ok(()),
            1 => bail!("one task was not scheduled"),
            count => bail!("{count} tasks were not scheduled"),
        }
    }
}

impl LineBatch {
    /// Reads lines until the batch is full or the file ends. `line` is the number of the last line
    /// that was read. Empty lines are left out.
    fn read(file: &mut impl BufRead, line: &mut u64) -> io::Result<Self> {
        let mut batch = Self::default();
        while batch.lines.len() < TASKS_MAX && batch.body.len() < BATCH_BYTES_MAX {
            let before = batch.body.len();
            let read = file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut batch.body)?;
            if read == 0 {
                break;
            }
            *line += 1;
            batch.bytes_read += read as u64;
            if read as u64 == LINE_BYTES_MAX && !batch.body.ends_with(b"\n") {
                batch.body.truncate(before);
                batch.bytes_read += skip_line(file)?;
                batch.lines.push((*line, LineFate::TooLong));
            } else if batch.body[before..].trim_ascii().is_empty() {
                batch.body.truncate(before);
            } else {
                if !batch.body.ends_with(b"\n") {
                    batch.body.push(b'\n');
                }
                batch.lines.push((*line, LineFate::Sent));
            }
        }
        Ok(batch)
    }
}

/// Reads the rest of a line, however long it is. Returns its length.
fn skip_line(file: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = file.fill_buf()?;
        if buffer.is_empty() {
            return Ok(skipped);
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(buffer.len(), |end| end + 1);
        file.consume(length);
        skipped += length as u64;
        if end.is_some() {
            return Ok(skipped);
        }
    }
}

/// A file to read from, and its length if it has one.
fn open(file: &str) -> anyhow::Result<(Box<dyn BufRead>, Option<u64>)> {
    if file == "-" {
        return Ok((Box::new(BufReader::new(io::stdin())), None));
    }
    let opened = File::open(file).with_context(|| format!("cannot read {file}"))?;
    let length = opened.metadata().ok().filter(|it| it.is_file()).map(|it| it.len());
    Ok((Box::new(BufReader::new(opened)), length))
}

/// The problem of a line that is not sent.
fn too_long() -> Value {
    json!({
        "type": "urn:punctual:too-large",
        "title": "Too large",
        "status": 413,
        "detail": format!("the line has more than {LINE_BYTES_MAX} bytes"),
    })
}

fn failure(line: u64, problem: &Value) -> String {
    let detail = problem["detail"].as_str().unwrap_or("the task was not scheduled");
    format!("line {line}: {}", output::clean(detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<LineBatch> {
        let (mut file, mut line) = (io::Cursor::new(text.to_vec()), 0);
        let batches = std::iter::from_fn(|| {
            let batch = LineBatch::read(&mut file, &mut line).unwrap();
            (!batch.lines.is_empty()).then_some(batch)
        });
        batches.collect()
    }

    #[test]
    fn lines_are_batched_with_their_numbers() {
        let [batch] = &all(b"{\"a\":1}\n\n  \r\n{\"b\":2}")[..] else { panic!("one batch") };
        assert_eq!(batch.body, b"{\"a\":1}\n{\"b\":2}\n");
        assert_eq!(batch.lines, [(1, LineFate::Sent), (4, LineFate::Sent)]);
        assert_eq!(batch.bytes_read, 20);
        assert!(all(b"").is_empty());
        let batches = all(&b"{}\n".repeat(TASKS_MAX + 1));
        let counts: Vec<usize> = batches.iter().map(|batch| batch.lines.len()).collect();
        assert_eq!(counts, [TASKS_MAX, 1]);
        assert_eq!(batches[1].lines[0].0, TASKS_MAX as u64 + 1);
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_and_the_next_is_read() {
        let long = usize::try_from(LINE_BYTES_MAX).unwrap() + 10;
        let mut text = b"x".repeat(long);
        text.extend_from_slice(b"\n{}\n");
        let [batch] = &all(&text)[..] else { panic!("one batch") };
        assert_eq!(batch.body, b"{}\n");
        assert_eq!(batch.lines, [(1, LineFate::TooLong), (2, LineFate::Sent)]);
        assert_eq!(batch.bytes_read, text.len() as u64);
    }
}
