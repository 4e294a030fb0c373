"""A worker whose handler has one effect for each message."""

import os

from rowmq import Worker

worker = Worker(os.environ["ROWMQ_URL"])


@worker.handler("work", transactional=True)
def handle(tx, message):
    tx.execute("INSERT INTO effect (msg_id) VALUES (%s)", (message.id,))


worker.run()
