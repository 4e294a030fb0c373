"""Transactional queues inside MySQL and MariaDB.

Send with :func:`send` in a transaction of your own, and consume with :class:`Worker`, or with
:func:`serve` in a pool of ``rowmq-consumer``.
"""

from .errors import (
    AccessDenied,
    BodyTooLarge,
    DeliveryLost,
    InvalidOptions,
    NoTransaction,
    Refused,
    TopicClosed,
    TopicFull,
    TopicNotFound,
)
from .message import Checkpoint, Message
from .pool import serve
from .sending import NewMessage, Sent, send, send_all
from .session import Rows, Transaction
from .verdict import DeadLetter, Discard, Release, Retry, Snooze, Verdict
from .worker import Worker

__all__ = [
    "AccessDenied",
    "BodyTooLarge",
    "Checkpoint",
    "DeadLetter",
    "DeliveryLost",
    "Discard",
    "InvalidOptions",
    "Message",
    "NewMessage",
    "NoTransaction",
    "Refused",
    "Release",
    "Retry",
    "Rows",
    "Sent",
    "Snooze",
    "TopicClosed",
    "TopicFull",
    "TopicNotFound",
    "Transaction",
    "Verdict",
    "Worker",
    "send",
    "send_all",
    "serve",
]
