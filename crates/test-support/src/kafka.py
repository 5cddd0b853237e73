"""A Kafka cluster on loopback: librdkafka's mock cluster or Tansu, and clients of librdkafka as witnesses.

Clients reach the brokers through listeners of this process, which can close, cut connections, encrypt and ask for a
password. Argument: a JSON object with the ports of each group of listeners, one for each broker, files with a
certificate and its key, an account, and the binary of Tansu if that is the broker. Prints "ready", then reads one JSON
command a line and answers each with one line of JSON.
"""
import asyncio
import base64
import ctypes
import glob
import hashlib
import hmac
import json
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SETTINGS = json.loads(sys.argv[1])
NO_ERROR, SASL_FAILED = 0, 58
PRODUCER = 0
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
MECHANISM = b"SCRAM-SHA-512"
# librdkafka's mock answers an ApiVersions request of a version above 2 in a form that Kafka does not have. The
# listeners answer it as Kafka does: with the versions that there are.
API_VERSIONS, API_VERSIONS_MAX, UNSUPPORTED_VERSION = 18, 2, 35
# It also ends a connection over a request to join a group in the compact form of newer versions. The listeners say that
# requests about groups have the versions before that form only.
GROUP_VERSIONS_MAX = {8: 7, 9: 5, 11: 5, 12: 3, 13: 3, 14: 3}
HOST = b"127.0.0.1"



class Mock:
    """The mock cluster of librdkafka, in this process."""

    def __init__(self, brokers):
        folder = confluent_kafka.__path__[0] + "/../confluent_kafka.libs/librdkafka*"
        self.library = ctypes.CDLL(glob.glob(folder)[0])
        for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
            getattr(self.library, name).restype = ctypes.c_void_p
        self.library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        problem = ctypes.create_string_buffer(512)
        conf = ctypes.c_void_p(self.library.rd_kafka_conf_new())
        handle = ctypes.c_void_p(self.library.rd_kafka_new(PRODUCER, conf, problem, len(problem)))
        if not handle.value:
            sys.exit(problem.value.decode())
        self.cluster = ctypes.c_void_p(self.library.rd_kafka_mock_cluster_new(handle, brokers))
        self.brokers = brokers
        self.addresses = self.library.rd_kafka_mock_cluster_bootstraps(self.cluster).decode()

    @staticmethod
    def topic(name, partitions):
    cluster.topic(name, partitions)


def answers(api, codes):
    """The next requests of this kind are answered with these errors."""
    cluster.answers(api, codes)


def advertise(ports):
    """The linked listeners name these ports instead of their own."""
    groups["linked"].advertised = ports


def down():
    """No broker is there any more: connections end, and new ones are refused. What was written stays."""
    for listener in listeners:
        on_loop(listener.close())


def up():
    for listener in listeners:
        on_loop(listener.open())


def cut(count):
    """The next answers of each broker are lost, and their connections."""
    for listener in listeners:
        listener.cuts = count


def delay(millis):
    """Each answer of the brokers takes this long."""
    cluster.delay(millis)


def read(name, partitions, offsets):
    """Returns the records of a topic from the offset of each partition on, in the order of each partition."""
    consumer = Consumer({
        "bootstrap.servers": behind,
        "group.id": "witness",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 5,
    })
    consumer.assign([TopicPartition(name, number, offset) for number, offset in zip(range(partitions), offsets)])
    ended, records, until = set(), [], time.monotonic() + 20
    while len(ended) < partitions and time.monotonic() < until:
        for message in consumer.consume(1000, 0.05):
            if message.error() is not None:
                if message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                continue
            text = lambda value: None if value is None else value.decode()
            records.append({
                "partition": message.partition(),
                "offset": message.offset(),
                "key": text(message.key()),
                "value": text(message.value()),
                "headers": [[name, text(value)] for name, value in message.headers() or []],
            })
    consumer.close()
    return records


def write(name, records):
    """Writes records, each a key, headers and a body, and waits until the brokers have them."""
    problems = []
    report = lambda error, _: error is None or problems.append(error)
    producer = Producer({"bootstrap.servers": behind, "acks": "all", "linger.ms": 1})
    for key, headers, body in records:
        producer.produce(name, body.encode(), key, headers=[tuple(pair) for pair in headers], on_delivery=report)
        producer.poll(0)
    if producer.flush(20) or problems:
        raise ValueError(f"not written: {problems[:1]}")


def uncommitted(group, name, partitions):
    """Returns how many records of a topic a group has not committed."""
    consumer = Consumer({"bootstrap.servers": behind, "group.id": group})
    try:
        count = 0
        for place in consumer.committed([TopicPartition(name, number) for number in range(partitions)], 20):
            low, high = consumer.get_watermark_offsets(TopicPartition(name, place.partition), 20)
            count += high - max(low, place.offset)
        return count
    finally:
        consumer.close()


COMMANDS = {f.__name__: f for f in (topic, answers, advertise, down, up, cut, delay, read, write, uncommitted)}
print("ready", flush=True)
for line in sys.stdin:
    words = json.loads(line)
    try:
        reply = {"ok": COMMANDS[words[0]](*words[1:])}
    except Exception as error:
        reply = {"error": f"{words[0]}: {error!r}"}
    print(json.dumps(reply), flush=True)
