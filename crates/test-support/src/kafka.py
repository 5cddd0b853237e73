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
    def check(error):
        if error != NO_ERROR:
            raise ValueError(f"librdkafka error {error}")

    def topic(self, name, partitions):
        self.check(self.library.rd_kafka_mock_topic_create(self.cluster, name.encode(), partitions, 1))

    def answers(self, api, codes):
        array = (ctypes.c_int * len(codes))(*codes)
        count = ctypes.c_size_t(len(codes))
        self.library.rd_kafka_mock_push_request_errors_array(self.cluster, ctypes.c_int16(api), count, array)

    def delay(self, millis):
        for broker in range(1, self.brokers + 1):
            self.check(self.library.rd_kafka_mock_broker_set_rtt(self.cluster, broker, millis))


class Tansu:
    """A broker with a log of its own in memory, in a process of its own."""

    def __init__(self, binary):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.addresses = f"127.0.0.1:{port}"
        url = f"tcp://{self.addresses}"
        words = ["--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
        # Standard output is that of this process, which has a protocol.
        self.process = subprocess.Popen([binary, "broker", *words], stdout=sys.stderr, preexec_fn=end_with_parent)
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    sys.exit("Tansu did not start")
                time.sleep(0.02)

    def topic(self, name, partitions):
        made = AdminClient({"bootstrap.servers": self.addresses}).create_topics([NewTopic(name, partitions, 1)])
        made[name].result(20)

    def answers(self, api, codes):
        raise ValueError("only the mock cluster answers with errors that a test chooses")

    def delay(self, millis):
        raise ValueError("only the mock cluster answers late")


def end_with_parent():
    """The process gets SIGKILL when this one has ended, however it does."""
    PR_SET_PDEATHSIG, SIGKILL = 1, 9
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


BROKERS = len(SETTINGS["plain"])
if SETTINGS["tansu"] and BROKERS > 1:
    sys.exit("there is one Tansu")
cluster = Tansu(SETTINGS["tansu"]) if SETTINGS["tansu"] else Mock(BROKERS)
IS_MOCK = isinstance(cluster, Mock)
behind = cluster.addresses
behind_ports = [int(address.split(":")[1]) for address in behind.split(",")]


class Scram:
    """The server's side of SCRAM-SHA-512, once."""

    SALT, ROUNDS = b"salt of tests", 4096

    def __init__(self, account):
        self.account, self.first = account, None

    def step(self, message):
        """Returns the next message; None if the password is wrong."""
        digest = lambda key, text: hmac.new(key, text, hashlib.sha512).digest()
        if self.first is None:
            bare = message.split(b",", 2)[2]
            user, nonce = (part[2:] for part in bare.split(b",")[:2])
            nonce += secrets.token_hex(8).encode()
            salt = base64.b64encode(self.SALT)
            self.first = b"r=%s,s=%s,i=%d" % (nonce, salt, self.ROUNDS)
            self.said, self.user = bare + b"," + self.first, user.decode()
            return self.first
        without_proof, proof = message.rsplit(b",p=", 1)
        text = self.said + b"," + without_proof
        salted = hashlib.pbkdf2_hmac("sha512", self.account[1].encode(), self.SALT, self.ROUNDS)
        stored = hashlib.sha512(digest(salted, b"Client Key")).digest()
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), digest(stored, text)))
        if self.user != self.account[0] or hashlib.sha512(key).digest() != stored:
            return None
        return b"v=" + base64.b64encode(digest(digest(salted, b"Server Key"), text))


class Listener:
    """Passes connections on to one broker. Its answers name the listeners of the same group."""

    def __init__(self, group, number):
        self.group, self.number = group, number
        self.server, self.links, self.cuts = None, set(), 0

    async def open(self):
        port = self.group.ports[self.number]
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", port, ssl=self.group.context)

    async def close(self):
        self.server.close()
        for link in list(self.links):
            link.transport.abort()

    async def serve(self, reader, writer):
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", behind_ports[self.number])
        except OSError:
            writer.close()
            return
        self.links |= {writer, back_writer}
        asked = set()
        try:
            answers = asyncio.ensure_future(self.answers(back_reader, writer, asked))
            await self.requests(reader, writer, back_writer, asked)
            await answers
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.links -= {writer, back_writer}
            writer.close()
            back_writer.close()

    async def requests(self, reader, writer, back, asked):
        def answer(body):
            writer.write(struct.pack(">i", len(body)) + body)

        scram, is_known = Scram(self.group.account), self.group.account is None
        try:
            while True:
                size = await reader.readexactly(4)
                request = await reader.readexactly(struct.unpack(">i", size)[0])
                key, version, correlation, client = struct.unpack(">hhih", request[:10])
                body = request[10 + max(client, 0):]
                if IS_MOCK and key == API_VERSIONS and version > API_VERSIONS_MAX:
                    known = struct.pack(">ihhh", 1, API_VERSIONS, 0, API_VERSIONS_MAX)
                    answer(struct.pack(">ih", correlation, UNSUPPORTED_VERSION) + known)
                elif key == SASL_HANDSHAKE:
                    code = 0 if body[2:] == MECHANISM else 33
                    answer(struct.pack(">ihih", correlation, code, 1, len(MECHANISM)) + MECHANISM)
                elif key == SASL_AUTHENTICATE:
                    said = scram.step(body[4:])
                    is_known = is_known or (said or b"").startswith(b"v=")
                    text = b"" if said else b"Authentication failed"
                    code = NO_ERROR if said else SASL_FAILED
                    head = struct.pack(">ihh", correlation, code, len(text)) + text
                    answer(head + struct.pack(">i", len(said or b"")) + (said or b"") + struct.pack(">q", 0))
                elif is_known or key == API_VERSIONS:
                    if IS_MOCK and key == API_VERSIONS:
                        asked.add(correlation)
                    back.write(size + request)
                else:
                    return
                await back.drain()
        finally:
            back.close()

    async def answers(self, reader, writer, asked):
        try:
            while True:
                size = await reader.readexactly(4)
                data = await reader.readexactly(struct.unpack(">i", size)[0])
                if self.cuts > 0:
                    self.cuts -= 1
                    break
                if struct.unpack(">i", data[:4])[0] in asked:
                    asked.clear()
                    data = with_group_versions(data)
                for port, shown in zip(behind_ports, self.group.advertised):
                    data = data.replace(HOST + struct.pack(">i", port), HOST + struct.pack(">i", shown))
                writer.write(size + data)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def with_group_versions(answer):
    """The answer with the versions that there are, where those of requests about groups end earlier."""
    count = struct.unpack(">i", answer[6:10])[0]
    changed = bytearray(answer)
    for at in range(10, 10 + 6 * count, 6):
        key, first, last = struct.unpack(">hhh", answer[at : at + 6])
        last = min(last, GROUP_VERSIONS_MAX.get(key, last))
        changed[at : at + 6] = struct.pack(">hhh", key, first, last)
    return bytes(changed)


class Group:
    """Listeners of one kind, one for each broker."""

    def __init__(self, ports, context=None, account=None):
        self.ports, self.advertised, self.context, self.account = ports, list(ports), context, account
        self.listeners = [Listener(self, number) for number in range(len(ports))]


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(SETTINGS["certificate"], SETTINGS["key"])
groups = {
    "plain": Group(SETTINGS["plain"]),
    "linked": Group(SETTINGS["linked"]),
    "secured": Group(SETTINGS["secured"], context, SETTINGS["account"]),
}
listeners = [listener for group in groups.values() for listener in group.listeners]
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
on_loop = lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
for listener in listeners:
    on_loop(listener.open())


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
