"""Sends commands to a system and collects what comes back, with clients that share nothing with Punctual.

Arguments: KIND PORT COUNT A_SECOND DELAY SENDERS. Sends that many commands to the place "commands", each with its number
as the body and an id, over so many connections, and repeats one whose confirm is missing under the same id, as a careful
producer does. Their tasks are due after DELAY. Reads the place "fires" meanwhile, until its input closes. Prints one JSON object a line: {"sent": NUMBER, "at": MS}, with the time before the
first attempt, and {"got": NUMBER, "id": TEXT, "at": MS}. Connections are opened again for as long as it takes.
"""
import asyncio
import itertools
import json
import os
import sys
import threading
import time

KIND, PORT, COUNT, RATE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
DELAY, SENDERS = sys.argv[5], int(sys.argv[6])
PAUSE = 0.05
ANSWER_MAX = 5
# Set when what comes back is read, or will be: a topic of MQTT keeps nothing for those that subscribe later.
READS = threading.Event()
now = lambda: time.time_ns() // 1_000_000


def show(**line):
    # One write for a line, because two threads write.
    os.write(1, (json.dumps(line) + "\n").encode())


def got(body, headers):
    show(got=int(body), id=headers["webhook-id"], at=now())


def headers_of(number):
    return {"webhook-id": f"command-{number}", "punctual-in": DELAY}


class Rabbitmq:
    @staticmethod
    def open():
        import pika

        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", PORT, blocked_connection_timeout=ANSWER_MAX, socket_timeout=ANSWER_MAX)
        )
        channel = connection.channel()
        for queue in ("commands", "fires"):
            channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        return connection, channel, pika

    def sender(self):
        connection, channel, pika = self.open()

        def send(number):
            properties = pika.BasicProperties(headers=headers_of(number), delivery_mode=2)
            channel.basic_publish("", "commands", str(number).encode(), properties, mandatory=True)

        return send

    def collect(self):
        connection, channel, pika = self.open()
        for method, properties, body in channel.consume("fires", inactivity_timeout=1):
            if method is not None:
                got(body, properties.headers)
                channel.basic_ack(method.delivery_tag)


class Nats:
    """nats-py is asynchronous: each thread has a loop."""

    @staticmethod
    async def open():
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{PORT}", allow_reconnect=False, connect_timeout=ANSWER_MAX)
        stream = client.jetstream(timeout=ANSWER_MAX)
        for name in ("commands", "fires"):
            await stream.add_stream(name=name, subjects=[name])
        return client, stream

    def sender(self):
        loop = asyncio.new_event_loop()
        client, stream = loop.run_until_complete(self.open())

        def send(number):
            sent = stream.publish("commands", str(number).encode(), headers=headers_of(number), timeout=ANSWER_MAX)
            loop.run_until_complete(sent)

        return send

    def collect(self):
        async def read():
            from nats.errors import TimeoutError as Silence

            client, stream = await self.open()
            fires = await stream.pull_subscribe("fires", "witness")
            while True:
                try:
                    messages = await fires.fetch(100, timeout=1)
                except Silence:
                    if client.is_closed:
                        raise
                    continue
                for message in messages:
                    got(message.data, message.headers)
                    await message.ack_sync(timeout=ANSWER_MAX)

        asyncio.new_event_loop().run_until_complete(read())


class Redis:
    def __init__(self):
        self.last = "0"

    @staticmethod
    def open():
        import redis

        return redis.Redis(port=PORT, socket_timeout=ANSWER_MAX, decode_responses=True, retry=None)

    def sender(self):
        client = self.open()
        return lambda number: client.xadd("commands", {**headers_of(number), "payload": number})

    def collect(self):
        client = self.open()
        while True:
            for _, entries in client.xread({"fires": self.last}, 100, block=1000) or []:
                for entry, fields in entries:
                    got(fields["payload"], fields)
                    self.last = entry


class Kafka:
    """Each thread has a client of librdkafka. The topics have as many partitions as the tests make."""

    PARTITIONS = 6

    def __init__(self):
        self.next = [0] * self.PARTITIONS

    def sender(self):
        from confluent_kafka import Producer

        settings = {"acks": "all", "linger.ms": 0, "message.timeout.ms": 1000 * ANSWER_MAX}
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{PORT}", **settings})

        def send(number):
            ends = []
            headers = list(headers_of(number).items())
            report = lambda error, _: ends.append(error)
            producer.produce("commands", str(number).encode(), str(number), headers=headers, on_delivery=report)
            while not ends:
                producer.poll(1)
            if ends[0] is not None:
                raise OSError(ends[0])

        return send

    def collect(self):
        from confluent_kafka import Consumer, TopicPartition

        settings = {"group.id": "witness", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{PORT}", **settings})
        consumer.assign([TopicPartition("fires", place, offset) for place, offset in enumerate(self.next)])
        while True:
            for message in consumer.consume(100, 0.01):
                if message.error() is None:
                    got(message.value(), {name: value.decode() for name, value in message.headers()})
                    self.next[message.partition()] = message.offset() + 1


class Mqtt:
    # Clients have names of their own, so that each finds its session again.
    names = itertools.count()
    # The reason with which a server confirms a message that has no subscriber.
    NO_SUBSCRIBER = 0x10

    def __init__(self):
        self.name = next(self.names)

    @staticmethod
    def open(name, on_message):
        from paho.mqtt import client as paho
        from paho.mqtt.enums import CallbackAPIVersion
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        connected = threading.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, manual_ack=True)
        client.on_message = on_message

        def on_connect(client, *_):
            if on_message is not None:
                client.subscribe("open/fires", 1)
            connected.set()

        client.on_connect = on_connect
        client.on_subscribe = lambda *_: READS.set()
        kept = Properties(PacketTypes.CONNECT)
        kept.SessionExpiryInterval = 3600
        client.connect("127.0.0.1", PORT, clean_start=False, properties=kept)
        client.loop_start()
        if not connected.wait(ANSWER_MAX):
            client.loop_stop()
            raise OSError("no answer")
        return client, Properties, PacketTypes

    def sender(self):
        client, Properties, PacketTypes = self.open(f"client-{self.name}", None)
        codes = {}
        client.on_publish = lambda _client, _data, mid, code, _properties: codes.update({mid: code.value})

        def send(number):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = list(headers_of(number).items())
            while True:
                sent = client.publish("open/commands", str(number), 1, properties=properties)
                sent.wait_for_publish(ANSWER_MAX)
                if not sent.is_published():
                    # Another client must not send it while this one still tries.
                    client.loop_stop()
                    raise OSError("no confirm")
                if codes.pop(sent.mid, 0) != self.NO_SUBSCRIBER:
                    return
                # Mosquitto does not write shared subscriptions to disk: after a restart it has none until their readers
                # are back, and drops messages for them.
                time.sleep(PAUSE)

        return send

    def collect(self):
        def on_message(client, _, message):
            got(message.payload, dict(message.properties.UserProperty))
            client.ack(message.mid, message.qos)

        client, *_ = self.open(f"client-{self.name}", on_message)
        while client.is_connected():
            time.sleep(PAUSE)
        client.loop_stop()


system = {"rabbitmq": Rabbitmq, "nats": Nats, "redis": Redis, "kafka": Kafka, "mqtt": Mqtt}[KIND]


def produce(sender):
    if KIND == "mqtt":
        READS.wait()
    kind, send, begin = system(), None, time.monotonic()
    for number in range(sender, COUNT, SENDERS):
        time.sleep(max(0, begin + number / RATE - time.monotonic()))
        first = now()
        while True:
            try:
                send = send or kind.sender()
                send(number)
                break
            except Exception as error:
                print(f"{number} not confirmed: {error!r}", file=sys.stderr)
                send = None
                time.sleep(PAUSE)
        show(sent=number, at=first)


def collect():
    kind = system()
    while True:
        try:
            kind.collect()
        except Exception as error:
            print(f"not read: {error!r}", file=sys.stderr)
        time.sleep(PAUSE)


threading.Thread(target=collect, daemon=True).start()
for sender in range(SENDERS):
    threading.Thread(target=produce, args=[sender], daemon=True).start()
sys.stdin.read()
os._exit(0)
