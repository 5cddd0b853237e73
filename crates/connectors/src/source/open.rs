//! Which kind of system a source has.

use punctual_core::MessageSystem;

use super::session::MessageSource;
use crate::not_built::NotBuilt;
use crate::source_settings::MessageSourceSettings;

/// What opens sessions with the system of a source.
pub(crate) fn open_by(settings: &MessageSourceSettings, reader: &str) -> Box<dyn MessageSource> {
    match settings.system {
        #[cfg(feature = "amqp")]
        MessageSystem::Amqp => Box::new(super::amqp::AmqpQueueSource::new(settings)),
        #[cfg(feature = "kafka")]
        MessageSystem::Kafka => Box::new(super::kafka::KafkaTopicSource::new(settings, reader)),
        #[cfg(feature = "mqtt")]
        MessageSystem::Mqtt => Box::new(super::mqtt::MqttTopicSource::new(settings, reader)),
        #[cfg(feature = "nats")]
        MessageSystem::Nats => Box::new(super::nats::NatsSubjectSource::new(settings)),
        #[cfg(feature = "redis-stream")]
        MessageSystem::RedisStream => {
            Box::new(super::redis::RedisStreamSource::new(settings, reader))
        }
        #[allow(unreachable_patterns)]
        _ => Box::new(NotBuilt(settings.system.field())),
    }
}
