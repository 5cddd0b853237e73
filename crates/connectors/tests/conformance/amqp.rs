//! RabbitMQ: a queue by the default exchange.

use std::sync::atomic::{AtomicU32, Ordering};

use punctual_core::{MessageAddress, MessageOptions, MessageSystem};
use punctual_test_support::RabbitmqServer;
use punctual_test_support::rabbitmq::{MESSAGE_BYTES_MAX, PASSWORD};

use crate::suite::{SecuredSettings, SinkSystem, WitnessedMessage};

pub(crate) struct AmqpSystem {
    server: RabbitmqServer,
    queue: String,
}

fn address(exchange: &str, key: &str) -> MessageAddress {
    let options = MessageOptions { key: Some(key.to_owned()), ..MessageOptions::default() };
    MessageAddress::new(MessageSystem::Amqp, exchange, options).unwrap()
}

impl AmqpSystem {
    fn over(server: RabbitmqServer) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { server, queue: format!("open-{}-{next}", std::process::id()) }
    }
}

impl SinkSystem for AmqpSystem {
    const ATTRIBUTE_PREFIX: &'static str = "cloudEvents_";
    const PAGE: &'static str = include_str!("../../../../docs/connectors/rabbitmq.md");
    const PAGE_HOST: &'static str = "mq.internal";

    fn start() -> Self {
        Self::over(RabbitmqServer::shared())
    }

    fn start_own() -> Self {
        Self::over(RabbitmqServer::start())
    }

    fn port(&self) -> u16 {
        self.server.port
    }

    fn settings(&self, port: u16) -> String {
        format!("kind = \"amqp\"\nurl = \"amqp://guest:guest@127.0.0.1:{port}\"\n")
    }

    fn secured(&self) -> SecuredSettings {
        let port = self.server.tls_port;
        SecuredSettings {
            settings: format!("kind = \"amqp\"\nurl = \"amqps://punctual@127.0.0.1:{port}\"\n"),
            authority: self.server.authority_file(),
            port,
            password: PASSWORD,
        }
    }

    fn make_place(&mut self) -> MessageAddress {
        self.server.witness(&["declare", &self.queue]);
        address("", &self.queue)
    }

    fn arrived(&mut self) -> Vec<WitnessedMessage> {
        let messages = self.server.witness(&["get", &self.queue]);
        let message = |found: serde_json::Value| {
            assert_eq!(found["delivery_mode"], 2);
            assert_eq!(found["id"], found["headers"]["webhook-id"]);
            let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
            let headers = found["headers"].as_object().unwrap().iter();
            WitnessedMessage {
                body: text(&found["body"]).unwrap(),
                content_type: text(&found["content_type"]),
                headers: headers
                    .map(|(name, value)| (name.clone(), text(value).unwrap()))
                    .collect(),
            }
        };
        messages.into_iter().map(message).collect()
    }

    fn no_place(&self) -> Option<MessageAddress> {
        Some(address("", "no-such-queue"))
    }

    fn forbidden(&self) -> Option<(String, MessageAddress)> {
        let port = self.server.port;
        let url = format!("amqp://limited:{PASSWORD}@127.0.0.1:{port}");
        Some((format!("kind = \"amqp\"\nurl = \"{url}\"\n"), address("amq.topic", "x")))
    }

    fn too_large(&self) -> Option<usize> {
        Some(MESSAGE_BYTES_MAX + 1)
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server.start_again();
    }
}

impl Drop for AmqpSystem {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Also one that was never made.
            self.server.witness(&["delete", &self.queue]);
        }
    }
}

#[test]
fn an_exchange_that_is_not_there_fails_with_the_text_of_the_server() {
    use crate::run::CourierRun;
    let system = AmqpSystem::start();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let deliveries: Vec<_> = (0..3).map(|_| run.delivery(&address("nothing", "x"), 0)).collect();
    let outcomes = run.settle(deliveries);
    let text = format!("{outcomes:?}");
    assert!(text.contains("404") && text.contains("no exchange 'nothing'"), "{text}");
}

#[test]
fn an_unroutable_message_fails_with_the_text_of_the_server() {
    use crate::run::CourierRun;
    let system = AmqpSystem::start();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let delivery = run.delivery(&address("", "no-such-queue"), 0);
    let text = format!("{:?}", run.settle(vec![delivery]));
    assert!(text.contains("312") && text.contains("NO_ROUTE"), "{text}");
}

#[test]
fn a_queue_that_is_full_refuses_and_takes_later() {
    use crate::run::{CourierRun, is_acked};
    let system = AmqpSystem::start();
    system.server.witness(&["declare", &system.queue, "1"]);
    let mut run = CourierRun::start(&system.settings(system.port()));
    let place = address("", &system.queue);
    let first = run.delivery(&place, 0);
    run.settle_all(vec![first]);
    let second = run.delivery(&place, 0);
    let outcomes = run.settle(vec![CourierRun::again(&second)]);
    assert!(!is_acked(&outcomes, &second) && format!("{outcomes:?}").contains("nack"));
    system.server.witness(&["get", &system.queue]);
    run.settle_all(vec![second]);
}
