"""Punctual: schedule tasks, and work on them when they are due."""

from ._retry import RetryLimits
from .client import AsyncClient, Client, Settings
from .errors import (
    BrokerError,
    ConflictError,
    ExistsError,
    ForbiddenError,
    InvalidError,
    LostError,
    NotFoundError,
    Problem,
    ProblemError,
    PunctualError,
    Refuse,
    Retry,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
    UnreachableError,
    VersionMismatchError,
)
from .records import (
    AlreadyFired,
    CancelFailed,
    Cancelled,
    CancelResult,
    DeadLetter,
    Fire,
    FireRecord,
    Firing,
    NotFound,
    Task,
    TaskRef,
)
from .targets import (
    Amqp,
    Exponential,
    Fixed,
    Grpc,
    Http,
    Kafka,
    Mqtt,
    Nats,
    NewTask,
    Pauses,
    Queue,
    RedisStream,
    RetryPolicy,
    Sql,
    TaskFields,
    Watch,
)
from .touches import AsyncTouchBuffer, TouchBuffer
from .worker import Worker

__all__ = [
    "Client", "AsyncClient", "Settings", "RetryLimits",
    "Queue", "Http", "Sql", "Kafka", "Amqp", "Nats", "Mqtt", "RedisStream", "Grpc",
    "NewTask", "Watch", "TaskFields", "RetryPolicy", "Fixed", "Exponential", "Pauses",
    "Task", "TaskRef", "FireRecord", "DeadLetter",
    "CancelResult", "Cancelled", "Firing", "AlreadyFired", "NotFound", "CancelFailed",
    "Worker", "Fire", "Retry", "Refuse", "TouchBuffer", "AsyncTouchBuffer",
    "PunctualError", "UnreachableError", "Problem", "ProblemError", "InvalidError", "UnauthenticatedError",
    "ForbiddenError", "NotFoundError", "ConflictError", "ExistsError", "VersionMismatchError", "ThrottledError",
    "UnavailableError", "LostError", "BrokerError",
]  # fmt: skip
