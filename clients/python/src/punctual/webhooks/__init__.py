"""Webhooks: check the signature of a delivery, by the rules of Standard Webhooks.

The signature is over the bytes of the body as they arrived: keep them, and parse the JSON afterwards. The wrappers in
`webhooks.asgi`, `webhooks.flask` and `webhooks.django` do so.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from .._units import Duration, duration_text, parse_instant, seconds
from ..errors import PunctualError, Refuse, Retry

TOLERANCE = "5m"
"""How far the timestamp of a delivery may be from now, as Standard Webhooks proposes."""
BODY_BYTES_MAX = 1 << 20
"""Payloads have at most 256 KiB, records of callbacks too: larger bodies are not from Punctual."""

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]


class SignatureError(PunctualError):
    """The request is not signed by Punctual, or too old: answer 401 and do nothing."""


@dataclass(frozen=True)
class Webhook:
    """A delivery to a webhook whose signature is valid."""

    fire_id: str
    """The same for every attempt of one fire: deduplicate on it."""
    timestamp: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def namespace(self) -> str | None:
        return self.headers.get("punctual-namespace")

    @property
    def key(self) -> str | None:
        return self.headers.get("punctual-key")

    @property
    def occasion(self) -> str | None:
        return self.headers.get("punctual-occasion")

    @property
    def version(self) -> int | None:
        return _integer(self.headers.get("punctual-version"))

    @property
    def attempt(self) -> int | None:
        return _integer(self.headers.get("punctual-attempt"))

    @property
    def lag_ms(self) -> int | None:
        return _integer(self.headers.get("punctual-lag-ms"))

    @property
    def fire_at(self) -> datetime | None:
        value = self.headers.get("punctual-fire-at")
        return None if value is None else parse_instant(value)

    @property
    def callback_of(self) -> str | None:
        return self.headers.get("punctual-callback-of")

    def json(self) -> Any:
        return json.loads(self.body)


def verify(
    headers: Headers,
    body: bytes | str,
    secret: str | Iterable[str],
    *,
    tolerance: Duration = TOLERANCE,
    now: float | datetime | None = None,
) -> Webhook:
    """Checks a delivery, and returns it. Raises `SignatureError`.

    `secret` is one secret (`whsec_…`) or several, of which any may have signed. `now` is for tests.
    """
    names = _lower(headers)
    raw = body.encode() if isinstance(body, str) else bytes(body)
    fire_id, stamp = _header(names, "webhook-id"), _header(names, "webhook-timestamp")
    signatures = _header(names, "webhook-signature")
    if not (stamp.isascii() and stamp.isdigit()):
        raise SignatureError("the header webhook-timestamp is not a number of seconds")
    current = now.timestamp() if isinstance(now, datetime) else time.time() if now is None else now
    if abs(current - int(stamp)) > seconds(tolerance):
        raise SignatureError("the header webhook-timestamp is too far from now")
    secrets = [secret] if isinstance(secret, str) else list(secret)
    if not secrets:
        raise ValueError("at least one secret is needed")
    message = f"{fire_id}.{stamp}.".encode() + raw
    valid = False
    for key in map(_key, secrets):
        expected = base64.b64encode(hmac.new(key, message, hashlib.sha256).digest())
        for signature in signatures.split():
            version, _, value = signature.partition(",")
            if version == "v1" and hmac.compare_digest(value.encode(), expected):
                valid = True
    if not valid:
        raise SignatureError("no signature of the header webhook-signature is valid")
    return Webhook(fire_id, int(stamp), raw, names)


def answer_for(error: Exception | None) -> tuple[int, dict[str, str]]:
    """Status and headers that tell Punctual what became of a delivery."""
    if error is None:
        return 204, {}
    if isinstance(error, SignatureError):
        return 401, {}
    if isinstance(error, Refuse):
        return 410, {}
    if isinstance(error, Retry):
        after = {} if error.after is None else {"retry-after": _whole_seconds(error.after)}
        return 503, after
    return 500, {}


def _whole_seconds(duration: Duration) -> str:
    return str(math.ceil(seconds(duration_text(duration))))


def _integer(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


def _lower(headers: Headers) -> dict[str, str]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return {_text(name).lower(): _text(value) for name, value in pairs}


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise SignatureError(f"the header {name} is missing")
    return value


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a signing secret is base64, with or without whsec_ before it") from None
