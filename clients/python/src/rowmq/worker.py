"""Consumes topics in this process, with the work and its ack in one transaction."""

from __future__ import annotations

import logging
import random
import signal
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, List, Optional

from .driver import Connect, connector
from .errors import DeliveryLost, code_of
from .message import Message
from .session import WAIT, Delivery, Session, TransactionEnded, checked
from .verdict import Verdict, verdict_of

log = logging.getLogger("rowmq")

#: The pauses between two tries to connect, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

#: How often the worker looks whether it must stop, in seconds.
_LOOK = 0.05

#: The server cannot be reached, or is starting, stopping or full: a worker waits for it.
_UNREACHABLE = frozenset((2002, 2003, 2005, 2006, 2013, 1040, 1053, 1203, 1927))

#: Called for each message that was settled: the message, None for ack, and the seconds it took.
Settled = Callable[[Message, Optional[Verdict], float], None]


@dataclass(frozen=True)
class _Registration:
    topic: str
    handle: Callable[..., Any]
    transactional: bool
    concurrency: int
    batch: int


class Worker:
    """Runs handlers on the messages of topics.

    ``url`` is ``mysql://user:password@host:port/database``; ``connect`` returns a connection of
    PyMySQL or mysqlclient instead. ``lease``: after this many seconds of silence the server ends a
    frozen worker's session, and its messages run elsewhere. ``on_settled`` is called for each
    message that was settled.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        connect: Optional[Connect] = None,
        tls: Optional[ssl.SSLContext] = None,
        lease: float = 60,
        on_settled: Optional[Settled] = None,
    ) -> None:
        if (url is None) == (connect is None):
            raise ValueError("give either a URL or a function that connects")
        # The server ends a silent session after the lease; a statement may take a while longer.
        self._connect: Connect = connect or connector(url or "", tls, 2 * lease + 10)
        self._lease = lease
        self._on_settled = on_settled
        self._registrations: List[_Registration] = []
        self._is_stopping = False
        self._until_empty = False
        self._failure: Optional[BaseException] = None

    def handler(
        self,
        topic: str,
        *,
        transactional: bool = False,
        concurrency: int = 1,
        batch: Optional[int] = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers ``handle(message)``, or with ``transactional`` ``handle(tx, message)``.

        It returns to ack; it raises or returns a :class:`~rowmq.Verdict`, and any other exception
        means :class:`~rowmq.Retry`. A transactional handler's statements and the ack commit
        together, so that its effects happen exactly once. ``batch`` (100, plain handlers 10) of
        them share a transaction; if one fails, each gets its own, so a handler may be called again.
        ``concurrency``: so many threads, each with a connection.
        """

        def register(handle: Callable[..., Any]) -> Callable[..., Any]:
            size = batch or (100 if transactional else 10)
            registration = _Registration(topic, handle, transactional, concurrency, size)
            self._registrations.append(registration)
            return handle

        return register

    def stop(self) -> None:
        """Asks the worker to stop: it ends what it is doing and gives the rest back."""
        self._is_stopping = True

    def run(self, *, until_empty: bool = False) -> None:
        """Handles messages until TERM or INT, or ``stop``; ``until_empty``: until none is ready.

        Reconnects by itself. Raises what keeps it from starting: a wrong password, no such topic.
        """
        self._is_stopping, self._until_empty, self._failure = False, until_empty, None
        former = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                former[number] = signal.signal(number, lambda *_: self.stop())
        try:
            self._consume_all()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
        if self._failure is not None:
            raise self._failure

    def _consume_all(self) -> None:
        threads = [
            threading.Thread(target=self._consume, args=(registration,), daemon=True)
            for registration in self._registrations
            for _ in range(registration.concurrency)
        ]
        for thread in threads:
            thread.start()
        ends_at = float("inf")
        while any(thread.is_alive() for thread in threads):
            time.sleep(_LOOK)
            if self._is_stopping:
                ends_at = min(ends_at, time.monotonic() + self._lease)
            if time.monotonic() > ends_at:
                return log.warning("a handler or the network does not end; leaving it")

    def _consume(self, registration: _Registration) -> None:
        pause, has_begun = _FIRST_PAUSE, False
        while not self._is_stopping:
            session = None
            try:
                session = Session(self._connect(), registration.topic, self._lease)
                empty = 0
                # A claim that met a conflict finds nothing, too: look twice.
                while not self._is_stopping and empty < 2:
                    wait = 0 if self._until_empty and empty == 0 else WAIT
                    deliveries = session.claim(registration.batch, wait)
                    pause, has_begun = _FIRST_PAUSE, True
                    self._work(session, registration, deliveries)
                    empty = empty + 1 if self._until_empty and not deliveries else 0
                return session.leave()
            except BaseException as error:
                is_unreachable = isinstance(error, OSError) or code_of(error) in _UNREACHABLE
                if not has_begun and not is_unreachable:
                    self._failure = error
                    return self.stop()
                # A new session is a new consumer: what the old one held is delivered again.
                log.warning("%s: the session is lost: %s", registration.topic, error)
            finally:
                if session is not None:
                    session.close()
            ends_at = time.monotonic() + random.uniform(pause / 2, pause)
            while not self._is_stopping and time.monotonic() < ends_at:
                time.sleep(_LOOK)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _work(
        self, session: Session, registration: _Registration, deliveries: List[Delivery]
    ) -> None:
        handle, begun = registration.handle, time.monotonic()
        if registration.transactional and len(deliveries) > 1:
            failure = session.together(deliveries, handle)
            if failure is None:
                each = (time.monotonic() - begun) / len(deliveries)
                for _, message in deliveries:
                    self._settled(message, None, each)
                return
            if isinstance(failure, TransactionEnded):
                # Which of their effects were committed is not known: none may run again.
                return self._each(deliveries, lambda one: session.settle_alone(one, failure), True)
            log.debug("one of %s failed: %s", len(deliveries), failure)
        if registration.transactional:
            return self._each(deliveries, lambda one: session.alone(one, handle))
        self._each(deliveries, lambda one: session.settle_alone(one, _call(handle, one[1])))

    def _each(
        self,
        deliveries: List[Delivery],
        handle: Callable[[Delivery], Optional[Verdict]],
        although_stopping: bool = False,
    ) -> None:
        for delivery in deliveries:
            if self._is_stopping and not although_stopping:
                return
            begun = time.monotonic()
            try:
                verdict = handle(delivery)
            except DeliveryLost as error:
                log.warning("%s: %s", delivery[1].id, error)
            else:
                self._settled(delivery[1], verdict, time.monotonic() - begun)

    def _settled(self, message: Message, verdict: Optional[Verdict], seconds: float) -> None:
        if self._on_settled is not None:
            try:
                self._on_settled(message, verdict, seconds)
            except Exception:
                log.exception("on_settled failed for %s", message.id)


def _call(handle: Callable[[Message], Any], message: Message) -> Optional[Verdict]:
    try:
        return checked(handle(message))
    # An asyncio.CancelledError, for one, is no Exception.
    except BaseException as error:
        return verdict_of(error)
