//! One suite for all kinds of sources, against real servers.
//!
//! A [`TestSystem`] is a server that a scenario starts, kills and sends messages to. The intake of
//! the tests is what a broker would be: it is durable, knows the ids it has applied, and refuses
//! when a test says so.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed step is a failed test, and a measurement prints its figures"
)]

#[cfg(feature = "amqp")]
mod amqp;
mod intake;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
mod rate;
#[cfg(feature = "redis-stream")]
mod redis;
mod suite;
mod system;

/// Makes a test of each scenario for a kind of system.
macro_rules! conforms {
    ($kind:ident, $system:ty) => {
        mod $kind {
            conforms!(@ $system,
                a_message_is_confirmed_once_it_is_durable,
                nothing_is_taken_while_the_broker_refuses,
                a_message_that_is_given_again_is_applied_once,
                a_poison_message_goes_aside_with_the_problem_and_blocks_nothing,
                commands_of_a_key_keep_their_order,
                a_message_that_waits_holds_up_its_key_only,
                messages_come_again_when_the_server_was_restarted,
                a_link_that_is_cut_loses_nothing,
                readers_share_the_messages,
                a_reader_that_stops_has_confirmed_what_it_has_applied,
                a_silent_server_is_left_and_nothing_is_lost,
                a_wrong_password_is_a_source_that_is_not_read_with_the_reason,
                tls_checks_the_certificate_of_the_server,
                the_configuration_of_the_documentation_works,
            );

            #[test]
            #[ignore = "a measurement: see CONTRIBUTING.md"]
            fn rate() {
                crate::rate::rate_of_messages_to_durable_tasks::<$system>();
            }
        }
    };
    (@ $system:ty, $($scenario:ident),+ $(,)?) => {
        $(#[test] fn $scenario() {
            crate::suite::$scenario::<$system>();
        })+
    };
}

#[cfg(feature = "amqp")]
conforms!(on_rabbitmq, crate::amqp::RabbitmqSystem);
#[cfg(feature = "mqtt")]
conforms!(on_mosquitto, crate::mqtt::MosquittoSystem);
#[cfg(feature = "kafka")]
conforms!(on_kafka, crate::kafka::KafkaTopicSystem);
#[cfg(feature = "nats")]
conforms!(on_nats, crate::nats::JetStreamSystem);
#[cfg(feature = "redis-stream")]
conforms!(on_redis, crate::redis::RedisSystem);
