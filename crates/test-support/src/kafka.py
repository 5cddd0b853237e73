"""A Kafka cluster on loopback: librdkafka's mock cluster, and a consumer of the same library as a witness.

Clients reach the brokers through proxies of this process, which can close, cut connections, and encrypt. Prints the
addresses of the proxies, then reads one JSON command a line and answers each with one line of JSON.
Arguments: the ports of the proxies, and files with a certificate and its key if the proxies encrypt.
"""
import asyncio
import ctypes
import glob
import json
import ssl
import struct
import sys
import threading
import time

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition

PORTS, FILES = [int(port) for port in sys.argv[1].split(",")], sys.argv[2:]
NO_ERROR = 0
PRODUCER = 0
# librdkafka's mock answers an ApiVersions request of a version above 2 in a form that Kafka does not have. The proxies
# answer it as Kafka does: with the versions that there are.
API_VERSIONS, API_VERSIONS_MAX, UNSUPPORTED_VERSION = 18, 2, 35

folder = confluent_kafka.__path__[0] + "/../confluent_kafka.libs/librdkafka*"
library = ctypes.CDLL(glob.glob(folder)[0])
for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
    getattr(library, name).restype = ctypes.c_void_p
library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
problem = ctypes.create_string_buffer(512)
conf = ctypes.c_void_p(library.rd_kafka_conf_new())
handle = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, conf, problem, len(problem)))
if not handle.value:
    sys.exit(problem.value.decode())
cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(handle, len(PORTS)))
behind = library.rd_kafka_mock_cluster_bootstraps(cluster).decode().split(",")


class BrokerProxy:
    """Passes connections on to one broker."""

    def __init__(self, port, behind):
        self.port, self.behind = port, behind.split(":")
        self.server, self.links, self.cuts = None, set(), 0

    async def open(self):
        context = None
        if FILES:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*FILES)
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, ssl=context)

    async def close(self):
        self.server.close()
        for link in list(self.links):
            link.transport.abort()

    async def serve(self, reader, writer):
        try:
            back_reader, back_writer = await asyncio.open_connection(*self.behind)
        except OSError:
            writer.close()
            return
        self.links |= {writer, back_writer}
        try:
            answers = asyncio.ensure_future(self.answers(back_reader, writer))
            await self.requests(reader, writer, back_writer)
            await answers
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.links -= {writer, back_writer}
            writer.close()
            back_writer.close()

    async def requests(self, reader, writer, back):
        try:
            while True:
                size = await reader.readexactly(4)
                request = await reader.readexactly(struct.unpack(">i", size)[0])
                key, version, correlation = struct.unpack(">hhi", request[:8])
                if key == API_VERSIONS and version > API_VERSIONS_MAX:
                    known = struct.pack(">ihhh", 1, API_VERSIONS, 0, API_VERSIONS_MAX)
                    answer = struct.pack(">ih", correlation, UNSUPPORTED_VERSION) + known
                    writer.write(struct.pack(">i", len(answer)) + answer)
                else:
                    back.write(size + request)
                await back.drain()
        finally:
            back.close()

    async def answers(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                if self.cuts > 0:
                    self.cuts -= 1
                    break
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
on_loop = lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
proxies = [BrokerProxy(port, address) for port, address in zip(PORTS, behind)]
for number, proxy in enumerate(proxies, 1):
    on_loop(proxy.open())
    library.rd_kafka_mock_broker_set_host_port(cluster, number, b"127.0.0.1", proxy.port)


def check(error):
    if error != NO_ERROR:
        raise ValueError(f"librdkafka error {error}")


def topic(name, partitions):
    check(library.rd_kafka_mock_topic_create(cluster, name.encode(), partitions, 1))


def topic_error(name, code):
    """Metadata of the topic has this error."""
    library.rd_kafka_mock_topic_set_error(cluster, name.encode(), code)


def answers(api, codes):
    """The next requests of this kind are answered with these errors."""
    array = (ctypes.c_int * len(codes))(*codes)
    library.rd_kafka_mock_push_request_errors_array(cluster, ctypes.c_int16(api), ctypes.c_size_t(len(codes)), array)


def down():
    """No broker is there any more: connections end, and new ones are refused. What was written stays."""
    for proxy in proxies:
        on_loop(proxy.close())


def up():
    for proxy in proxies:
        on_loop(proxy.open())


def cut(count):
    """The next answers of each broker are lost, and their connections."""
    for proxy in proxies:
        proxy.cuts = count


def delay(millis):
    for broker in range(1, len(PORTS) + 1):
        check(library.rd_kafka_mock_broker_set_rtt(cluster, broker, millis))


SECURITY = {"security.protocol": "ssl", "ssl.ca.location": FILES[0]} if FILES else {}


def read(name, partitions):
    """Returns all records of a topic, in the order of each partition."""
    consumer = Consumer({
        "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in PORTS),
        **SECURITY,
        "group.id": "witness",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 5,
    })
    consumer.assign([TopicPartition(name, number, 0) for number in range(partitions)])
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


COMMANDS = {f.__name__: f for f in (topic, topic_error, answers, down, up, cut, delay, read)}
print("ready", flush=True)
for line in sys.stdin:
    words = json.loads(line)
    try:
        answer = {"ok": COMMANDS[words[0]](*words[1:])}
    except Exception as error:
        answer = {"error": f"{words[0]}: {error!r}"}
    print(json.dumps(answer), flush=True)
