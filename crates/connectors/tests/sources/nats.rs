//! A subject of NATS `JetStream`.

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, Context};
use async_nats::{HeaderMap, HeaderName};
use punctual_test_support::NatsServer;
use punctual_test_support::nats::{NATS_PASSWORD, NATS_USER};
use serde_json::json;

use crate::system::{SecuredConnection, TestMessage, TestSystem, block_on};

const SUBJECT: &str = "commands.new";
const STREAM: &str = "COMMANDS";
/// Messages that wait for their confirms.
const SEND_MAX: usize = 1_000;

pub(crate) struct JetStreamSystem {
    server: NatsServer,
    subject: String,
}

impl JetStreamSystem {
    async fn context(&self) -> Context {
        jetstream::new(async_nats::connect(self.server.url()).await.unwrap())
    }
}

impl TestSystem for JetStreamSystem {
    const PAGE: &'static str = include_str!("../../../../docs/connectors/nats.md");
    const PAGE_HOST: &'static str = "nats-1.internal,nats-2.internal";
    const PAGE_PLACE: &'static str = "timers.order";

    fn start() -> Self {
        let server = NatsServer::start();
        server.make_stream(STREAM, &["commands.>"], &json!({}));
        Self { server, subject: SUBJECT.to_owned() }
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn use_place(&mut self, place: &str) {
        self.subject = place.to_owned();
        self.server.make_stream("OTHER", &[place], &json!({}));
    }

    fn connection(&self, port: u16) -> String {
        format!("kind = \"nats\"\nurl = \"nats://127.0.0.1:{port}\"")
    }

    fn secured(&self) -> SecuredConnection {
        let port = self.server.port;
        SecuredConnection {
            lines: format!("kind = \"nats\"\nurl = \"tls://{NATS_USER}@127.0.0.1:{port}\"\n"),
            authority: self.server.authority_file(),
            port,
            password: NATS_PASSWORD,
        }
    }

    fn source(&self) -> String {
        format!("from = \"{}\"\nclaim_after = \"1s\"", self.subject)
    }

    fn send(&self, messages: &[TestMessage]) {
        block_on(async {
            let context = self.context().await;
            for messages in messages.chunks(SEND_MAX) {
                let mut confirms = Vec::new();
                for message in messages {
                    let mut headers = HeaderMap::new();
                    for (name, value) in &message.headers {
                        headers.insert(name.parse::<HeaderName>().unwrap(), value.as_str());
                    }
                    let (subject, body) = (self.subject.clone(), message.body.clone().into());
                    let sent = context.publish_with_headers(subject, headers, body).await;
                    confirms.push(sent.unwrap().into_future());
                }
                for confirm in confirms {
                    confirm.await.unwrap();
                }
            }
        });
    }

    fn unconfirmed(&self, _: &[&str]) -> usize {
        block_on(async {
            let context = self.context().await;
            let name = &blake3::hash(SUBJECT.as_bytes()).to_hex()[..8];
            let consumer: PullConsumer =
                context.get_consumer_from_stream(format!("punctual-{name}"), STREAM).await.unwrap();
            let info = consumer.get_info().await.unwrap();
            info.num_ack_pending + usize::try_from(info.num_pending).unwrap()
        })
    }

    fn rejected(&self) -> Vec<(String, String)> {
        let messages = self.server.messages("PUNCTUAL_REJECTED").into_iter();
        let parts = messages.map(|message| {
            let problem = message.header("punctual-problem").unwrap().to_owned();
            (problem, message.payload.clone())
        });
        parts.collect()
    }

    fn restart(&mut self) {
        self.server.kill();
        self.server.start_again();
    }
}
