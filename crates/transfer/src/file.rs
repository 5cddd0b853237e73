//! The export file as a whole: lines, their counts and a checksum.
//!
//! Lines are written and read one at a time, so a file of any size needs the same memory. A file
//! that was truncated or changed is noticed at its last line at the latest. `format` defines what a
//! line contains.

use std::io::{BufRead, Read as _, Write};

use anyhow::{Context as _, bail};
use xxhash_rust::xxh3::Xxh3;

use crate::format::{ExportHeader, ExportLine, ExportTrailer};

/// The version of the format that this program writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;
/// The longest line. A payload of 256 KiB in base64 and a hundred attempts with their reasons need
/// a fraction of it.
const LINE_BYTES_MAX: u64 = 8 << 20;

/// How many lines of each kind a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LineCounts {
    pub(crate) tasks: u64,
    pub(crate) dead: u64,
    pub(crate) fires: u64,
}

impl LineCounts {
    fn add(&mut self, line: &ExportLine) {
        match line {
            ExportLine::Task(_) => self.tasks += 1,
            ExportLine::Dead(_) => self.dead += 1,
            ExportLine::Fire(_) => self.fires += 1,
            ExportLine::Header(_) | ExportLine::End(_) => {}
        }
    }
}

/// Writes an export file, line by line.
pub(crate) struct ExportWriter<W> {
    out: W,
    sum: Xxh3,
    pub(crate) totals: LineCounts,
}

impl<W: Write> ExportWriter<W> {
    pub(crate) fn begin(out: W, header: ExportHeader) -> anyhow::Result<Self> {
        let mut writer = Self { out, sum: Xxh3::new(), totals: LineCounts::default() };
        writer.write(&ExportLine::Header(header))?;
        Ok(writer)
    }

    pub(crate) fn write(&mut self, line: &ExportLine) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line).context("cannot encode a line")?;
        text.push(b'\n');
        self.sum.update(&text);
        self.totals.add(line);
        self.out.write_all(&text).context("cannot write")
    }

    /// Writes the last line. Returns the output and the counts.
    pub(crate) fn end(mut self) -> anyhow::Result<(W, LineCounts)> {
        let LineCounts { tasks, dead, fires } = self.totals;
        let checksum = format!("{:016x}", self.sum.digest());
        self.write(&ExportLine::End(ExportTrailer { tasks, dead, fires, checksum }))?;
        self.out.flush().context("cannot write")?;
        Ok((self.out, self.totals))
    }
}

/// Reads an export file, line by line.
pub(crate) struct ExportReader<R> {
    from: R,
    sum: Xxh3,
    totals: LineCounts,
    number: u64,
    pub(crate) bytes: u64,
}

impl<R: BufRead> ExportReader<R> {
    pub(crate) fn begin(from: R) -> anyhow::Result<(Self, ExportHeader)> {
        let mut reader =
            Self { from, sum: Xxh3::new(), totals: LineCounts::default(), number: 0, bytes: 0 };
        match reader.read()? {
            Some(ExportLine::Header(header)) if header.format == FORMAT => Ok((reader, header)),
            Some(ExportLine::Header(header)) => {
                bail!("the file has format {}, this version reads format {FORMAT}", header.format)
            }
            _ => bail!("this is not an export file: its first line is not a header"),
        }
    }

    /// Returns the next line between the first and the last. Returns `None` after the last line,
    /// whose counts and checksum were checked.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<ExportLine>> {
        match self.read()? {
            None => bail!("the file was cut after line {}: its last line is missing", self.number),
            Some(ExportLine::End(_)) => {
                let mut rest = [0];
                if self.from.read(&mut rest).context("cannot read")? > 0 {
                    bail!("the file has bytes after its last line");
                }
                Ok(None)
            }
            Some(ExportLine::Header(_)) => bail!("line {}: a second header", self.number),
            line => Ok(line),
        }
    }

    /// The number of the line that was read last, counted from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn read(&mut self) -> anyhow::Result<Option<ExportLine>> {
        let mut text = Vec::new();
        let mut bounded = (&mut self.from).take(LINE_BYTES_MAX);
        bounded.read_until(b'\n', &mut text).context("cannot read")?;
        if text.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += text.len() as u64;
        let number = self.number;
        if text.last() != Some(&b'\n') {
            bail!("the file was cut in line {number}, or that line is too long");
        }
        let line = serde_json::from_slice(&text).with_context(|| format!("line {number}"))?;
        if let ExportLine::End(end) = &line {
            self.check(end)?;
        }
        self.sum.update(&text);
        self.totals.add(&line);
        Ok(Some(line))
    }

    fn check(&self, end: &ExportTrailer) -> anyhow::Result<()> {
        let stated = LineCounts { tasks: end.tasks, dead: end.dead, fires: end.fires };
        if stated != self.totals {
            bail!(
                "the file is incomplete: its last line states {stated:?}, but it has {:?}",
                self.totals
            );
        }
        if end.checksum != format!("{:016x}", self.sum.digest()) {
            bail!("the file was changed: its checksum does not match");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;
    use punctual_store::conformance::fixtures::{at, epoch, id, partition, task};

    use super::*;
    use crate::format::{TimeText, export_task};

    fn file() -> Vec<u8> {
        let header = ExportHeader {
            format: FORMAT,
            version: "0".to_owned(),
            from: "a test".to_owned(),
            exported_at: TimeText(Timestamp::EPOCH),
            partitions: 1,
            epoch_max: 1,
        };
        let mut writer = ExportWriter::begin(Vec::new(), header).unwrap();
        for number in 0..3 {
            let task = task(id(at(number), partition(0), epoch(1), number)).build();
            writer.write(&ExportLine::Task(Box::new(export_task(&task)))).unwrap();
        }
        writer.end().unwrap().0
    }

    fn read(bytes: &[u8]) -> anyhow::Result<u64> {
        let (mut reader, _) = ExportReader::begin(bytes)?;
        let mut lines = 0;
        while reader.next()?.is_some() {
            lines += 1;
        }
        Ok(lines)
    }

    #[test]
    fn a_complete_file_is_read_and_a_truncated_one_is_refused() {
        let file = file();
        assert_eq!(read(&file).unwrap(), 3);
        for length in 0..file.len() {
            assert!(read(&file[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn a_changed_file_is_refused() {
        let text = String::from_utf8(file()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for changed in [
            text.replace("orders", "0rders"),
            [lines[0], lines[1], lines[3], lines[4], ""].join("\n"),
            format!("{text}\n"),
            text.replace(r#""format":1"#, r#""format":2"#),
            lines[1..].join("\n"),
        ] {
            assert!(read(changed.as_bytes()).is_err(), "{changed}");
        }
    }
}
