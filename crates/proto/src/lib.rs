//! What travels over gRPC, generated from `proto/punctual/v1`; the comments there are the documentation.
//!
//! In: bytes. Out: messages, and the client and server sides of `Tasks`, `Workers` and, between brokers, `Peers`.
//! Not here: what a message means (`punctual-server`'s conversion, `punctual-client`'s builder).

/// Version 1, the only one so far.
pub mod v1 {
    tonic::include_proto!("punctual.v1");
}

/// The compiled descriptors of all public files, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

#[cfg(test)]
mod tests {
    use super::DESCRIPTORS;

    #[test]
    fn reflection_tells_nothing_of_what_brokers_ask_of_each_other() {
        let holds = |name: &[u8]| DESCRIPTORS.windows(name.len()).any(|window| window == name);
        assert!(holds(b"ScheduleRequest"));
        assert!(!holds(b"AskRequest"));
    }
}
