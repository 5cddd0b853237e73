//! A queue of RabbitMQ.

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use punctual_test_support::RabbitmqServer;

use crate::system::{TestMessage, TestSystem, block_on};

const QUEUE: &str = "commands";

pub(crate) struct RabbitmqSystem(RabbitmqServer);

impl RabbitmqSystem {
    async fn channel(&self) -> (Connection, Channel) {
        let url = format!("amqp://127.0.0.1:{}/%2f", self.0.port);
        let connected = Connection::connect(&url, ConnectionProperties::default()).await;
        let connection = connected.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        (connection, channel)
    }
}

impl TestSystem for RabbitmqSystem {
    fn start() -> Self {
        let system = Self(RabbitmqServer::start());
        block_on(async {
            let (_connection, channel) = system.channel().await;
            let options = QueueDeclareOptions::durable();
            channel.queue_declare(QUEUE.into(), options, FieldTable::default()).await.unwrap();
        });
        system
    }

    fn port(&self) -> u16 {
        self.0.port
    }

    fn config(&self, port: u16, more: &str) -> String {
        format!(
            "[connections.mq]\nkind = \"amqp\"\nurl = \"amqp://127.0.0.1:{port}\"\n\
             [[sources]]\nconnection = \"mq\"\nfrom = \"{QUEUE}\"\nnamespace = \"shop\"\n{more}\n"
        )
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
                    channel.basic_publish(exchange, QUEUE.into(), options, body, properties).await;
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
            let queue = channel.queue_declare(QUEUE.into(), options, FieldTable::default()).await;
            let queue = queue.unwrap();
            assert_eq!(queue.consumer_count(), 0, "a reader runs");
            usize::try_from(queue.message_count()).unwrap()
        })
    }

    fn rejected(&self) -> Vec<(String, String)> {
        block_on(async {
            let (_connection, channel) = self.channel().await;
            let mut rejected = Vec::new();
            let queue = || ShortString::from(format!("{QUEUE}.rejected"));
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
        self.0.kill();
        self.0.start_again();
    }
}
