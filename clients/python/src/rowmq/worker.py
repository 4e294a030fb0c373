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
from .errors import Refused, code_of
from .message import Message
from .session import WAIT, Delivery, Session, SessionLost, Settled, Transaction
from .verdict import Verdict, verdict_of

__all__ = ["Transaction", "Worker"]

log = logging.getLogger("rowmq")

#: The pauses between two tries to connect, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

#: The server refuses the account or the database: a worker that starts does not try again.
_NO_ENTRY = frozenset((1044, 1045, 1049))


@dataclass(frozen=True)
class _Registration:
    topic: str
    handle: Callable[..., Any]
    transactional: bool
    concurrency: int
    batch: int


class Worker:
    """Runs handlers on the messages of topics.

    ``url`` is ``mysql://user:password@host:port/database``; ``connect`` returns a connection of a
    DB-API driver for MySQL instead. ``lease``: after this many seconds of silence the server ends a
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
        self._connect: Connect = connect or connector(url or "", tls)
        self._lease = lease
        self._on_settled = on_settled
        self._registrations: List[_Registration] = []
        self._stopping = threading.Event()
        self._until_empty = False
        self._sessions: List[Optional[Session]] = []
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
        self._stopping.set()

    def run(self, *, until_empty: bool = False) -> None:
        """Handles messages until TERM or INT, or ``stop``; ``until_empty``: until none is ready.

        Reconnects by itself. Raises what keeps it from starting: a wrong password, no such topic.
        """
        self._until_empty = until_empty
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        threads = []
        for registration in self._registrations:
            for _ in range(registration.concurrency):
                place = len(self._sessions)
                self._sessions.append(None)
                arguments = (place, registration)
                threads.append(threading.Thread(target=self._consume, args=arguments, daemon=True))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            # A signal interrupts it.
            time.sleep(min(0.05, self._lease / 20))
            for session in list(self._sessions):
                if session is not None:
                    session.beat()
        if self._failure is not None:
            raise self._failure

    def _consume(self, place: int, registration: _Registration) -> None:
        pause, known = _FIRST_PAUSE, False
        while not self._stopping.is_set():
            session = None
            try:
                session = Session(self._connect(), registration.topic, self._lease)
                self._sessions[place] = session
                while not self._stopping.is_set():
                    deliveries = session.claim(registration.batch, 0 if self._until_empty else WAIT)
                    pause, known = _FIRST_PAUSE, True
                    if not deliveries and self._until_empty:
                        break
                    self._work(session, registration, deliveries)
                return session.leave()
            except Exception as error:
                if not known and (isinstance(error, Refused) or code_of(error) in _NO_ENTRY):
                    self._failure = error
                    return self.stop()
                # A new session is a new consumer: what the old one held is delivered again.
                log.warning("%s: the session is lost: %s", registration.topic, error)
            finally:
                self._sessions[place] = None
                if session is not None:
                    session.close()
            self._stopping.wait(random.uniform(pause / 2, pause))
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
            log.debug("one of %s failed: %s", len(deliveries), failure)
        for delivery in deliveries:
            if self._stopping.is_set():
                return
            begun = time.monotonic()
            if registration.transactional:
                verdict = session.alone(delivery, handle)
            else:
                verdict = _call(handle, delivery[1])
                session.settle_alone(delivery, verdict)
            self._settled(delivery[1], verdict, time.monotonic() - begun)

    def _settled(self, message: Message, verdict: Optional[Verdict], seconds: float) -> None:
        word = "ack" if verdict is None else verdict.word
        log.debug("%s: %s after %.3f s", message.id, word, seconds)
        if self._on_settled is not None:
            self._on_settled(message, verdict, seconds)


def _call(handle: Callable[[Message], Optional[Verdict]], message: Message) -> Optional[Verdict]:
    try:
        return handle(message)
    except SessionLost:
        raise
    except Exception as error:
        return verdict_of(error)
