"""Signatures, compared with the reference implementation of Standard Webhooks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from standardwebhooks.webhooks import Webhook as Reference

from punctual.webhooks import SignatureError, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "A" * 32
NOW = datetime(2027, 1, 4, 8, tzinfo=timezone.utc)
BODY = '{"order": 1}'


def signed(at: datetime = NOW) -> dict[str, str]:
    signature = Reference(SECRET).sign("fire-1", at, BODY)
    return {"Webhook-Id": "fire-1", "WEBHOOK-TIMESTAMP": str(int(at.timestamp())), "webhook-signature": signature}


def test_a_signature_of_the_reference_is_valid_with_any_of_the_secrets() -> None:
    assert verify(signed(), BODY.encode(), [OTHER, SECRET], now=NOW).fire_id == "fire-1"


@pytest.mark.parametrize("body", [BODY + " ", ""])
def test_another_body_is_refused(body: str) -> None:
    with pytest.raises(SignatureError):
        verify(signed(), body, SECRET, now=NOW)


def test_another_secret_an_old_timestamp_and_missing_headers_are_refused() -> None:
    with pytest.raises(SignatureError):
        verify(signed(), BODY, OTHER, now=NOW)
    for away in (timedelta(minutes=6), timedelta(minutes=-6)):
        with pytest.raises(SignatureError):
            verify(signed(), BODY, SECRET, now=NOW + away)
    with pytest.raises(SignatureError):
        verify({}, BODY, SECRET, now=NOW)
