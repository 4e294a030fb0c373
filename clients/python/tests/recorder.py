"""A worker of `ops/chaos`, which records what it handles: recorder.py RECORD TOPIC..."""

import os
import sys
import time
import uuid

from rowmq import Release, Retry, Snooze, Worker

record = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
begun = set()


def note(event):
    os.write(record, f"{time.monotonic_ns() // 1000} {event}\n".encode())


def token(message):
    sender, seq = divmod(uuid.UUID(message.id).int, 1 << 64)
    return f"{sender}:{seq} {message.delivery_no}"


def asked_verdict(message):
    """What the message asks for at its first try, and the record's word for it."""
    if message.delivery_no > 1 or message.failures > 0:
        return None
    return {
        "retry-once": (Retry("it is asked to"), "retry"),
        "panic-once": (Retry("it is asked to"), "retry"),
        "snooze-once": (Snooze(0.3, "it is asked to"), "retry"),
        "release-once": (Release(), "release"),
    }.get(message.json["ending"])


def handle(tx, message):
    # The messages of a batch that failed are handled again, each alone.
    if token(message) not in begun:
        begun.add(token(message))
        note(f"start {token(message)}")
    if asked := asked_verdict(message):
        verdict, word = asked
        note(f"end {token(message)} {word}")
        return verdict
    try:
        tx.execute(
            "INSERT INTO chaos_effect (msg_id) VALUES (%s)", (uuid.UUID(message.id).bytes,)
        )
    except Exception:
        note(f"end {token(message)} retry")
        raise
    time.sleep(message.json["work_ms"] / 1000)
    note(f"effect {token(message)}")
    return None


def settled(message, verdict, _seconds):
    note(f"settled {token(message)} {'ack' if verdict is None else 'other'} settled")


note("caller")
# Traps read what passes, and every worker of a run has this lease.
url = os.environ["ROWMQ_URL"] + "?ssl-mode=disabled"
worker = Worker(url, lease=10, on_settled=settled)
for topic in sys.argv[2:]:
    worker.handler(topic, transactional=True, batch=4)(handle)
worker.run()
