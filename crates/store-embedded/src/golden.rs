//! Golden bytes: encodings of fixed values, compared with the files in `tests/golden`.
//!
//! A test encodes a value, compares the bytes with the file, and decodes the file. A difference
//! means that the format on disk has changed, and that existing stores cannot be read any more.
//!
//! A file that is missing is written if the environment has `PUNCTUAL_GOLDEN=write`; otherwise the
//! test fails. Existing files are never changed: a new format gets new files.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Bytes per line of a file.
const LINE_BYTES: usize = 32;

/// Asserts that `encoded` are the bytes in the file `name.hex`, and returns these.
pub(crate) fn assert_golden(name: &str, encoded: &[u8]) -> Vec<u8> {
    let lines = encoded.chunks(LINE_BYTES).map(|line| to_hex(line) + "\n");
    from_hex(&assert_golden_text(&format!("{name}.hex"), &lines.collect::<String>()))
}

/// Asserts that `encoded` is the text in the file, and returns it.
pub(crate) fn assert_golden_text(file: &str, encoded: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if !path.exists() && std::env::var("PUNCTUAL_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, encoded).expect("the file is written");
    }
    let Ok(text) = fs::read_to_string(&path) else {
        panic!("{} is missing; PUNCTUAL_GOLDEN=write writes it", path.display());
    };
    assert_eq!(encoded, text, "the format in {} has changed", path.display());
    text
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("hexadecimal digits")
    };
    digits.chunks(2).map(byte).collect()
}
