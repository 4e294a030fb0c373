"""A worker whose handler has one effect for each message."""

import os
import time

from rowmq import Worker

worker = Worker(os.environ["ROWMQ_URL"], lease=float(os.environ.get("LEASE", "60")))


@worker.handler("work", transactional=True)
def handle(tx, message):
    tx.execute("INSERT INTO effect VALUES (%s, %s)", (message.id, message.delivery_no))
    # So that a kill finds it at work.
    time.sleep(0.002)


worker.run()
