"""A webhook as a Django view: `@webhook(secret)`. It is exempt from CSRF checks: the signature replaces them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt

from .._units import Duration
from . import TOLERANCE, Webhook, answer_for, verify

log = logging.getLogger("punctual.webhooks")


def webhook(
    secret: str | Iterable[str], *, tolerance: Duration = TOLERANCE
) -> Callable[[Callable[[Webhook], Any]], Callable[..., Any]]:
    """Calls the view with each valid delivery. `Retry` answers 503, `Refuse` 410, another error 500."""
    secrets = [secret] if isinstance(secret, str) else list(secret)

    def decorate(function: Callable[[Webhook], Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def view(request: Any, *args: Any, **kwargs: Any) -> Any:
            error: Exception | None = None
            try:
                # `body` has the raw bytes; Django bounds them by DATA_UPLOAD_MAX_MEMORY_SIZE.
                delivery = verify(request.headers, request.body, secrets, tolerance=tolerance)
                function(delivery, *args, **kwargs)
            except Exception as raised:
                error = raised
            status, headers = answer_for(error)
            if status == 500:
                log.error("webhook failed", exc_info=error)
            return HttpResponse(status=status, headers=headers)

        return csrf_exempt(view)  # type: ignore[no-any-return, unused-ignore]

    return decorate
