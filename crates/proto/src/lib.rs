//! The messages and services of the gRPC API, generated from `proto/punctual/v1`.
//!
//! `Tasks`, `Alarms` and `Workers` are public; brokers use `Peers` among themselves. The comments
//! of the files are the documentation. `punctual-server` and `punctual-client` convert messages to
//! their own types.

/// Version 1 of the API.
pub mod v1 {
    tonic::include_proto!("punctual.v1");
}

/// The compiled descriptors of all public files, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

#[cfg(test)]
mod tests {
    use super::DESCRIPTORS;

    #[test]
    fn reflection_has_only_the_public_services() {
        let contains = |name: &[u8]| DESCRIPTORS.windows(name.len()).any(|window| window == name);
        assert!(contains(b"ScheduleRequest"));
        assert!(!contains(b"AskRequest"));
    }
}
