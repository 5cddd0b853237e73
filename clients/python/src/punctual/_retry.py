"""Which call is sent where, and whether it is sent again. Pure: time and chance are arguments.

A call is sent again only if that is safe: nothing was sent, the broker said that nothing was done (503 other than
`lost`, 429), or the call is repeatable. The number of tries and the total time are bounded. With several brokers the
next one is tried at once; a pause is made after each of them was tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from .calls import Call, Response
from .errors import LOST, UnreachableError, lost_connection

ADDRESSES_MAX = 64
"""Brokers that are remembered. A larger cluster is still reached through these."""


@dataclass(frozen=True)
class RetryLimits:
    """How long a call is tried."""

    tries_max: int = 6
    """Rounds over all brokers."""
    seconds_max: float = 20.0
    """Total time, pauses included. No try begins later."""
    pause_first: float = 0.1
    pause_max: float = 2.0


class Addresses:
    """The brokers that a client knows, and the one that answered last."""

    def __init__(self, given: tuple[str, ...]) -> None:
        self.given = given
        self._known = given
        self._current = 0

    def order(self) -> tuple[str, ...]:
        """All brokers, the one that answered last first."""
        known, current = self._known, self._current % len(self._known)
        return known[current:] + known[:current]

    def answered(self, address: str) -> None:
        known = self._known
        if known[self._current % len(known)] != address and address in known:
            self._current = known.index(address)

    def learn(self, brokers: list[str]) -> None:
        """Adds the brokers of a topology (`HOST:PORT`) with the scheme of the given addresses."""
        scheme = urlsplit(self.given[0]).scheme
        current = self.order()[0]
        learned = [f"{scheme}://{broker}" for broker in brokers]
        known = tuple(dict.fromkeys([*self.given, *learned]))[:ADDRESSES_MAX]
        self._known = known
        self._current = known.index(current) if current in known else 0


class Tries:
    """The tries of one call."""

    def __init__(
        self,
        call: Call[object],
        order: tuple[str, ...],
        limits: RetryLimits,
        now: float,
        chance: Callable[[], float],
    ) -> None:
        self._call = call
        self._order = order
        self._limits = limits
        self._deadline = now + limits.seconds_max
        self._chance = chance
        self._tried = 0

    @property
    def address(self) -> str:
        """Where to send the call."""
        return self._order[self._tried % len(self._order)]

    def broken(self, reason: str, sent: bool, now: float) -> float:
        """The connection failed. Returns the pause before the next try, or raises."""
        if sent and not self._call.repeatable:
            raise lost_connection(reason)
        pause = self._again(None, now)
        if pause is not None:
            return pause
        if sent:
            raise lost_connection(reason)
        raise UnreachableError(f"no broker answers at {', '.join(self._order)}: {reason}")

    def answered(self, response: Response, now: float) -> float | None:
        """Returns the pause before the next try, or `None` if this answer is the last."""
        after = response.retry_after()
        if response.status == 503:
            lost = response.problem().type == LOST
            return None if lost and not self._call.repeatable else self._again(after, now)
        if response.status == 429 and after is not None:
            # All brokers share the limit: another one would refuse as well.
            return self._again(max(after, self._limits.pause_first), now)
        return None

    def _again(self, after: float | None, now: float) -> float | None:
        self._tried += 1
        rounds, position = divmod(self._tried, len(self._order))
        if rounds >= self._limits.tries_max:
            return None
        pause = 0.0
        if after is not None:
            pause = after
        elif position == 0:
            longest = min(self._limits.pause_first * 2 ** (rounds - 1), self._limits.pause_max)
            pause = longest * (0.5 + self._chance() / 2)
        return pause if now + pause < self._deadline else None
