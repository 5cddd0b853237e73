"""A webhook as an ASGI application: for Starlette, FastAPI (`app.mount("/hook", webhook(…))`) and bare servers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .._units import Duration
from . import BODY_BYTES_MAX, TOLERANCE, Webhook, answer_for, verify

log = logging.getLogger("punctual.webhooks")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def webhook(
    function: Callable[[Webhook], Any],
    secret: str | Iterable[str],
    *,
    tolerance: Duration = TOLERANCE,
) -> Application:
    """An application that calls `function` (`def` or `async def`) with each valid delivery.

    `Retry` answers 503 with its pause, `Refuse` 410, another error 500, a bad signature 401.
    """
    secrets = [secret] if isinstance(secret, str) else list(secret)

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a webhook does not serve {scope['type']}")
        body = await _body(receive)
        if body is None:
            await _answer(send, 413, {})
            return
        error: Exception | None = None
        try:
            delivery = verify(scope["headers"], body, secrets, tolerance=tolerance)
            if inspect.iscoroutinefunction(function):
                await function(delivery)
            else:
                await asyncio.get_running_loop().run_in_executor(None, function, delivery)
        except Exception as raised:
            error = raised
        status, headers = answer_for(error)
        if status == 500:
            log.error("webhook failed", exc_info=error)
        await _answer(send, status, headers)

    return application


async def _body(receive: Receive) -> bytes | None:
    """The bytes of the body, or `None` if there are too many."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _answer(send: Send, status: int, headers: dict[str, str]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": b""})
