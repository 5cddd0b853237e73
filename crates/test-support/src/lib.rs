//! What the integration tests of the workspace share: the real binary as a process, receivers and
//! workers that record what they got, Redis, SQL and message servers, and faults of disks, networks
//! and clocks.
//!
//! Everything that a value of this crate starts ends when the value is dropped, also when the test
//! fails. A helper that cannot do its work panics with the package or right that is missing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the crate is part of tests: a failed helper is a failed test"
)]

pub mod broker;
pub mod certificate;
pub mod cli;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod dev;
pub mod disk;
pub mod kafka;
pub mod link;
pub mod mariadb;
pub mod message_witness;
pub mod mosquitto;
pub mod nats;
pub mod network;
pub mod openapi;
pub mod ports;
pub mod postgres;
pub mod rabbitmq;
pub mod random;
pub mod receiver;
pub mod redis;
pub mod scripted_receiver;
mod server_process;
pub mod servers;
mod shared_server;
pub mod smtp;
pub mod strace;
pub mod wait;
pub mod workers;

pub use broker::{BrokerProcess, TestBroker, memory_bytes, punctual_binary, refused_start};
pub use certificate::make_certificate;
pub use cli::FinishedCommand;
pub use client::{BrokerClient, read_answer};
pub use clock::{ClockedBroker, FakeClock};
pub use cluster::{OwnedPartitions, TestCluster};
pub use dev::{DEV_START, DevBroker};
pub use disk::SmallDisk;
pub use kafka::{KafkaCluster, KafkaRecord};
pub use link::CutLink;
pub use mariadb::MariadbServer;
pub use message_witness::{MessageWitness, WitnessPlan, WitnessRecord};
pub use mosquitto::{MosquittoServer, MqttWitness};
pub use nats::{NatsMessage, NatsServer};
pub use openapi::ApiDocument;
pub use postgres::PostgresServer;
pub use rabbitmq::RabbitmqServer;
pub use random::RandomNumbers;
pub use receiver::{
    DeliveryLog, HangingReceiver, ReceivedDelivery, RecordingReceiver, WebhookReceiver, task,
};
pub use scripted_receiver::ScriptedReceiver;
pub use smtp::{ReceivedMail, SmtpOptions, SmtpServer, SmtpTls, SmtpTlsStart};
pub use wait::{WAIT_MAX, eventually, millis, now_millis, pause, until_ok, wait_for};
pub use workers::Workers;
