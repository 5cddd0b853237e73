//! A subject of NATS `JetStream`.

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, Context};
use async_nats::{HeaderMap, HeaderName};
use punctual_test_support::NatsServer;
use serde_json::json;

use crate::system::{TestMessage, TestSystem, block_on};

const SUBJECT: &str = "commands.new";
const STREAM: &str = "COMMANDS";

pub(crate) struct JetStreamSystem(NatsServer);

impl JetStreamSystem {
    async fn context(&self) -> Context {
        jetstream::new(async_nats::connect(self.0.url()).await.unwrap())
    }
}

impl TestSystem for JetStreamSystem {
    fn start() -> Self {
        let server = NatsServer::start();
        server.make_stream(STREAM, &["commands.>"], &json!({}));
        Self(server)
    }

    fn port(&self) -> u16 {
        self.0.port
    }

    fn config(&self, port: u16, more: &str) -> String {
        format!(
            "[connections.mq]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:{port}\"\n\
             [[sources]]\nconnection = \"mq\"\nfrom = \"{SUBJECT}\"\nnamespace = \"shop\"\n\
             claim_after = \"1s\"\n{more}\n"
        )
    }

    fn send(&self, messages: &[TestMessage]) {
        block_on(async {
            let context = self.context().await;
            for message in messages {
                let mut headers = HeaderMap::new();
                for (name, value) in &message.headers {
                    headers.insert(name.parse::<HeaderName>().unwrap(), value.as_str());
                }
                let body = message.body.clone().into();
                let sent = context.publish_with_headers(SUBJECT, headers, body).await.unwrap();
                sent.await.unwrap();
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
        let messages = self.0.messages("PUNCTUAL_REJECTED").into_iter();
        let parts = messages.map(|message| {
            let problem = message.header("punctual-problem").unwrap().to_owned();
            (problem, message.payload.clone())
        });
        parts.collect()
    }

    fn restart(&mut self) {
        self.0.kill();
        self.0.start_again();
    }
}
