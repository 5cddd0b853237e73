"""Webhook wrappers in real frameworks, called by a real broker."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import django
import pytest
import uvicorn
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Mount

from punctual import Client, Refuse, Retry
from punctual.testing import DevBroker
from punctual.webhooks import Webhook
from punctual.webhooks import asgi as asgi_webhooks
from punctual.webhooks import django as django_webhooks
from punctual.webhooks import flask as flask_webhooks

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_cHVuY3R1YWwtc2NlbmFyaW8tc2VjcmV0LTI="
WAIT_SECONDS_MAX = 30.0
urlpatterns: list[Any] = []


class Received:
    """The function behind the webhook: it refuses and retries by key."""

    def __init__(self) -> None:
        self.calls: list[tuple[str | None, int | None, Any]] = []

    def __call__(self, delivery: Webhook) -> None:
        self.calls.append((delivery.key, delivery.attempt, delivery.json()))
        if delivery.key == "refuse":
            raise Refuse("not ours")
        if delivery.key == "retry" and delivery.attempt == 1:
            raise Retry(after="7s")


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def _serve_wsgi(application: Any) -> tuple[str, Callable[[], None]]:
    server = make_server("127.0.0.1", 0, application, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def close() -> None:
        server.shutdown()
        server.server_close()

    return f"http://127.0.0.1:{server.server_port}/hook/", close


def _serve_asgi(application: Any) -> tuple[str, Callable[[], None]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()

    def close() -> None:
        server.should_exit = True
        thread.join(WAIT_SECONDS_MAX)
        listener.close()

    return f"http://127.0.0.1:{listener.getsockname()[1]}/hook/", close


def _flask(function: Received) -> tuple[str, Callable[[], None]]:
    app = Flask("test")

    @app.post("/hook/")
    @flask_webhooks.webhook(SECRET)
    def hook(delivery: Webhook) -> None:
        function(delivery)

    return _serve_wsgi(app)


def _django(function: Received) -> tuple[str, Callable[[], None]]:
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="test")
        django.setup()

    @django_webhooks.webhook(SECRET)
    def hook(delivery: Webhook) -> None:
        function(delivery)

    urlpatterns[:] = [path("hook/", hook)]
    return _serve_wsgi(get_wsgi_application())


def _starlette(function: Received) -> tuple[str, Callable[[], None]]:
    return _serve_asgi(Starlette(routes=[Mount("/hook", asgi_webhooks.webhook(function, SECRET))]))


def _bare_asgi(function: Received) -> tuple[str, Callable[[], None]]:
    async def hook(delivery: Webhook) -> None:
        function(delivery)

    return _serve_asgi(asgi_webhooks.webhook(hook, [OTHER, SECRET]))


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture(params=[_flask, _django, _starlette, _bare_asgi], ids=["flask", "django", "starlette", "asgi"])
def url(request: pytest.FixtureRequest, received: Received) -> Iterator[str]:
    address, close = request.param(received)
    yield address
    close()


def _outcomes(client: Client, key: str) -> list[tuple[str, int | None]]:
    return [(one.outcome, one.status) for fire in client.history(key) for one in fire.attempts]


def test_a_signed_delivery_reaches_the_function_and_its_outcome_the_broker(url: str, received: Received) -> None:
    # The signature is checked against the time of this machine, so the clock begins now.
    with DevBroker(namespace="shop", args=["--signing-secret", f"shop={SECRET}"]) as broker:
        for key in ("fine", "refuse", "retry"):
            broker.client.schedule(key, after="1s", to=url, payload={"city": "Köln"})
        broker.advance("1s")
        assert sorted(received.calls) == [(key, 1, {"city": "Köln"}) for key in ("fine", "refuse", "retry")]
        broker.advance("6999ms")
        assert len(received.calls) == 3
        broker.advance("1s")
        assert received.calls[3:] == [("retry", 2, {"city": "Köln"})]
        assert _outcomes(broker.client, "fine") == [("acked", 204)]
        assert _outcomes(broker.client, "refuse") == [("refused", 410)]
        assert _outcomes(broker.client, "retry") == [("failed", 503), ("acked", 204)]


def test_a_delivery_with_another_secret_does_not_reach_the_function(url: str, received: Received) -> None:
    with DevBroker(namespace="shop", args=["--signing-secret", "shop=whsec_" + "QUJD" * 8]) as broker:
        broker.client.schedule("forged", after="0s", to=url, retry={"attempts_max": 1}, payload=1)
        broker.advance("1s")
        assert _outcomes(broker.client, "forged") == [("failed", 401)]
    assert received.calls == []
