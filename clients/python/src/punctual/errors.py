"""Errors: one class per thing that a caller can do about it. Each carries the broker's problem document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ._record import Record, converted_or_none, integer, text, text_or_none, values
from ._units import Duration

if TYPE_CHECKING:
    from .records import Task


def _task(json: Any) -> Task:
    from .records import Task

    return Task(json)


class Problem(Record):
    """A problem document (RFC 9457): why a call was refused or failed."""

    __slots__ = ()
    schema: ClassVar[tuple[str, ...]] = ("Problem",)
    type = text("type")
    title = text("title")
    status = integer("status")
    detail = text("detail")
    field = text_or_none("field")
    existing = converted_or_none("existing", _task)
    reasons = values("reasons", str)


class PunctualError(Exception):
    """The base of all errors of this package."""


class UnreachableError(PunctualError):
    """No broker could be reached. Nothing was done."""


class ProblemError(PunctualError):
    """A broker answered with a problem document."""

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        super().__init__(f"{problem.status} {problem.title}: {problem.detail}")
        self.problem = problem
        self.retry_after = retry_after
        """Seconds, if the broker said when to try again."""

    @property
    def type(self) -> str:
        return self.problem.type

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def field(self) -> str | None:
        return self.problem.field


class InvalidError(ProblemError):
    """The request is wrong: `field` and `detail` say what to change."""


class UnauthenticatedError(ProblemError):
    """A valid token is required."""


class ForbiddenError(ProblemError):
    """The token has no right to this call."""


class NotFoundError(ProblemError):
    """There is no such task, dead letter, alarm, operation or connection."""


class ConflictError(ProblemError):
    """The state of the task does not allow the call: read it again, and decide anew."""


class ExistsError(ConflictError):
    """The key names a task already, which is in `existing`."""

    @property
    def existing(self) -> Task | None:
        return self.problem.existing


class VersionMismatchError(ConflictError):
    """The task has another version than `if_match`."""


class ThrottledError(ProblemError):
    """The namespace has used up its share. Nothing was done: call less often."""


class UnavailableError(ProblemError):
    """The service cannot do it right now. Nothing was done: try again later."""


class LostError(ProblemError):
    """It is not known whether the call was carried out: read the task before repeating the call."""


class BrokerError(ProblemError):
    """The broker or its store failed: an operator has to look at it."""


LOST = "urn:punctual:lost"
_BY_TYPE: dict[str, type[ProblemError]] = {
    LOST: LostError,
    "urn:punctual:exists": ExistsError,
    "urn:punctual:version-mismatch": VersionMismatchError,
}
_BY_STATUS: dict[int, type[ProblemError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    429: ThrottledError,
    503: UnavailableError,
}


def error_of(problem: Problem, retry_after: float | None = None) -> ProblemError:
    """The error class for a problem document."""
    status = problem.status
    fallback = BrokerError if status >= 500 else InvalidError
    kind = _BY_TYPE.get(problem.type) or _BY_STATUS.get(status) or fallback
    return kind(problem, retry_after)


def lost_connection(reason: str) -> LostError:
    """A connection that broke after a call was sent which must not be sent twice."""
    return LostError(
        Problem(
            {
                "type": LOST,
                "title": "Outcome unknown",
                "status": 503,
                "detail": f"the connection broke before the answer: {reason}",
            }
        )
    )


class Retry(Exception):
    """Raised by a worker or webhook: the attempt failed, try again (`after` a pause of its choice)."""

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry")
        self.after = after
        self.reason = reason or "the worker asked for a retry"


class Refuse(Exception):
    """Raised by a worker or webhook: no further attempt; the fire becomes a dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "refused")
        self.reason = reason or "the worker refused"
