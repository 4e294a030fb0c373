"""Sends messages in the caller's own transaction."""

from __future__ import annotations

import base64
import json
import math
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Dict, Iterable, List, Optional

from .errors import refusals
from .verdict import utc

#: The options for which there is a procedure of its own, with a privilege of its own.
_UNIQUE = frozenset(("unique", "unique_for", "on_conflict", "max_wait"))

#: The most messages of one call of queue_send_all.
_MOST = 1000


@dataclass(frozen=True)
class Sent:
    """What became of a message that was sent.

    ``id`` is the message's, or that of the message that holds its key; None if the latter belongs
    to another account.
    """

    id: Optional[str]
    duplicate: bool = False
    replaced: bool = False


class NewMessage:
    """A message for :func:`send_all`, with the options that it takes there: ``priority``, ``key``,
    ``biz_id``, ``headers`` and ``id``."""

    def __init__(self, body: Any, **options: Any) -> None:
        self.body = body
        self.options = options


def send(connection: Any, topic: str, body: Any, **options: Any) -> Sent:
    """Sends a message in the open transaction of ``connection``: it exists if that commits.

    ``connection`` is one of PyMySQL, mysqlclient or Django, or a Connection or Session of
    SQLAlchemy. A body of bytes is sent as it is, text as UTF-8, and anything else as JSON.

    Options: ``priority``, ``key``, ``biz_id``, ``headers``, ``id``, ``deliver_in``, ``deliver_at``,
    ``expires_in``, ``expires_at``; for at most one message with a key, ``unique``, ``unique_for``,
    ``on_conflict`` and ``max_wait``. Times are seconds, a timedelta or text such as ``"48h"``;
    moments are a datetime (UTC, unless it has a zone) or text.

    Raises a :class:`~rowmq.Refused`; the transaction is then still open.
    """
    procedure = "queue_send" if _UNIQUE.isdisjoint(options) else "queue_send_unique"
    given = json.dumps({name: _option(value) for name, value in options.items()})
    with refusals(), _cursor(connection) as cursor:
        cursor.execute(
            f"CALL {procedure}(%s, %s, %s)", (topic, _bytes(body), given if options else None)
        )
        cursor.execute("SELECT @queue_msg_id, @queue_duplicate, @queue_replaced")
        found, duplicate, replaced = _row(cursor)
    found = found.decode() if isinstance(found, bytes) else found
    return Sent(found, bool(duplicate), bool(replaced))


def send_all(connection: Any, topic: str, messages: Iterable[Any]) -> int:
    """Sends many messages, 1000 in a call, in the open transaction; returns how many were stored.

    Each is a :class:`NewMessage` or only its body. A transaction must be open. After any exception
    roll back: a call before it may have stored its messages.
    """
    stored = 0
    batch: List[Dict[str, Any]] = []
    with refusals(), _cursor(connection) as cursor:
        for message in messages:
            batch.append(_item(message))
            if len(batch) == _MOST:
                stored += _send_batch(cursor, topic, batch)
                batch = []
        if batch:
            stored += _send_batch(cursor, topic, batch)
    return stored


def _send_batch(cursor: Any, topic: str, batch: List[Dict[str, Any]]) -> int:
    cursor.execute("CALL queue_send_all(%s, %s)", (topic, json.dumps(batch)))
    cursor.execute("SELECT @queue_sent")
    return int(_row(cursor)[0])


def _row(cursor: Any) -> List[Any]:
    row = cursor.fetchone()
    # A connection may be made to return rows as dictionaries.
    return list(row.values() if isinstance(row, dict) else row)


def _item(message: Any) -> Dict[str, Any]:
    if not isinstance(message, NewMessage):
        message = NewMessage(message)
    item = {name: _option(value) for name, value in message.options.items()}
    body = _bytes(message.body)
    try:
        item["body"] = body.decode()
    except UnicodeDecodeError:
        item["body_base64"] = base64.b64encode(body).decode()
    return item


def _bytes(body: Any) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def _option(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"an option is a finite number, not {value}")
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, uuid.UUID):
        return str(value)
    return value.decode() if isinstance(value, bytes) else value


def _cursor(connection: Any) -> Any:
    if hasattr(connection, "get_bind") and callable(getattr(connection, "connection", None)):
        connection = connection.connection()  # SQLAlchemy: a session's connection
    if hasattr(connection, "exec_driver_sql"):
        if not connection.in_transaction():
            connection.begin()  # as its own execute() would; its commit() does nothing otherwise
        connection = connection.connection  # and the driver's own
    return _Cursor(connection.cursor())


class _Cursor:
    """A driver's cursor as a context manager, which not every wrapper is."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def __enter__(self) -> Any:
        return self.cursor

    def __exit__(self, *_: object) -> None:
        self.cursor.close()
