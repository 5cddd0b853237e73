//! Configuration: what a broker is told when it starts.
//!
//! In: values that the binary gathered from flags and the environment. Out: a [`Config`] that makes sense as a
//! whole, or an error that says what to change.

use std::net::SocketAddr;
use std::time::Duration;

use punctual_store::Retention;

/// What a broker is told when it starts.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Whether it may listen beyond loopback although nobody has to say who they are.
    pub insecure: bool,
    /// How long history and dead letters are kept.
    pub retention: Retention,
    /// How long work under way may take to end when the broker stops.
    pub grace: Duration,
}

/// Why a configuration makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Open to the network without tokens.
    #[error(
        "--listen {0} is reachable from other machines and there are no tokens: anybody could \
         schedule calls from this machine. Listen on 127.0.0.1, or say --insecure if you mean it"
    )]
    Open(SocketAddr),
}

impl Config {
    /// Checks what only shows when all values are known.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !self.listen.ip().is_loopback() && !self.insecure {
            return Err(ConfigError::Open(self.listen));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_nothing_runs_without_being_told_to() {
        for (listen, insecure, fine) in [
            ("127.0.0.1:7400", false, true),
            ("127.0.0.2:0", false, true),
            ("[::1]:7400", false, true),
            ("0.0.0.0:7400", false, false),
            ("[::]:7400", false, false),
            ("192.0.2.1:7400", false, false),
            ("0.0.0.0:7400", true, true),
        ] {
            let (retention, grace) = (Retention::default(), Duration::from_secs(1));
            let listen: SocketAddr = listen.parse().unwrap();
            let config = Config { listen, insecure, retention, grace };
            assert_eq!(config.check().is_ok(), fine, "{listen}");
        }
    }
}
