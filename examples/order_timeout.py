"""An order that is not paid in time, with nothing but the standard library: schedule a task, work on the queue it goes to."""

import json
import os
import urllib.request

BROKER = os.environ.get("PUNCTUAL_BROKER", "http://127.0.0.1:7400")


def call(method, path, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(BROKER + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


# In 15 minutes (here: one second) a worker checks whether order 43 was paid.
call("PUT", "/v1/shop/tasks/order-43", {"in": "1s", "target": {"queue": "unpaid"}, "payload": {"order": 43}})

# A worker: wait for deliveries, do the work, ack. What is not acknowledged in time is delivered again.
while True:
    leased = call("POST", "/v1/shop/queues/unpaid/lease", {"max": 10, "wait": "20s"})
    for delivery in leased["deliveries"]:
        print(f"cancelling order {delivery['payload']['order']}, {delivery['lag_ms']} ms late")
        call("POST", "/v1/shop/queues/unpaid/ack", {"tokens": [delivery["token"]]})
    if leased["deliveries"]:
        break  # A real worker continues.
