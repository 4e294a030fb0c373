"""Refusals of the SQL contract, as exceptions with names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Dict, Iterator, Optional, Type


class Refused(Exception):
    """The queue refuses a call; nothing has been changed, and your transaction is still open.

    ``code`` is the number in the SQL contract, which lists them all with what to do.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class TopicNotFound(Refused):
    """There is no such topic."""


class TopicClosed(Refused):
    """The topic accepts no messages now, or no topic does."""


class TopicFull(Refused):
    """The topic holds as many messages or bytes as it may; try again when it is drained."""


class BodyTooLarge(Refused):
    """The body is larger than the topic accepts."""


class InvalidOptions(Refused):
    """An option has an unknown name or a value that the queue does not take."""


class NoTransaction(Refused):
    """The call needs an open transaction: begin one, or turn autocommit off."""


class AccessDenied(Refused):
    """The account may not do this in the topic."""


class DeliveryLost(Refused):
    """The session no longer holds the delivery: roll back, another consumer does the work."""


_NAMED: Dict[int, Type[Refused]] = {
    31001: TopicNotFound,
    31002: TopicClosed,
    31004: BodyTooLarge,
    31005: InvalidOptions,
    31006: InvalidOptions,
    31007: InvalidOptions,
    31008: InvalidOptions,
    31009: InvalidOptions,
    31010: InvalidOptions,
    31011: InvalidOptions,
    31012: InvalidOptions,
    31013: NoTransaction,
    31015: DeliveryLost,
    31020: TopicFull,
    31027: InvalidOptions,
    31028: AccessDenied,
    31029: InvalidOptions,
}


def code_of(error: BaseException) -> Optional[int]:
    """Returns the server's number of a driver's error, also one that a framework has wrapped."""
    one: Optional[BaseException] = error
    while one is not None:
        for known in (one, getattr(one, "orig", None)):
            # KeyError(1205) is no error of a server.
            is_drivers = isinstance(known, Exception) and type(known).__module__ != "builtins"
            if known is not None and is_drivers and known.args and isinstance(known.args[0], int):
                return known.args[0]
        one = one.__cause__ or one.__context__
    return None


@contextmanager
def refusals() -> Iterator[None]:
    """Raises the queue's own refusals by their names."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        code = code_of(error)
        if code is None or not 31000 < code < 31100:
            raise
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        raise _NAMED.get(code, Refused)(code, text) from error
