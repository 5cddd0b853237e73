//! The file: lines, what they add up to, and whether it is whole.
//!
//! In and out: bytes, one line at a time, so that a file of any size takes the same memory.
//! Invariant: a file that was cut, or changed by hand, is noticed at its end at the latest.
//! Not here: what is in a line (`form`).

use std::io::{BufRead, Read as _, Write};

use anyhow::{Context as _, bail};
use xxhash_rust::xxh3::Xxh3;

use super::form::{End, Header, Line};

/// What this program writes, and all that it reads.
pub(super) const FORMAT: u32 = 1;
/// The longest line: a payload of 256 KiB in base64, and a hundred attempts with their reasons, several times over.
const LINE_BYTES_MAX: u64 = 8 << 20;

/// Lines by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    pub(super) tasks: u64,
    pub(super) dead: u64,
    pub(super) fires: u64,
}

impl Totals {
    fn add(&mut self, line: &Line) {
        match line {
            Line::Task(_) => self.tasks += 1,
            Line::Dead(_) => self.dead += 1,
            Line::Fire(_) => self.fires += 1,
            Line::Header(_) | Line::End(_) => {}
        }
    }
}

/// Writes a file.
pub(super) struct Writer<W> {
    out: W,
    sum: Xxh3,
    pub(super) totals: Totals,
}

impl<W: Write> Writer<W> {
    pub(super) fn begin(out: W, header: Header) -> anyhow::Result<Self> {
        let mut writer = Self { out, sum: Xxh3::new(), totals: Totals::default() };
        writer.write(&Line::Header(header))?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, line: &Line) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line).context("cannot write a line")?;
        text.push(b'\n');
        self.sum.update(&text);
        self.totals.add(line);
        self.out.write_all(&text).context("cannot write")
    }

    /// The last line. Gives back what was written to.
    pub(super) fn end(mut self) -> anyhow::Result<(W, Totals)> {
        let Totals { tasks, dead, fires } = self.totals;
        let checksum = format!("{:016x}", self.sum.digest());
        self.write(&Line::End(End { tasks, dead, fires, checksum }))?;
        self.out.flush().context("cannot write")?;
        Ok((self.out, self.totals))
    }
}

/// Reads a file.
pub(super) struct Reader<R> {
    from: R,
    sum: Xxh3,
    totals: Totals,
    number: u64,
    pub(super) bytes: u64,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn begin(from: R) -> anyhow::Result<(Self, Header)> {
        let mut reader =
            Self { from, sum: Xxh3::new(), totals: Totals::default(), number: 0, bytes: 0 };
        match reader.read()? {
            Some(Line::Header(header)) if header.format == FORMAT => Ok((reader, header)),
            Some(Line::Header(header)) => {
                bail!("the file is of format {}, this version reads {FORMAT}", header.format)
            }
            _ => bail!("this is not an export: its first line is no header"),
        }
    }

    /// The next line between the first and the last; `None` after the last, which was checked.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<Line>> {
        match self.read()? {
            None => bail!("the file was cut after line {}: its last line is missing", self.number),
            Some(Line::End(_)) => {
                let mut rest = [0];
                if self.from.read(&mut rest).context("cannot read")? > 0 {
                    bail!("there is something behind the last line");
                }
                Ok(None)
            }
            Some(Line::Header(_)) => bail!("line {}: a second header", self.number),
            line => Ok(line),
        }
    }

    /// Which line was read last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn read(&mut self) -> anyhow::Result<Option<Line>> {
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
        if let Line::End(end) = &line {
            self.check(end)?;
        }
        self.sum.update(&text);
        self.totals.add(&line);
        Ok(Some(line))
    }

    fn check(&self, end: &End) -> anyhow::Result<()> {
        let said = Totals { tasks: end.tasks, dead: end.dead, fires: end.fires };
        if said != self.totals {
            bail!("the file is not whole: it says {said:?}, and has {:?}", self.totals);
        }
        if end.checksum != format!("{:016x}", self.sum.digest()) {
            bail!("the file was changed: its checksum is another");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;
    use punctual_store::conformance::fixtures::{at, epoch, id, partition, task};

    use super::super::form::{At, task_form};
    use super::*;

    fn file() -> Vec<u8> {
        let header = Header {
            format: FORMAT,
            version: "0".to_owned(),
            from: "a test".to_owned(),
            exported_at: At(Timestamp::EPOCH),
            partitions: 1,
            epoch_max: 1,
        };
        let mut writer = Writer::begin(Vec::new(), header).unwrap();
        for number in 0..3 {
            let task = task(id(at(number), partition(0), epoch(1), number)).build();
            writer.write(&Line::Task(Box::new(task_form(&task)))).unwrap();
        }
        writer.end().unwrap().0
    }

    fn read(bytes: &[u8]) -> anyhow::Result<u64> {
        let (mut reader, _) = Reader::begin(bytes)?;
        let mut lines = 0;
        while reader.next()?.is_some() {
            lines += 1;
        }
        Ok(lines)
    }

    #[test]
    fn a_whole_file_is_read_and_a_cut_one_refused_wherever_it_was_cut() {
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
