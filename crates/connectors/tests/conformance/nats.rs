//! NATS: a stream of subjects, read by the witness message by message.

use std::path::PathBuf;

use punctual_core::{MessageAddress, MessageOptions, MessageSystem};
use punctual_test_support::NatsServer;
use punctual_test_support::nats::{NATS_MESSAGE_BYTES_MAX, NATS_PASSWORD, NATS_USER};
use serde_json::json;

use crate::suite::{SecuredSettings, SinkSystem, WitnessedMessage};

const STREAM: &str = "OPEN";

pub(crate) struct NatsSystem {
    server: NatsServer,
    /// The number of the last message that was read.
    read: u64,
}

fn address(subject: &str) -> MessageAddress {
    MessageAddress::new(MessageSystem::Nats, subject, MessageOptions::default()).unwrap()
}

fn settings(scheme: &str, user: &str, port: u16) -> String {
    format!("kind = \"nats\"\nurl = \"{scheme}://{user}127.0.0.1:{port}\"\n")
}

impl SinkSystem for NatsSystem {
    const ATTRIBUTE_PREFIX: &'static str = "ce-";
    const PAGE: &'static str = include_str!("../../../../docs/connectors/nats.md");
    const PAGE_HOST: &'static str = "nats-1.internal,nats-2.internal";

    fn start() -> Self {
        Self { server: NatsServer::start(), read: 0 }
    }

    fn start_own() -> Self {
        Self::start()
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn settings(&self, port: u16) -> String {
        settings("nats", "", port)
    }

    fn secured(&self) -> SecuredSettings {
        let authority: PathBuf = self.server.authority_file();
        let settings = settings("tls", &format!("{NATS_USER}@"), self.server.port);
        SecuredSettings { settings, authority, port: self.server.port, password: NATS_PASSWORD }
    }

    fn make_place(&mut self) -> MessageAddress {
        self.server.make_stream(STREAM, &["open.>", "denied.>"], &json!({}));
        address("open.orders")
    }

    fn arrived(&mut self) -> Vec<WitnessedMessage> {
        let messages = self.server.messages_after(STREAM, self.read);
        self.read += u64::try_from(messages.len()).unwrap();
        let message = |found: punctual_test_support::NatsMessage| {
            assert_eq!(found.header("Nats-Msg-Id"), found.header("webhook-id"));
            WitnessedMessage {
                content_type: found.header("content-type").map(str::to_owned),
                body: found.payload,
                headers: found.headers,
            }
        };
        messages.into_iter().map(message).collect()
    }

    fn no_place(&self) -> Option<MessageAddress> {
        Some(address("nowhere"))
    }

    fn forbidden(&self) -> Option<(String, MessageAddress)> {
        let settings = settings("nats", "limited:limited@", self.server.port);
        Some((settings, address("denied.orders")))
    }

    fn too_large(&self) -> Option<usize> {
        Some(NATS_MESSAGE_BYTES_MAX)
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server.start_again();
    }
}
