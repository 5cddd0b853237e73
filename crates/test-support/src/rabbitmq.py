"""Commands of the witness: what a RabbitMQ server has, as pika sees it.

PORT declare QUEUE [MAX_LENGTH]    makes a durable queue
PORT bind EXCHANGE QUEUE           makes a durable topic exchange that the queue is bound to
PORT delete QUEUE                  deletes a queue
PORT put QUEUE HEADERS BODY        sends a message with headers in JSON, and waits for the confirm
PORT get QUEUE                     takes all messages and prints them, one JSON object a line
"""
import json, sys, pika

port, command, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
if command == "declare":
    limits = {"x-max-length": int(words[1]), "x-overflow": "reject-publish"} if words[1:] else {}
    channel.queue_declare(words[0], durable=True, arguments=limits)
elif command == "bind":
    channel.exchange_declare(words[0], exchange_type="topic", durable=True)
    channel.queue_bind(words[1], words[0], "#")
elif command == "delete":
    channel.queue_delete(words[0])
elif command == "put":
    channel.confirm_delivery()
    properties = pika.BasicProperties(headers=json.loads(words[1]), delivery_mode=2)
    channel.basic_publish("", words[0], words[2].encode(), properties, mandatory=True)
elif command == "get":
    while True:
        method, properties, body = channel.basic_get(words[0], auto_ack=True)
        if method is None:
            break
        print(json.dumps({
            "body": body.decode(), "headers": properties.headers or {}, "id": properties.message_id,
            "content_type": properties.content_type, "delivery_mode": properties.delivery_mode}))
else:
    sys.exit(f"no such command: {command}")
connection.close()
