// The kinds of targets.

import type {
  AmqpTarget, HttpTarget, KafkaTarget, MqttTarget, RedisStreamTarget, SqlTarget, ToAmqp, ToGrpc, ToHttp, ToKafka, ToMqtt,
  ToNats, ToQueue, ToRedisStream, ToSql,
} from "./types.js";

/** A queue of the namespace, to which workers subscribe. */
export function queue(name: string): ToQueue {
  return { queue: name };
}

/** A webhook. */
export function http(url: string | URL, options: Omit<HttpTarget, "url"> = {}): ToHttp {
  return { http: { ...options, url: String(url) } };
}

/** A statement of a connection. Parameters that are not in `params` are taken from the payload. */
export function sql(connection: string, statement: string, params?: SqlTarget["params"]): ToSql {
  return { sql: { connection, statement, ...(params === undefined ? {} : { params }) } };
}

/** A record of a topic of Kafka. */
export function kafka(connection: string, topic: string, options: Pick<KafkaTarget, "key" | "headers"> = {}): ToKafka {
  return { kafka: { ...options, connection, topic } };
}

/** A message to an exchange of AMQP. */
export function amqp(connection: string, exchange: string, options: Pick<AmqpTarget, "routingKey" | "headers"> = {}): ToAmqp {
  return { amqp: { ...options, connection, exchange } };
}

/** A message to a subject of NATS. */
export function nats(connection: string, subject: string): ToNats {
  return { nats: { connection, subject } };
}

/** A message to a topic of MQTT. */
export function mqtt(connection: string, topic: string, options: Pick<MqttTarget, "qos" | "retain"> = {}): ToMqtt {
  return { mqtt: { ...options, connection, topic } };
}

/** An entry of a stream of Redis. */
export function redisStream(connection: string, stream: string, options: Pick<RedisStreamTarget, "maxlen"> = {}): ToRedisStream {
  return { redisStream: { ...options, connection, stream } };
}

/** A call of a unary gRPC method. */
export function grpc(url: string | URL, method: string): ToGrpc {
  return { grpc: { url: String(url), method } };
}
