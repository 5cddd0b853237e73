//! Golden files: bytes of a format, kept in the repository as hexadecimal text.
//!
//! A test encodes a fixed value and compares the bytes with the file of that name; then it decodes
//! the bytes of the file and compares the result with the value. So a format cannot change by
//! accident, and bytes that an earlier version wrote stay readable.
//!
//! With `PUNCTUAL_GOLDEN=write` in the environment, missing files are written. Existing files are
//! never overwritten: to change a format on purpose, add a format number and new files, and keep
//! the old files as input of a decoding test.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// Bytes in one line of a file.
const LINE_BYTES: usize = 32;

/// One folder of golden files, and which of them were used.
#[derive(Debug)]
pub struct GoldenFiles {
    folder: PathBuf,
    used: BTreeSet<String>,
}

impl GoldenFiles {
    /// Opens a folder. It may be missing while the first files are written.
    #[must_use]
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), used: BTreeSet::new() }
    }

    /// Compares encoded bytes with the file `name`, and returns the bytes of the file.
    ///
    /// # Panics
    ///
    /// If the bytes differ, or if the file is missing and is not to be written.
    pub fn check(&mut self, name: &str, encoded: &[u8]) -> Vec<u8> {
        let path = self.path(name);
        if !path.exists() && std::env::var("PUNCTUAL_GOLDEN").as_deref() == Ok("write") {
            fs::create_dir_all(&self.folder).expect("the folder of golden files is writable");
            fs::write(&path, hex(encoded)).expect("the folder of golden files is writable");
        }
        let golden = self.read(name);
        let [ours, kept] = [hex(encoded), hex(&golden)];
        assert!(
            ours == kept,
            "{} has other bytes than are written now; a format must not change in place\n\
             file:\n{kept}now:\n{ours}",
            path.display(),
        );
        golden
    }

    /// Returns the bytes of the file `name`. For formats that are read and no longer written.
    ///
    /// # Panics
    ///
    /// If the file is missing or is not hexadecimal text.
    pub fn read(&mut self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        assert!(
            self.used.insert(name.to_owned()),
            "two values use the golden file {}; give each a name of its own",
            path.display(),
        );
        let text = fs::read_to_string(&path).unwrap_or_default();
        let bytes = unhex(&text);
        assert!(
            bytes.is_some() && path.exists(),
            "{} is missing or damaged; PUNCTUAL_GOLDEN=write writes missing files",
            path.display(),
        );
        bytes.unwrap_or_default()
    }

    /// Checks that every file of the folder was used.
    ///
    /// # Panics
    ///
    /// If a file belongs to no value: its test is gone, and with it the promise to read it.
    pub fn finish(self) {
        let files = fs::read_dir(&self.folder).expect("the folder of golden files exists");
        for file in files {
            let path = file.expect("the folder of golden files is readable").path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            assert!(self.used.contains(name), "no test reads {}", path.display());
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.hex"))
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(LINE_BYTES) {
        for byte in line {
            write!(text, "{byte:02x}").expect("a string takes everything");
        }
        text.push('\n');
    }
    text
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> =
        text.split_whitespace().flat_map(str::chars).map(digit).collect();
    let byte = |pair: &[u32]| match pair {
        [high, low] => u8::try_from(high << 4 | low).ok(),
        _ => None,
    };
    digits?.chunks(2).map(byte).collect()
}

fn digit(letter: char) -> Option<u32> {
    letter.to_digit(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_text_reads_back() {
        for length in [0, 1, LINE_BYTES, LINE_BYTES + 1, 300] {
            let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        }
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("0g"), None);
    }
}
