"""One session of a worker: it claims, runs the handler and settles."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .errors import DeliveryLost, Refused, code_of, refusals
from .message import Checkpoint, Message
from .verdict import DeadLetter, Retry, Verdict, verdict_of

log = logging.getLogger("rowmq")

#: How long a claim waits for messages, in seconds: the worker may have to stop then.
WAIT = 1

#: A deadlock, a lock that did not come, and MariaDB's changed row: the transaction is undone, and
#: may succeed the next time.
_AGAIN = frozenset((1213, 1205, 1020))

#: A lock did not come: most servers undo the statement only.
_NO_LOCK = 1205

#: How often a transaction is tried again before its message has failed.
_TRIES = 5

#: Another message with this business id has been handled: ack this one without its work.
_REPEATED = 31023

#: There is no such savepoint.
_NO_SAVEPOINT = 1305

#: A message and the token by which it is settled.
Delivery = Tuple[str, Message]

#: What a handler in a transaction is called with, and returns.
Handle = Callable[["Transaction", Message], Optional[Verdict]]


class SessionLost(Exception):
    """The session has ended, or is in a state that nothing is known of."""


class TransactionEnded(DeadLetter):
    """The handler has ended the transaction itself: its effects cannot be undone."""

    def __init__(self) -> None:
        super().__init__("the handler has committed or rolled back its transaction")


class Rows:
    """What a statement has done, and the rows that it has found."""

    def __init__(self, cursor: Any) -> None:
        self.rowcount: int = cursor.rowcount
        self.lastrowid: Optional[int] = cursor.lastrowid
        self.description = cursor.description
        self._rows: List[Any] = list(cursor.fetchall()) if cursor.description else []
        self._next = 0

    def fetchone(self) -> Any:
        """Returns the next row, or None."""
        self._next += 1
        return self._rows[self._next - 1] if self._next <= len(self._rows) else None

    def fetchall(self) -> List[Any]:
        """Returns the rows that are left."""
        rest, self._next = self._rows[self._next :], len(self._rows)
        return rest

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


class Transaction:
    """The open transaction that a handler's work and its ack share.

    Do not commit or roll back: the worker does. A handler that does, or whose statement does
    (DDL), has its message dead-lettered, because it could be done twice otherwise.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def execute(self, sql: str, args: Any = None) -> Rows:
        """Runs a statement; ``args`` take the place of ``%s``."""
        return self._session.execute(sql, args)

    @property
    def connection(self) -> Any:
        """The driver's connection, for libraries that want one.

        While they use it nothing else can: the session reports no sign of life of its own, so a
        handler that works for longer than the worker's lease must send a statement in between.
        """
        return self._session.share()


class Session:
    """A connection that consumes one topic."""

    def __init__(self, connection: Any, topic: str, lease: float) -> None:
        self._connection = connection
        self._topic = topic
        self._lease = lease
        # One thread at a time uses the connection: the session's own, or the one that beats.
        self._lock = threading.Lock()
        self._is_shared = False
        self._in_transaction = False
        # The error by which the server has undone the transaction although the handler goes on.
        self._undone_by: Optional[int] = None
        self._spoke = self._beaten = time.monotonic()
        self._is_closed = threading.Event()
        # Of its own for each session: one that waits for a dead network must not silence the others.
        threading.Thread(target=self._keep_alive, daemon=True).start()
        try:
            connection.autocommit(True)
            # It locks less, and on MariaDB never fails because a row has changed.
            self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            self.execute("SET @queue_lease = %s", (int(lease),))
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str, args: Any = None) -> Rows:
        """Runs a statement and reads all that it returns."""
        with self._lock, refusals():
            if self._undone_by is not None:
                raise RuntimeError("the server has undone the transaction after an error before")
            cursor = self._connection.cursor()
            try:
                cursor.execute(sql, args)
                rows = Rows(cursor)
                while cursor.nextset():
                    pass
            except Exception as error:
                code = code_of(error)
                self._undone_by = code if self._in_transaction and code in _AGAIN else None
                raise
            finally:
                self._spoke = time.monotonic()
                cursor.close()
            return rows

    def share(self) -> Any:
        """Returns the connection, and leaves it alone until the transaction ends."""
        with self._lock:
            self._is_shared = True
            return self._connection

    def _keep_alive(self) -> None:
        while not self._is_closed.wait(min(self._lease / 16, 1)):
            self._beat()

    def _beat(self) -> None:
        """Shows that the session is alive, if it has been silent and nothing else uses it."""
        now, silence = time.monotonic(), self._lease / 4
        if now - self._beaten < silence or not self._lock.acquire(blocking=False):
            return
        try:
            # In a transaction the call is refused, and any statement is a sign of life.
            sign = "DO 0" if self._in_transaction else "CALL queue_beat()"
            if self._is_shared or (self._in_transaction and now - self._spoke < silence):
                return
            with self._connection.cursor() as cursor:
                cursor.execute(sign)
            self._spoke = self._beaten = time.monotonic()
        except Exception as error:  # the session's own next statement tells
            log.debug("no beat: %s", error)
        finally:
            self._lock.release()

    def claim(self, limit: int, wait: int) -> List[Delivery]:
        """Claims up to ``limit`` messages."""
        try:
            rows = self.execute("CALL queue_claim(%s, %s, %s)", (self._topic, limit, wait))
        except Refused:
            raise
        except Exception as error:
            if code_of(error) in _AGAIN:
                return []
            raise SessionLost(str(error)) from error
        self._beaten = time.monotonic()
        names = [column[0] for column in rows.description or ()]
        found = [row if isinstance(row, dict) else dict(zip(names, row)) for row in rows]
        return [self._delivery(row) for row in found]

    def _delivery(self, row: Dict[str, Any]) -> Delivery:
        token = _text(row["delivery"])
        save, last = partial(self._checkpoint, token), partial(self._last_checkpoint, token)
        return token, replace(_message(self._topic, row), _save=save, _last=last)

    def _checkpoint(self, token: str, state: bytes, progress: Optional[int]) -> None:
        if self._in_transaction:
            # Its commit ends the message, and its rollback undoes the checkpoint.
            raise RuntimeError("a handler in a transaction saves no checkpoints")
        self.execute("CALL queue_checkpoint(%s, %s, %s)", (token, state, progress))

    def _last_checkpoint(self, token: str) -> Optional[Checkpoint]:
        rows = self.execute("CALL queue_last_checkpoint(%s)", (token,))
        names = [column[0] for column in rows.description or ()]
        for row in rows:
            found = row if isinstance(row, dict) else dict(zip(names, row))
            state = _bytes(found["state"]) or b""
            return Checkpoint(int(found["delivery_no"]), _utc(found["saved_at"]), found["progress"], state)
        return None

    def settle(self, deliveries: List[Delivery], verdict: Optional[Verdict]) -> None:
        """Settles them, in the open transaction or in one of its own."""
        word, reason, delay = "ack", None, None
        if verdict is not None:
            word, reason, delay = verdict.word, verdict.reason or None, verdict.delay
        tokens = ",".join(token for token, _ in deliveries)
        self.execute("CALL queue_settle(%s, %s, %s, %s)", (tokens, word, reason, delay))

    def settle_alone(self, delivery: Delivery, verdict: Optional[Verdict]) -> Optional[Verdict]:
        """Settles one in a transaction of its own; returns what became of it, None for ack.

        Raises DeliveryLost if the session does not hold it any more.
        """
        for _ in range(_TRIES):
            try:
                self.settle([delivery], verdict)
            except DeliveryLost:
                raise
            except Refused as error:
                # 31025: the ack comes alone, and the work was undone.
                verdict = Retry(error)
            except Exception as error:
                self.rollback()
                if code_of(error) not in _AGAIN:
                    raise SessionLost(str(error)) from error
            else:
                if isinstance(verdict, Retry):
                    row = self.execute("SELECT @queue_settled AS settled").fetchone()
                    settled = row["settled"] if isinstance(row, dict) else row[0]
                    if _text(settled) == DeadLetter.word:
                        return DeadLetter(verdict.reason)
                return verdict
        raise SessionLost("a message could not be settled")

    def together(self, deliveries: List[Delivery], handle: Handle) -> Optional[BaseException]:
        """Does the work of all and acks them in one transaction; returns why that was undone."""
        is_in_work = False
        try:
            self.execute("START TRANSACTION")
            self._in_transaction = True
            # It is gone if a handler ends the transaction.
            self.execute("SAVEPOINT rowmq_work")
            is_in_work = True
            for _, message in deliveries:
                verdict = checked(handle(Transaction(self), message))
                if verdict is not None:
                    raise verdict
            self._to_savepoint("RELEASE SAVEPOINT rowmq_work")
            is_in_work = False
            self.settle(deliveries, None)
            self.execute("COMMIT")
            self._in_transaction = False
        # An asyncio.CancelledError, for one, is no Exception.
        except BaseException as error:
            failure = error
            if is_in_work:
                try:
                    self._undo_work(error)
                except TransactionEnded as ended:
                    failure = ended
            self.rollback()
            return failure
        finally:
            self._is_shared = False
        return None

    def _undo_work(self, error: BaseException) -> None:
        """Returns to the savepoint; raises TransactionEnded if the handler has ended the transaction."""
        code, self._undone_by = self._undone_by or code_of(error), None
        if code in _AGAIN and code != _NO_LOCK:
            return  # the server has undone all of it
        try:
            self._to_savepoint("ROLLBACK TO SAVEPOINT rowmq_work")
        except TransactionEnded:
            if code != _NO_LOCK or not self._undoes_all_without_a_lock():
                raise
        except Exception as lost:
            raise SessionLost(str(lost)) from lost

    def _undoes_all_without_a_lock(self) -> bool:
        row = self.execute("SELECT @@innodb_rollback_on_timeout AS yes").fetchone()
        return bool(row["yes"] if isinstance(row, dict) else row[0])

    def _to_savepoint(self, statement: str) -> None:
        try:
            self.execute(statement)
        except Exception as error:
            if code_of(error) == _NO_SAVEPOINT:
                raise TransactionEnded from error
            raise

    def alone(self, delivery: Delivery, handle: Handle) -> Optional[Verdict]:
        """Does the work of one message in a transaction of its own, and settles it."""
        error: Optional[BaseException] = None
        for _ in range(_TRIES):
            error = self.together([delivery], handle)
            if error is None:
                return None
            if isinstance(error, Verdict) or code_of(error) not in _AGAIN:
                break
        assert error is not None
        if isinstance(error, DeliveryLost):
            raise error
        if isinstance(error, Refused) and error.code == _REPEATED:
            return self.settle_alone(delivery, None)
        return self.settle_alone(delivery, verdict_of(error))

    def rollback(self) -> None:
        """Undoes what is open. A session that cannot do that is lost."""
        self._in_transaction, self._undone_by = False, None
        try:
            self.execute("ROLLBACK")
        except Exception as error:
            raise SessionLost(str(error)) from error

    def leave(self) -> None:
        """Gives back what was not handled."""
        try:
            self.execute("CALL queue_leave()")
        except Exception as error:  # the server gives it back when the session ends
            log.debug("could not leave in order: %s", error)

    def close(self) -> None:
        """Disconnects."""
        self._is_closed.set()
        try:
            self._connection.close()
        except Exception as error:
            log.debug("could not close: %s", error)


def checked(verdict: Any) -> Optional[Verdict]:
    """Refuses what is no verdict."""
    if verdict is None or isinstance(verdict, Verdict):
        return verdict
    raise TypeError(f"the handler returned {verdict!r}, which is no rowmq.Verdict")


def _message(topic: str, row: Dict[str, Any]) -> Message:
    return Message(
        topic=topic,
        id=_text(row["msg_id"]),
        delivery_no=int(row["delivery_no"]),
        failures=int(row["failures"]),
        enqueued_at=_utc(row["enqueued_at"]),
        body=_bytes(row["body"]) or b"",
        key=_bytes(row["key"]),
        biz_id=_bytes(row["biz_id"]),
        headers=_headers(row["headers"]),
    )


def _headers(value: Any) -> Dict[str, str]:
    if not value:
        return {}
    try:
        headers = json.loads(value)
        if isinstance(headers, dict) and all(isinstance(it, str) for it in headers.values()):
            return headers
    except ValueError:
        pass
    # Written past the checks of the contract: the handler gets them whole, as in the consumer.
    return {"malformed-headers": (_bytes(value) or b"").decode("utf-8", "replace")}


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> Optional[bytes]:
    return value.encode() if isinstance(value, str) else value
