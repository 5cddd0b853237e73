"""A webhook as a Flask view: `@app.post("/hook")` above `@webhook(secret)`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from flask import request

from .._units import Duration
from . import BODY_BYTES_MAX, TOLERANCE, Webhook, answer_for, verify

log = logging.getLogger("punctual.webhooks")
Answer = tuple[str, int, dict[str, str]]


def webhook(
    secret: str | Iterable[str], *, tolerance: Duration = TOLERANCE
) -> Callable[[Callable[[Webhook], Any]], Callable[..., Answer]]:
    """Calls the view with each valid delivery. `Retry` answers 503, `Refuse` 410, another error 500."""
    secrets = [secret] if isinstance(secret, str) else list(secret)

    def decorate(function: Callable[[Webhook], Any]) -> Callable[..., Answer]:
        @functools.wraps(function)
        def view(*args: Any, **kwargs: Any) -> Answer:
            if (request.content_length or 0) > BODY_BYTES_MAX:
                return "", 413, {}
            error: Exception | None = None
            try:
                body = request.get_data(cache=True, parse_form_data=False)
                delivery = verify(request.headers.items(), body, secrets, tolerance=tolerance)
                function(delivery, *args, **kwargs)
            except Exception as raised:
                error = raised
            status, headers = answer_for(error)
            if status == 500:
                log.error("webhook failed", exc_info=error)
            return "", status, headers

        return view

    return decorate
