//! What every sink for messages does, against real servers.
//!
//! `suite` has the cases, each a function over a [`suite::SinkSystem`]. A kind of system is one
//! file that says how its server is started and what has arrived (`amqp`, `kafka` and so on). `run`
//! carries deliveries with the real courier, without an engine.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed step is a failed test, and a measurement prints its figures"
)]

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis-stream")]
mod redis_stream;
mod run;
mod suite;

/// Runs all cases against a kind of system. Some cases do not apply to all kinds: the table says of
/// each whether it does, or why not, and is compared with what the system has.
macro_rules! conformance {
    ($kind:ident, $system:ty, { $($case:ident: $applies:tt $(($reason:literal))?,)+ }) => {
        mod $kind {
            crate::conformance!(@cases $system:
                confirmed_deliveries_are_there_with_body_and_headers,
                a_cloudevent_has_its_attributes,
                a_wrong_password_is_a_connection_that_is_away_with_the_reason,
                tls_checks_the_certificate_of_the_server,
                a_server_that_was_killed_is_used_again_and_nothing_is_lost,
                a_link_that_is_cut_after_the_send_is_an_unknown_outcome_and_the_same_id_again,
                at_most_once_is_not_sent_again_after_a_link_was_cut,
                a_slow_server_delays_no_other_connection,
                deliveries_of_one_session_arrive_in_order,
                a_courier_that_drains_returns_what_it_has_not_sent,
                the_configuration_of_the_documentation_works,
            );

            $(crate::conformance!(@$applies $system, $case $(, $reason)?);)+

            #[test]
            fn cases_that_are_left_out_do_not_apply() {
                crate::suite::check_table::<$system>(&[
                    $((stringify!($case), crate::conformance!(@reason $($reason)?)),)+
                ]);
            }

            #[test]
            #[ignore = "a measurement: see CONTRIBUTING.md"]
            fn rate() {
                crate::suite::rate_of_confirmed_deliveries::<$system>();
            }
        }
    };
    (@cases $system:ty: $($case:ident,)+) => {
        $(crate::conformance!(@applies $system, $case);)+
    };
    (@applies $system:ty, $case:ident) => {
        #[test]
        fn $case() {
            crate::suite::$case::<$system>();
        }
    };
    (@does_not_apply $system:ty, $case:ident, $reason:literal) => {
        #[test]
        #[ignore = $reason]
        fn $case() {
            panic!("does not apply: {}", $reason);
        }
    };
    (@reason) => { None };
    (@reason $reason:literal) => { Some($reason) };
}
use conformance;

#[cfg(feature = "amqp")]
conformance!(amqp_sink, crate::amqp::AmqpSystem, {
    what_has_no_place_to_go_fails_and_harms_no_other: applies,
    what_the_configuration_of_the_server_forbids_fails_and_harms_no_other: applies,
    what_is_too_large_is_never_confirmed_and_harms_no_other: applies,
});
#[cfg(feature = "mqtt")]
conformance!(mqtt_sink, crate::mqtt::MqttSystem, {
    what_has_no_place_to_go_fails_and_harms_no_other:
        does_not_apply("a message without subscribers is taken: PUBACK"),
    what_the_configuration_of_the_server_forbids_fails_and_harms_no_other: applies,
    what_is_too_large_is_never_confirmed_and_harms_no_other: applies,
});
#[cfg(feature = "kafka")]
conformance!(kafka_sink, crate::kafka::KafkaSystem, {
    what_has_no_place_to_go_fails_and_harms_no_other: applies,
    what_the_configuration_of_the_server_forbids_fails_and_harms_no_other:
        does_not_apply("the servers of the tests have no rights; see src/kafka/tests.rs"),
    what_is_too_large_is_never_confirmed_and_harms_no_other:
        does_not_apply("the servers of the tests take any size; see src/kafka/tests.rs"),
});
#[cfg(feature = "nats")]
conformance!(nats_sink, crate::nats::NatsSystem, {
    what_has_no_place_to_go_fails_and_harms_no_other: applies,
    what_the_configuration_of_the_server_forbids_fails_and_harms_no_other: applies,
    what_is_too_large_is_never_confirmed_and_harms_no_other: applies,
});
#[cfg(feature = "redis-stream")]
conformance!(redis_stream_sink, crate::redis_stream::RedisStreamSystem, {
    what_has_no_place_to_go_fails_and_harms_no_other: applies,
    what_the_configuration_of_the_server_forbids_fails_and_harms_no_other: applies,
    what_is_too_large_is_never_confirmed_and_harms_no_other:
        does_not_apply("Redis takes 512 MB, more than a task can have"),
});
