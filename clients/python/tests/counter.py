"""A worker of `ops/bench` that does nothing: counter.py TOPIC. Prints 0 when it begins, and what it has settled."""

import os
import sys

from rowmq import Worker

EACH = 100
count = 0


def settled(_message, _verdict, _seconds):
    global count
    count += 1
    if count % EACH == 0:
        print(EACH, flush=True)


worker = Worker(os.environ["ROWMQ_URL"], on_settled=settled)


@worker.handler(sys.argv[1], transactional=True)
def handle(_tx, _message):
    if count == 0:
        print(0, flush=True)


worker.run()
