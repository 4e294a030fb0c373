"""Messages as handlers get them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, Mapping, Optional, Union


@dataclass(frozen=True)
class Checkpoint:
    """How far the work on a message had come: what a handler has saved of it."""

    delivery_no: int
    saved_at: datetime
    progress: Optional[int]
    state: bytes


@dataclass(frozen=True)
class Message:
    """A message that is being handled.

    ``id`` is the same for every delivery. ``delivery_no`` rises with each: with the id it is the
    token by which another system can refuse what it has seen.
    """

    topic: str
    id: str
    delivery_no: int
    failures: int
    enqueued_at: datetime
    body: bytes
    key: Optional[bytes] = None
    biz_id: Optional[bytes] = None
    headers: Mapping[str, str] = field(default_factory=dict)
    traceparent: Optional[str] = None
    _save: Optional[Callable[[bytes, Optional[int]], None]] = field(default=None, repr=False, compare=False)
    _last: Optional[Callable[[], Optional[Checkpoint]]] = field(default=None, repr=False, compare=False)

    def checkpoint(self, state: Union[bytes, str], progress: Optional[int] = None) -> None:
        """Saves how far the work has come, up to 1 MiB, and 0 to 100 percent of it.

        The next delivery goes on from there. Not in a pool, nor in a handler in a transaction.
        """
        if self._save is None:
            raise RuntimeError("a worker of this package saves checkpoints, and a pool does not")
        self._save(state.encode() if isinstance(state, str) else state, progress)

    def last_checkpoint(self) -> Optional[Checkpoint]:
        """Returns what was saved last, by this delivery or one before it."""
        return None if self._last is None else self._last()

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)
