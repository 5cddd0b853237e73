//! Redis: a stream, read by redis-cli.

use punctual_core::{MessageAddress, MessageOptions, MessageSystem};
use punctual_test_support::redis::RedisServer;
use serde_json::Value;

use crate::suite::{SecuredSettings, SinkSystem, WitnessedMessage};

const STREAM: &str = "open:orders";
const PASSWORD: &str = "hush-hush";

pub(crate) struct RedisStreamSystem {
    server: RedisServer,
    /// The id of the last entry that was read.
    read: String,
}

fn address(stream: &str) -> MessageAddress {
    MessageAddress::new(MessageSystem::RedisStream, stream, MessageOptions::default()).unwrap()
}

impl RedisStreamSystem {
    /// What the server keeps in memory only.
    fn prepare(&self) {
        for (user, password, keys) in
            [("punctual", PASSWORD, "~*"), ("limited", "limited", "~open:*")]
        {
            let password = format!(">{password}");
            self.server.cli(&["ACL", "SETUSER", user, "on", &password, keys, "+@all"]);
        }
        self.server.cli(&["SET", "text", "x"]);
    }
}

impl SinkSystem for RedisStreamSystem {
    const ATTRIBUTE_PREFIX: &'static str = "ce-";
    const PAGE: &'static str = include_str!("../../../../docs/connectors/redis-streams.md");
    const PAGE_HOST: &'static str = "redis.internal";

    fn start() -> Self {
        let system = Self { server: RedisServer::start_secured(), read: "-".to_owned() };
        system.prepare();
        system
    }

    fn start_own() -> Self {
        Self::start()
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn settings(&self, port: u16) -> String {
        format!("kind = \"redis\"\nurl = \"redis://127.0.0.1:{port}\"\n")
    }

    fn secured(&self) -> SecuredSettings {
        let url = format!("rediss://punctual@127.0.0.1:{}", self.server.tls_port);
        SecuredSettings {
            settings: format!("kind = \"redis\"\nurl = \"{url}\"\n"),
            authority: self.server.authority_file(),
            port: self.server.tls_port,
            password: PASSWORD,
        }
    }

    fn make_place(&mut self) -> MessageAddress {
        address(STREAM)
    }

    fn arrived(&mut self) -> Vec<WitnessedMessage> {
        let text = self.server.cli(&["--json", "XRANGE", STREAM, &self.read, "+"]);
        let entries: Vec<(String, Vec<String>)> =
            serde_json::from_str::<Value>(&text).and_then(serde_json::from_value).unwrap();
        if let Some((last, _)) = entries.last() {
            self.read = format!("({last}");
        }
        let message = |(_, fields): (String, Vec<String>)| {
            let mut headers: Vec<(String, String)> =
                fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            let (name, body) = headers.pop().unwrap();
            assert_eq!(name, "payload");
            let content_type = headers.iter().find(|(name, _)| name == "content-type");
            let content_type = content_type.map(|(_, value)| value.clone());
            WitnessedMessage { body, content_type, headers }
        };
        entries.into_iter().map(message).collect()
    }

    fn no_place(&self) -> Option<MessageAddress> {
        // A key that is no stream.
        Some(address("text"))
    }

    fn forbidden(&self) -> Option<(String, MessageAddress)> {
        let url = format!("redis://limited:limited@127.0.0.1:{}", self.server.port);
        Some((format!("kind = \"redis\"\nurl = \"{url}\"\n"), address("closed:orders")))
    }

    fn too_large(&self) -> Option<usize> {
        // The server takes 512 MB.
        None
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server.start_again();
        self.prepare();
    }
}
