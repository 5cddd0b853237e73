//! A queue of RabbitMQ.

use std::sync::atomic::{AtomicU32, Ordering};

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use punctual_test_support::RabbitmqServer;
use punctual_test_support::rabbitmq::PASSWORD;

use crate::system::{SecuredConnection, TestMessage, TestSystem, block_on};

pub(crate) struct RabbitmqSystem {
    server: RabbitmqServer,
    queue: String,
}

impl RabbitmqSystem {
    fn on(server: RabbitmqServer) -> Self {
        let system = Self { server, queue: format!("commands-{}", free_name()) };
        system.make_queue();
        system
    }

    fn make_queue(&self) {
        block_on(async {
            let (_connection, channel) = self.channel().await;
            let (queue, options) = (self.queue(), QueueDeclareOptions::durable());
            channel.queue_declare(queue, options, FieldTable::default()).await.unwrap();
        });
    }

    fn queue(&self) -> ShortString {
        self.queue.clone().into()
    }

    async fn channel(&self) -> (Connection, Channel) {
        let url = format!("amqp://127.0.0.1:{}/%2f", self.server.port);
        let connected = Connection::connect(&url, ConnectionProperties::default()).await;
        let connection = connected.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        (connection, channel)
    }
}

impl TestSystem for RabbitmqSystem {
    const PAGE: &'static str = include_str!("../../../../docs/connectors/rabbitmq.md");
    const PAGE_HOST: &'static str = "mq.internal/shop";
    const PAGE_PLACE: &'static str = "delayed-orders";

    fn start() -> Self {
        Self::on(RabbitmqServer::shared())
    }

    fn start_own() -> Self {
        Self::on(RabbitmqServer::start())
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn use_place(&mut self, place: &str) {
        self.queue = place.to_owned();
        self.make_queue();
    }

    fn connection(&self, port: u16) -> String {
        format!("kind = \"amqp\"\nurl = \"amqp://127.0.0.1:{port}\"")
    }

    fn secured(&self) -> SecuredConnection {
        let port = self.server.tls_port;
        SecuredConnection {
            lines: format!("kind = \"amqp\"\nurl = \"amqps://punctual@127.0.0.1:{port}\"\n"),
            authority: self.server.authority_file(),
            port,
            password: PASSWORD,
        }
    }

    fn source(&self) -> String {
        format!("from = \"{}\"", self.queue)
    }

    fn send(&self, messages: &[TestMessage]) {
        block_on(async {
            let (_connection, channel) = self.channel().await;
            let mut confirms = Vec::new();
            for message in messages {
                let mut headers = FieldTable::default();
                for (name, value) in &message.headers {
                    let value = AMQPValue::LongString(value.clone().into());
                    headers.insert(name.clone().into(), value);
                }
                let properties =
                    BasicProperties::default().with_headers(headers).with_delivery_mode(2);
                let (exchange, options) = (ShortString::default(), BasicPublishOptions::default());
                let body = message.body.as_bytes();
                let sent =
                    channel.basic_publish(exchange, self.queue(), options, body, properties).await;
                confirms.push(sent.unwrap());
            }
            for confirm in confirms {
                assert!(confirm.await.unwrap().is_ack());
            }
        });
    }

    fn unconfirmed(&self, _: &[&str]) -> usize {
        block_on(async {
            let (_connection, channel) = self.channel().await;
            let options = QueueDeclareOptions::durable().passive();
            let queue = channel.queue_declare(self.queue(), options, FieldTable::default()).await;
            let queue = queue.unwrap();
            assert_eq!(queue.consumer_count(), 0, "a reader runs");
            usize::try_from(queue.message_count()).unwrap()
        })
    }

    fn rejected(&self) -> Vec<(String, String)> {
        block_on(async {
            let (_connection, channel) = self.channel().await;
            let mut rejected = Vec::new();
            let queue = || ShortString::from(format!("{}.rejected", self.queue));
            // What is not acknowledged is there again for the next look.
            while let Ok(Some(message)) =
                channel.basic_get(queue(), BasicGetOptions::default()).await
            {
                let headers = message.properties.headers().clone().unwrap_or_default();
                let Some(AMQPValue::LongString(problem)) =
                    headers.inner().get("punctual-problem").cloned()
                else {
                    panic!("no problem: {headers:?}");
                };
                let body = String::from_utf8(message.data.clone()).unwrap();
                rejected.push((problem.to_string(), body));
            }
            rejected
        })
    }

    fn restart(&mut self) {
        self.server.kill();
        self.server.start_again();
    }
}

/// A name that no other test has.
fn free_name() -> String {
    let process = std::process::id();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{process}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
