//! Embeds the console: lists the files of `console/`, compresses each of them, and names all of
//! them by one hash of their contents.
//!
//! The result is a table of `include_bytes!` that `src/api/http/console.rs` includes. `index.html`
//! names files as `console/HASH/FILE`; the hash takes the place of `HASH`. Files of other types
//! than those of [`media_type`], such as notes, are not embedded.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The page, which is not served under a hash itself.
const PAGE: &str = "index.html";
/// What the page has in place of the hash.
const PLACEHOLDER: &str = "console/HASH/";
/// The best compression: files are compressed once.
const LEVEL: u8 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("console");
    println!("cargo:rerun-if-changed={}", root.display());
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut files = Vec::new();
    list(&root, &root, &mut files)?;
    files.sort();

    let mut hasher = blake3::Hasher::new();
    for name in &files {
        let bytes = fs::read(root.join(name))?;
        hasher.update(name.as_bytes()).update(&[0]).update(blake3::hash(&bytes).as_bytes());
    }
    let hash = &hasher.finalize().to_hex()[..16];

    let mut table = format!("const HASH: &str = {hash:?};\nconst FILES: &[EmbeddedFile] = &[\n");
    let mut page = String::new();
    for (number, name) in files.iter().enumerate() {
        let media_type = media_type(name).ok_or("a file has no type")?;
        let mut bytes = fs::read(root.join(name))?;
        if name == PAGE {
            let text = String::from_utf8(bytes)?;
            bytes = text.replace(PLACEHOLDER, &format!("console/{hash}/")).into_bytes();
        }
        let (plain, compressed) = (out.join(number.to_string()), out.join(format!("{number}.gz")));
        fs::write(&plain, &bytes)?;
        fs::write(&compressed, gzip(&bytes)?)?;
        let file = format!(
            "EmbeddedFile {{ name: {name:?}, media_type: {media_type:?}, \
             plain: include_bytes!({plain:?}), compressed: include_bytes!({compressed:?}) }}"
        );
        match name == PAGE {
            true => page = file,
            false => writeln!(table, "    {file},")?,
        }
    }
    if page.is_empty() {
        return Err(format!("{} has no {PAGE}", root.display()).into());
    }
    writeln!(table, "];\nconst PAGE: EmbeddedFile = {page};")?;
    fs::write(out.join("console.rs"), table)?;
    Ok(())
}

/// Adds the files of a folder that have a type, by their paths below the root.
fn list(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, files)?;
            continue;
        }
        let name = path.strip_prefix(root)?.to_str().ok_or("a file name is not UTF-8")?;
        if media_type(name).is_some() {
            files.push(name.to_owned());
        }
    }
    Ok(())
}

fn media_type(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

/// Compresses bytes in the format of RFC 1952.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    // No name, no time, so that equal files are compressed to equal bytes.
    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255];
    gzip.extend(miniz_oxide::deflate::compress_to_vec(bytes, LEVEL));
    gzip.extend(crc32(bytes).to_le_bytes());
    gzip.extend(u32::try_from(bytes.len())?.to_le_bytes());
    Ok(gzip)
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, add)
}
