"""What becomes of a message: a handler raises or returns one of these, or returns to ack."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Optional, Union

Delay = Union[int, float, timedelta]

#: In bytes of UTF-8: the queue keeps no more.
LONGEST_REASON = 8192

#: In seconds; the queue refuses a longer one.
LONGEST_DELAY = 315_360_000.0


class Verdict(Exception):
    """A decision about a message other than ack."""

    word = ""

    def __init__(self, reason: object = "", delay: Optional[Delay] = None) -> None:
        super().__init__(reason)
        # The queue keeps text in UTF-8, and delays of up to ten years.
        self.reason = str(reason).encode("utf-8", "replace")[:LONGEST_REASON].decode("utf-8", "ignore")
        if isinstance(delay, timedelta):
            delay = delay.total_seconds()
        if delay is not None and not math.isfinite(delay):
            raise ValueError(f"a delay is a number of seconds, not {delay}")
        self.delay = None if delay is None else min(max(float(delay), 0.0), LONGEST_DELAY)


class Retry(Verdict):
    """It has failed: try again after ``delay``, or else after the topic's backoff.

    Every other exception of a handler means the same, without a delay.
    """

    word = "retry"


class Snooze(Verdict):
    """Not yet: comes back after ``delay``, and nothing is charged."""

    word = "snooze"

    def __init__(self, delay: Delay, reason: object = "") -> None:
        super().__init__(reason, delay)
        if self.delay is None:
            raise TypeError("a snooze needs a delay")


class DeadLetter(Verdict):
    """Never try again."""

    word = "dead-letter"

    def __init__(self, reason: object) -> None:
        super().__init__(reason)


class Discard(Verdict):
    """Not worth handling: acked, and the reason is kept."""

    word = "discard"

    def __init__(self, reason: object) -> None:
        super().__init__(reason)


class Release(Verdict):
    """Not now: given back unchanged, and nothing is charged."""

    word = "release"

    def __init__(self) -> None:
        super().__init__()


def verdict_of(error: BaseException) -> Verdict:
    """Returns the verdict that an exception of a handler stands for."""
    if isinstance(error, Verdict):
        return error
    return Retry(f"{type(error).__name__}: {error}")


def utc(moment: datetime) -> str:
    """Writes a moment as the queue reads it; one without a zone is UTC."""
    offset = moment.utcoffset()
    if offset is not None:
        moment = moment.replace(tzinfo=None) - offset
    return moment.isoformat(timespec="microseconds") + "Z"
