"""The conditions and receivers of alarms, as their JSON: `docs/alarms.md` says what they mean.

Exactly one key of a condition and of a receiver is given. Durations are text (`"1m"`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class FailuresCondition(TypedDict):
    """At least `count` attempts failed within the last `window`."""

    count: int
    window: str


class FailureShareCondition(TypedDict):
    """Of at least `min` attempts within the last `window`, more than the share `over` failed."""

    over: float
    min: int
    window: str


class DeadLettersCondition(TypedDict):
    """The namespace has more than `over` dead letters."""

    over: int


class LagCondition(TypedDict):
    """More than 1 % of the fires within the last `window` were sent later than `p99_over`."""

    p99_over: str
    window: str


class OverdueCondition(TypedDict):
    """A task is due for longer than `over` and was not sent."""

    over: str


NoWorkersCondition = TypedDict("NoWorkersCondition", {"queue": str, "for": str})
"""No worker of the queue was connected for as long as `for`."""


class AlarmCondition(TypedDict, total=False):
    """When an alarm is raised."""

    failures: FailuresCondition
    failure_share: FailureShareCondition
    dead_letters: DeadLettersCondition
    lag: LagCondition
    overdue: OverdueCondition
    no_workers: NoWorkersCondition


class _ChatRobot(TypedDict):
    kind: Literal["slack", "dingtalk", "feishu", "wecom"]
    url: str


class ChatRobot(_ChatRobot, total=False):
    """The robot of a chat. `secret` signs the notices of dingtalk and feishu; no answer contains it."""

    secret: str


class MailReceiver(TypedDict):
    """Up to 16 mail addresses."""

    to: Sequence[str]


class AlarmReceiver(TypedDict, total=False):
    """Who gets the notices. `http` has the JSON of a webhook target."""

    http: Mapping[str, Any]
    chat: ChatRobot
    mail: MailReceiver
