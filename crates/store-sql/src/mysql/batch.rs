//! A batch as text: statements of many rows, in as few packets as the server takes.

use std::fmt::Write as _;

use super::template::{put_bytes, table};
use crate::batch::BatchRows;
use crate::folded_rows::{FoldedRows, TotalRow};
use crate::rows::{LaterColumns, LetterColumns, RecordColumns, RowWriter, TaskColumns};
use crate::values::{SqlId, bigint};

/// Rows of one statement: beyond it, planning costs more than another statement.
const ROWS_MAX: usize = 500;
/// The largest text of one statement, as a part of a packet.
const STATEMENTS_PER_PACKET: usize = 4;

/// The rows of a batch, each as the text between two commas.
#[derive(Debug, Default)]
pub(super) struct BatchText {
    ended: Vec<String>,
    new: Vec<String>,
    filed: Vec<String>,
    postponed: Vec<String>,
    letters: Vec<String>,
    removed: Vec<String>,
    records: Vec<String>,
    counts: Vec<String>,
    differences: Vec<String>,
    /// The bytes of all records.
    pub(super) record_bytes: i64,
    p: i16,
}

/// A row in parentheses.
struct RowText(String);

impl RowText {
    fn new() -> Self {
        Self("(".to_owned())
    }

    fn separate(&mut self) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
    }

    fn number(mut self, number: impl Into<i64>) -> Self {
        self.separate();
        // Writing to a text cannot fail.
        let _ = write!(self.0, "{}", number.into());
        self
    }

    fn number_or_null(mut self, number: Option<i64>) -> Self {
        match number {
            Some(number) => self.number(number),
            None => {
                self.separate();
                self.0.push_str("NULL");
                self
            }
        }
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.separate();
        put_bytes(&mut self.0, bytes);
        self
    }

    fn bytes_or_null(self, bytes: Option<&[u8]>) -> Self {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.number_or_null(None),
        }
    }

    fn id(self, id: SqlId) -> Self {
        self.bytes(&id.0.to_be_bytes())
    }

    fn fire(self, (task, nominal): (SqlId, i64)) -> Self {
        self.id(task).number(nominal)
    }

    fn end(mut self) -> String {
        self.0.push(')');
        self.0
    }
}

impl BatchText {
    pub(super) fn of(p: i16, rows: &BatchRows) -> Self {
        let mut text = Self { p, ..Self::default() };
        rows.write_to(&mut text);
        text
    }

    fn task(&self, task: &TaskColumns<'_>) -> String {
        let at = |given: bool| given.then_some(task.fire_at);
        RowText::new()
            .number(self.p)
            .id(task.id)
            .number(task.fire_at)
            .number_or_null(at(task.moved))
            .number(task.scheduled)
            .bytes_or_null(task.series.then_some(task.namespace))
            .number_or_null(at(task.series))
            .bytes(task.namespace)
            .bytes_or_null(task.key)
            .bytes(&task.body)
            .end()
    }
}

impl RowWriter for BatchText {
    fn ended(&mut self, id: SqlId) {
        let mut text = String::with_capacity(35);
        put_bytes(&mut text, &id.0.to_be_bytes());
        self.ended.push(text);
    }

    fn new_task(&mut self, task: &TaskColumns<'_>) {
        self.new.push(self.task(task));
    }

    fn filed_task(&mut self, task: &TaskColumns<'_>) {
        self.filed.push(self.task(task));
    }

    fn postponed(&mut self, later: &LaterColumns) {
        let LaterColumns { id, fire_at, version, updated } = later;
        self.postponed.push(format!("[\"{id:x}\",{fire_at},{version},{updated}]"));
    }

    fn kept_letter(&mut self, letter: &LetterColumns<'_>) {
        let row = RowText::new().number(self.p).fire(letter.fire).bytes(letter.namespace);
        let row = row.number(letter.died_at).bytes(&letter.group);
        self.letters.push(row.bytes(&letter.letter).end());
    }

    fn removed_letter(&mut self, fire: (SqlId, i64)) {
        self.removed.push(RowText::new().fire(fire).end());
    }

    fn record(&mut self, record: &RecordColumns<'_>) {
        self.record_bytes += bigint(record.record.len());
        let row = RowText::new().number(self.p).fire(record.fire).number(record.ended_at);
        let row = row.number(record.kind).bytes(record.namespace).bytes_or_null(record.key);
        self.records.push(row.bytes(&record.record).end());
    }

    fn counts(&mut self, namespace: &[u8], moved: [i64; 6]) {
        let row = RowText::new().number(self.p).bytes(namespace);
        self.counts.push(moved.into_iter().fold(row, RowText::number).end());
    }

    fn difference(&mut self, value: &[u8]) {
        self.differences.push(RowText::new().number(self.p).bytes(value).end());
    }
}

/// A statement around its rows.
struct Frame<'a> {
    head: String,
    rows: &'a [String],
    tail: String,
}

impl BatchText {
    fn frames(&self, cluster: &str) -> [Frame<'_>; 10] {
        let p = self.p;
        let [task, letter, fire, counts, difference] =
            ["task", "letter", "fire", "counts", "difference"].map(|name| table(cluster, name));
        let columns = "p, id, fire_at, moved_at, scheduled, series_ns, series_at, ns, `key`, body";
        let insert = format!("INSERT INTO {task} ({columns}) VALUES ");
        let postpone = format!(
            "]', '$[*]' COLUMNS (id CHAR(32) PATH '$[0]', fire_at BIGINT PATH '$[1]', \
             version BIGINT PATH '$[2]', updated BIGINT PATH '$[3]')) AS late \
             STRAIGHT_JOIN {task} AS task ON task.p = {p} AND task.id = UNHEX(late.id) \
             SET task.fire_at = late.fire_at, task.moved_at = late.fire_at, \
             task.late_version = late.version, task.late_updated = late.updated"
        );
        [
            frame(format!("DELETE FROM {task} WHERE p = {p} AND id IN ("), &self.ended, ")"),
            frame(insert.clone(), &self.new, ""),
            frame(insert, &self.filed, REPLACE_TASK),
            Frame {
                head: "UPDATE JSON_TABLE('[".to_owned(),
                rows: &self.postponed,
                tail: postpone,
            },
            // Before the letters are deleted: they have their groups.
            frame(
                format!(
                    "INSERT INTO {difference} (p, ns, task, nominal, value) \
                     SELECT p, ns, task, nominal, group_name FROM {letter} FORCE INDEX (PRIMARY) \
                     WHERE p = {p} AND (task, nominal) IN ("
                ),
                &self.removed,
                ")",
            ),
            frame(
                format!("DELETE FROM {letter} WHERE p = {p} AND (task, nominal) IN ("),
                &self.removed,
                ")",
            ),
            frame(
                format!(
                    "INSERT INTO {letter} (p, task, nominal, ns, died_at, group_name, letter) \
                     VALUES "
                ),
                &self.letters,
                " ON DUPLICATE KEY UPDATE ns = VALUES(ns), died_at = VALUES(died_at), \
                 group_name = VALUES(group_name), letter = VALUES(letter)",
            ),
            frame(
                format!(
                    "INSERT INTO {fire} (p, task, nominal, ended_at, kind, ns, `key`, record) \
                     VALUES "
                ),
                &self.records,
                " ON DUPLICATE KEY UPDATE ended_at = VALUES(ended_at), kind = VALUES(kind), \
                 ns = VALUES(ns), `key` = VALUES(`key`), record = VALUES(record)",
            ),
            frame(
                format!(
                    "INSERT INTO {counts} (p, ns, scheduled, paused, done, dead, cancelled, \
                     dead_letters) VALUES "
                ),
                &self.counts,
                MOVE_COUNTS,
            ),
            frame(format!("INSERT INTO {difference} (p, value) VALUES "), &self.differences, ""),
        ]
    }

    /// Returns the transaction, which begins with `fence`, in packets of at most `packet_max`
    /// bytes. A row that is larger has a packet of its own.
    pub(super) fn packets(&self, cluster: &str, fence: &str, packet_max: usize) -> Vec<String> {
        packets(&self.frames(cluster), fence, packet_max)
    }
}

/// The rows of a fold.
#[derive(Debug)]
pub(super) struct FoldText {
    differences: Vec<String>,
    gone: Vec<String>,
    totals: Vec<String>,
    p: i16,
}

impl FoldText {
    pub(super) fn of(p: i16, rows: &FoldedRows) -> Self {
        let gone = |(namespace, hour): &(Vec<u8>, i64)| {
            RowText::new().bytes(namespace).number(*hour).end()
        };
        let total = |total: &TotalRow| {
            let row = RowText::new().number(p).bytes(&total.namespace).number(total.hour);
            row.bytes(&total.value).end()
        };
        Self {
            differences: rows.differences.iter().map(i64::to_string).collect(),
            gone: rows.gone.iter().map(gone).collect(),
            totals: rows.totals.iter().map(total).collect(),
            p,
        }
    }

    /// Returns the transaction in packets, as those of a batch.
    pub(super) fn packets(&self, cluster: &str, fence: &str, packet_max: usize) -> Vec<String> {
        let Self { differences, gone, totals, p } = self;
        let [difference, total] = ["difference", "total"].map(|name| table(cluster, name));
        // Each row by its key: a range would lock the row behind it, of another partition.
        let frames = [
            frame(format!("DELETE FROM {difference} WHERE p = {p} AND seq IN ("), differences, ")"),
            frame(format!("DELETE FROM {total} WHERE p = {p} AND (ns, hour) IN ("), gone, ")"),
            frame(format!("INSERT INTO {total} (p, ns, hour, value) VALUES "), totals, ""),
        ];
        packets(&frames, fence, packet_max)
    }
}

fn frame<'a>(head: String, rows: &'a [String], tail: &str) -> Frame<'a> {
    Frame { head, rows, tail: tail.to_owned() }
}

/// Returns a transaction, which begins with `fence`, in packets of at most `packet_max` bytes.
fn packets(frames: &[Frame<'_>], fence: &str, packet_max: usize) -> Vec<String> {
    let mut packets =
        Packets { done: Vec::new(), current: format!("START TRANSACTION;{fence};"), packet_max };
    for frame in frames {
        packets.add(frame);
    }
    packets.current.push_str("COMMIT");
    packets.done.push(packets.current);
    packets.done
}

const REPLACE_TASK: &str = " ON DUPLICATE KEY UPDATE fire_at = VALUES(fire_at), \
     moved_at = VALUES(moved_at), scheduled = VALUES(scheduled), series_ns = VALUES(series_ns), \
     series_at = VALUES(series_at), ns = VALUES(ns), `key` = VALUES(`key`), body = VALUES(body), \
     late_version = NULL, late_updated = NULL";
const MOVE_COUNTS: &str = " ON DUPLICATE KEY UPDATE scheduled = scheduled + VALUES(scheduled), \
     paused = paused + VALUES(paused), done = done + VALUES(done), dead = dead + VALUES(dead), \
     cancelled = cancelled + VALUES(cancelled), \
     dead_letters = dead_letters + VALUES(dead_letters)";

/// Packets that are being filled.
struct Packets {
    done: Vec<String>,
    current: String,
    packet_max: usize,
}

impl Packets {
    fn add(&mut self, frame: &Frame<'_>) {
        let mut rows = frame.rows;
        while !rows.is_empty() {
            let mut bytes = frame.head.len() + frame.tail.len();
            let fits = rows.iter().take(ROWS_MAX).take_while(|row| {
                bytes += row.len() + 1;
                bytes <= self.packet_max / STATEMENTS_PER_PACKET
            });
            let (first, others) = rows.split_at(fits.count().max(1));
            let length = frame.head.len()
                + frame.tail.len()
                + first.iter().map(|row| row.len() + 1).sum::<usize>();
            // The last packet has `COMMIT` too.
            if self.current.len() + length + 8 > self.packet_max && !self.current.is_empty() {
                self.done.push(std::mem::take(&mut self.current));
            }
            self.current.push_str(&frame.head);
            self.current.push_str(&first.join(","));
            self.current.push_str(&frame.tail);
            self.current.push(';');
            rows = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rows: usize, bytes: usize) -> BatchText {
        let row = format!("({})", "1".repeat(bytes - 2));
        BatchText { new: vec![row; rows], ended: vec!["x'00'".to_owned()], ..BatchText::default() }
    }

    #[test]
    fn a_small_batch_is_one_packet() {
        let packets = text(3, 100).packets("c", "FENCE", 1 << 20);
        let [packet] = &packets[..] else { panic!("{} packets", packets.len()) };
        assert!(packet.starts_with("START TRANSACTION;FENCE;DELETE FROM `c_task`"), "{packet}");
        assert!(packet.ends_with(";COMMIT"), "{packet}");
    }

    #[test]
    fn a_large_batch_is_split_between_rows_and_no_row_is_lost() {
        for (rows, bytes, packet_max) in
            [(1200, 10, 1 << 20), (50, 1000, 8000), (3, 9000, 8000), (7, 2000, 8000)]
        {
            let packets = text(rows, bytes).packets("c", "FENCE", packet_max);
            let all = packets.concat();
            assert_eq!(all.matches("111)").count(), rows);
            assert!(packets[0].starts_with("START TRANSACTION;FENCE;"));
            assert!(packets.last().unwrap().ends_with("COMMIT"));
            if bytes < packet_max {
                assert!(packets.iter().all(|packet| packet.len() <= packet_max));
            }
            let more = |packet: &&String| packet.matches("COMMIT").count() > 0;
            assert_eq!(packets.iter().filter(more).count(), 1);
        }
    }
}
