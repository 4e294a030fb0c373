"""Messages as handlers get them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping, Optional


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

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)
