"""Serves a pool: one program of ``rowmq-consumer pool``."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import traceback
from datetime import datetime
from typing import Any, BinaryIO, Callable, Dict, Optional

from .message import Message
from .session import checked
from .verdict import Release, Verdict, verdict_of

VERSION = 1


def serve(handler: Callable[[Message], Optional[Verdict]], *, max_messages: int = 0) -> None:
    """Handles one message after another until the consumer ends the pool.

    ``handler`` returns to ack; it raises or returns a :class:`~rowmq.Verdict`, and any other
    exception means :class:`~rowmq.Retry`. After ``max_messages`` (0: no end) the program ends and
    the consumer starts a new one. Run it by ``rowmq-consumer pool TOPIC -- python3 program.py``.
    """
    if os.environ.get("ROWMQ_POOL") != str(VERSION):
        sys.exit(f"start it by rowmq-consumer pool, of a version that speaks {VERSION}")
    # The frames are for this program alone: what the handler starts reads nothing of them, and what
    # it prints goes to standard error.
    frames, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    _write(answers, {"rowmq_pool": VERSION})
    handled = 0
    for line in frames:
        if not line.endswith(b"\n"):
            return  # the consumer has gone in the middle of it
        frame = json.loads(line)
        handled += 1
        is_last = handled == max_messages
        _write(answers, _answer(handler, frame, is_last))
        if is_last:
            return


def _answer(
    handler: Callable[[Message], Optional[Verdict]], frame: Dict[str, Any], last: bool
) -> Dict[str, Any]:
    answer: Dict[str, Any] = {"frame": frame["frame"], "verdict": "ack"}
    try:
        verdict = checked(handler(_message(frame)))
    except Exception as error:
        verdict = verdict_of(error)
        if verdict is not error:
            traceback.print_exc()
    if verdict is not None:
        answer["verdict"] = verdict.word
        if verdict.reason and not isinstance(verdict, Release):
            answer["reason"] = verdict.reason
        if verdict.delay is not None:
            answer["delay"] = verdict.delay
    if last:
        answer["last"] = True
    return answer


def _message(frame: Dict[str, Any]) -> Message:
    def of(name: str) -> Optional[bytes]:
        if name in frame:
            return str(frame[name]).encode()
        encoded = frame.get(name + "_base64")
        return None if encoded is None else base64.b64decode(encoded)

    return Message(
        topic=frame["topic"],
        id=frame["msg_id"],
        delivery_no=frame["delivery_no"],
        failures=frame["failures"],
        enqueued_at=_moment(frame["enqueued_at"]),
        body=of("body") or b"",
        key=of("key"),
        biz_id=of("biz_id"),
        headers=frame.get("headers", {}),
        traceparent=frame.get("traceparent"),
    )


def _moment(text: str) -> datetime:
    # Python before 3.11 reads neither Z nor fractions of other than 3 or 6 digits.
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")


def _write(answers: BinaryIO, frame: Dict[str, Any]) -> None:
    answers.write(json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    answers.flush()
