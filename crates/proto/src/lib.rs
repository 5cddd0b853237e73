//! What travels over gRPC, generated from `proto/punctual/v1`; the comments there are the documentation.
//!
//! In: bytes. Out: messages, and the client and server sides of `Tasks` and `Workers`.
//! Not here: what a message means (`punctual-server`'s conversion, `punctual-client`'s builder).

/// Version 1, the only one so far.
pub mod v1 {
    tonic::include_proto!("punctual.v1");
}

/// The compiled descriptors of all files, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
