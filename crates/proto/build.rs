//! In: `proto/punctual/v1`. Out: Rust, and the descriptors that reflection answers with.
//!
//! The files are compiled by protox, so that no `protoc` has to be on the machine.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const FILES: [&str; 3] =
    ["punctual/v1/task.proto", "punctual/v1/tasks.proto", "punctual/v1/workers.proto"];
/// What brokers ask of each other is nobody else's business, so reflection does not tell of it.
const INTERNAL: &str = "punctual/v1/peers.proto";

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());

    let public = protox::compile(FILES, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), public.encode_to_vec())?;

    // A payload is a slice of what came off the wire, not a copy of it.
    let all = protox::compile(FILES.into_iter().chain([INTERNAL]), [&root])?;
    tonic_prost_build::configure().build_transport(false).bytes(".").compile_fds(all)?;
    Ok(())
}
