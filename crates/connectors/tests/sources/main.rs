//! One suite for all kinds of sources, against real servers.
//!
//! A [`TestSystem`] is a server that a scenario starts, kills and sends messages to. The intake of
//! the tests is what a broker would be: it is durable, knows the ids it has applied, and refuses
//! when a test says so.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation ends the test")]

#[cfg(feature = "amqp")]
mod amqp;
mod intake;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis-stream")]
mod redis;
mod suite;
mod system;

/// Makes a test of each scenario for a kind of system.
macro_rules! conforms {
    ($kind:ident, $system:ty $(, $ignored:meta)?) => {
        mod $kind {
            conforms!(@ $system, [$($ignored)?],
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
            );
        }
    };
    (@ $system:ty, [], $($scenario:ident),+ $(,)?) => {
        $(#[test] fn $scenario() {
            crate::suite::$scenario::<$system>();
        })+
    };
    (@ $system:ty, [$ignored:meta], $($scenario:ident),+ $(,)?) => {
        $(#[test] #[ignore = "sources of MQTT are experimental: a reader can stop"]
        fn $scenario() {
            crate::suite::$scenario::<$system>();
        })+
    };
}

#[cfg(feature = "amqp")]
conforms!(on_rabbitmq, crate::amqp::RabbitmqSystem);
#[cfg(feature = "mqtt")]
conforms!(on_mosquitto, crate::mqtt::MosquittoSystem, ignore);
#[cfg(feature = "nats")]
conforms!(on_nats, crate::nats::JetStreamSystem);
#[cfg(feature = "redis-stream")]
conforms!(on_redis, crate::redis::RedisSystem);
