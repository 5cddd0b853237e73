//! Generates Rust code and the descriptors for reflection from `proto/punctual/v1`.
//!
//! protox compiles the files, so that the machine needs no `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const FILES: [&str; 10] = [
    "punctual/v1/alarms.proto",
    "punctual/v1/fire.proto",
    "punctual/v1/measures.proto",
    "punctual/v1/namespaces.proto",
    "punctual/v1/operations.proto",
    "punctual/v1/preview.proto",
    "punctual/v1/task.proto",
    "punctual/v1/tasks.proto",
    "punctual/v1/whoami.proto",
    "punctual/v1/workers.proto",
];
/// Calls between brokers are internal, so they are not in the descriptors for reflection.
const INTERNAL: &str = "punctual/v1/peers.proto";

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());

    let public = protox::compile(FILES, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), public.encode_to_vec())?;

    // `Bytes`, so that a payload is a slice of the received message and not a copy. Sorted maps, so
    // that equal messages have equal bytes: idempotency keys remember a digest of them.
    let all = protox::compile(FILES.into_iter().chain([INTERNAL]), [&root])?;
    let generator = tonic_prost_build::configure().build_transport(false);
    generator.bytes(".").btree_map(".").compile_fds(all)?;
    Ok(())
}
