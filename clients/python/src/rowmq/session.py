"""One session of a worker: it claims, runs the handler and settles."""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import datetime, timezone
from typing import Any, Callable, List, Optional, Tuple

from .errors import DeliveryLost, Refused, code_of, refusals
from .message import Message
from .verdict import Retry, Verdict, verdict_of

log = logging.getLogger("rowmq")

#: How long a claim waits for messages, in seconds: the worker may have to stop then.
WAIT = 1

#: A deadlock, a lock that did not come, and MariaDB's changed row: the transaction is undone, and
#: may succeed the next time.
_AGAIN = frozenset((1213, 1205, 1020))

#: How often a transaction is tried again before its message has failed.
_TRIES = 5

#: Another message with this business id has been handled: ack this one without its work.
_REPEATED = 31023

#: The ack comes alone, and the work was undone.
_UNDONE = 31025

#: A message and the token by which it is settled.
Delivery = Tuple[str, Message]

#: Called for each message that was settled: the message, None for ack, and the seconds it took.
Settled = Callable[[Message, Optional[Verdict], float], None]


class SessionLost(Exception):
    """The session has ended, or is in a state that nothing is known of."""


class Transaction:
    """The open transaction that a handler's work and its ack share.

    Do not commit or roll back: the worker does.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def execute(self, sql: str, args: Any = None) -> Any:
        """Runs a statement and returns the driver's cursor."""
        return self._session.execute(sql, args)

    @property
    def connection(self) -> Any:
        """The driver's connection, for libraries that want one.

        While they use it nothing else can: the session reports no sign of life of its own, so a
        handler that works for longer than the worker's lease must send a statement in between.
        """
        self._session.is_shared = True
        return self._session.connection


class Session:
    """A connection that consumes one topic."""

    def __init__(self, connection: Any, topic: str, lease: float) -> None:
        self.connection = connection
        self.topic = topic
        self.lease = lease
        self.is_shared = False
        self.in_transaction = False
        self._lock = threading.Lock()
        self._spoke = time.monotonic()
        connection.autocommit(True)
        # It locks less, and on MariaDB never fails because a row has changed.
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self.execute("SET @queue_lease = %s", (int(lease),))

    def execute(self, sql: str, args: Any = None) -> Any:
        """Runs a statement, alone on the connection, and returns its cursor with all of its rows."""
        with self._lock, refusals():
            cursor = self.connection.cursor()
            cursor.execute(sql, args)
            self._spoke = time.monotonic()
            return cursor

    def beat(self) -> None:
        """Shows that the session is alive, if it has been silent and nothing else uses it."""
        if self.is_shared or time.monotonic() - self._spoke < self.lease / 4:
            return
        if self._lock.acquire(blocking=False):
            try:
                sign = "DO 0" if self.in_transaction else "CALL queue_beat()"
                self.connection.cursor().execute(sign)
                self._spoke = time.monotonic()
            except Exception as error:  # the session's own next statement tells
                log.debug("no beat: %s", error)
            finally:
                self._lock.release()

    def claim(self, limit: int, wait: int) -> List[Delivery]:
        """Claims up to ``limit`` messages."""
        try:
            cursor = self.execute("CALL queue_claim(%s, %s, %s)", (self.topic, limit, wait))
            names = [column[0] for column in cursor.description or ()]
            rows = [
                row if isinstance(row, dict) else dict(zip(names, row)) for row in cursor.fetchall()
            ]
            while cursor.nextset():
                pass
        except Refused:
            raise
        except Exception as error:
            if code_of(error) in _AGAIN:
                return []
            raise SessionLost(str(error)) from error
        return [(_text(row["delivery"]), _message(self.topic, row)) for row in rows]

    def settle(self, deliveries: List[Delivery], verdict: Optional[Verdict]) -> None:
        """Settles them, in the open transaction or in one of its own."""
        word, reason, delay = "ack", None, None
        if verdict is not None:
            word, reason, delay = verdict.word, verdict.reason or None, verdict.delay
        tokens = ",".join(token for token, _ in deliveries)
        self.execute("CALL queue_settle(%s, %s, %s, %s)", (tokens, word, reason, delay))

    def settle_alone(self, delivery: Delivery, verdict: Optional[Verdict]) -> None:
        """Settles one in a transaction of its own; it is no fault that it is held no more."""
        for _ in range(_TRIES):
            try:
                return self.settle([delivery], verdict)
            except DeliveryLost as error:
                return log.warning("%s: %s", delivery[1].id, error)
            except Refused as error:
                if error.code == _UNDONE:
                    verdict = Retry("its work was undone")
                    continue
                if error.code == _REPEATED:
                    return log.warning("%s: %s", delivery[1].id, error)
                raise
            except Exception as error:
                self.rollback()
                if code_of(error) not in _AGAIN:
                    raise SessionLost(str(error)) from error
        raise SessionLost("a message could not be settled")

    def together(
        self, deliveries: List[Delivery], handle: Callable[[Transaction, Message], Optional[Verdict]]
    ) -> Optional[Exception]:
        """Does the work of all and acks them in one transaction; returns why that was undone."""
        try:
            self.begin()
            for _, message in deliveries:
                verdict = handle(Transaction(self), message)
                if verdict is not None:
                    raise verdict
            self.settle(deliveries, None)
            self.commit()
        except Exception as error:
            self.rollback()
            return error
        finally:
            self.is_shared = False
        return None

    def alone(
        self, delivery: Delivery, handle: Callable[[Transaction, Message], Optional[Verdict]]
    ) -> Optional[Verdict]:
        """Does the work of one message in a transaction of its own, and settles it."""
        error: Optional[Exception] = None
        for _ in range(_TRIES):
            error = self.together([delivery], handle)
            if error is None:
                return None
            if code_of(error) not in _AGAIN:
                break
        assert error is not None
        if isinstance(error, DeliveryLost):
            log.warning("%s: %s", delivery[1].id, error)
            return Retry(str(error))
        if isinstance(error, Refused) and error.code == _REPEATED:
            self.settle_alone(delivery, None)
            return None
        verdict = verdict_of(error)
        self.settle_alone(delivery, verdict)
        return verdict

    def begin(self) -> None:
        self.execute("START TRANSACTION")
        self.in_transaction = True

    def commit(self) -> None:
        self.execute("COMMIT")
        self.in_transaction = False

    def rollback(self) -> None:
        """Undoes what is open. A session that cannot do that is lost."""
        self.in_transaction = False
        try:
            self.execute("ROLLBACK")
        except Exception as error:
            raise SessionLost(str(error)) from error

    def leave(self) -> None:
        """Gives back what was not handled, and disconnects."""
        try:
            self.execute("CALL queue_leave()")
        except Exception as error:  # the server gives it back when the session ends
            log.debug("could not leave in order: %s", error)
        self.close()

    def close(self) -> None:
        try:
            self.connection.close()
        except Exception as error:
            log.debug("could not close: %s", error)


def _message(topic: str, row: Any) -> Message:
    headers = row["headers"]
    return Message(
        topic=topic,
        id=_text(row["msg_id"]),
        delivery_no=int(row["delivery_no"]),
        failures=int(row["failures"]),
        enqueued_at=_utc(row["enqueued_at"]),
        body=_bytes(row["body"]) or b"",
        key=_bytes(row["key"]),
        biz_id=_bytes(row["biz_id"]),
        headers=json.loads(headers) if headers else {},
    )


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> Optional[bytes]:
    return value.encode() if isinstance(value, str) else value
