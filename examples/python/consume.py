"""Consume with PyMySQL: the work and its ack are one transaction, so its effects happen exactly once.

    pip install -r requirements.txt
    ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop python3 consume.py

With --until-empty it ends when nothing is ready.
"""

import json
import os
import signal
import ssl
import sys
import time
from urllib.parse import unquote, urlparse

import pymysql

# No delivery of this session any more: it was taken back, and another consumer has it.
FENCED = 31015

# The server refuses the account or the database, or offers no TLS: another try would fail, too.
REFUSED = (1044, 1045, 1049, 2026)

stopping = False


def stop(*_):
    global stopping
    stopping = True


def connect():
    url = urlparse(os.environ["ROWMQ_URL"])
    # A server on another machine has a certificate: ssl.create_default_context() checks it.
    tls = ssl.create_default_context()
    if url.hostname in ("127.0.0.1", "localhost"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return pymysql.connect(
        host=url.hostname,
        port=url.port or 3306,
        user=unquote(url.username),
        password=unquote(url.password or ""),
        database=url.path.lstrip("/"),
        ssl=tls,
        # A claim commits by itself. begin() is called where the work begins.
        autocommit=True,
        cursorclass=pymysql.cursors.DictCursor,
    )


class Hopeless(Exception):
    """No further try would help."""


def handle(cursor, delivery):
    """Does what the message asks for, in the open transaction."""
    try:
        order = json.loads(delivery["body"])["order"]
    except (ValueError, KeyError, TypeError) as error:
        raise Hopeless(f"the body is no order: {error}") from error
    if cursor.execute("UPDATE orders SET mailed = mailed + 1 WHERE id = %s", (order,)) != 1:
        raise LookupError(f"there is no order {order}")
    return f"order {order} is mailed"


def settle(cursor, deliveries, verdict, reason=None):
    """All of them, or none."""
    all_of_them = ",".join(delivery["delivery"] for delivery in deliveries)
    cursor.execute("CALL queue_settle(%s, %s, %s, NULL)", (all_of_them, verdict, reason))


def work(connection, cursor, deliveries):
    """One transaction for all of them: that is fast. If it fails, one for each."""
    connection.begin()
    try:
        done = [handle(cursor, delivery) for delivery in deliveries]
        settle(cursor, deliveries, "ack")
        connection.commit()
        print(*done, sep="\n", flush=True)
    except pymysql.err.InterfaceError:
        raise
    except Exception as error:
        # Also after an error of the commit: if the session is gone, this fails, too, and the
        # message is either done or delivered again.
        connection.rollback()
        if len(deliveries) > 1:
            for delivery in deliveries:
                if not stopping:
                    work(connection, cursor, [delivery])
            return
        if isinstance(error, pymysql.MySQLError) and error.args[0] == FENCED:
            return
        verdict = "dead-letter" if isinstance(error, Hopeless) else "retry"
        settle(cursor, deliveries, verdict, str(error))
        print(f"{verdict}: {error}", flush=True)


def consume(until_empty):
    with connect() as connection, connection.cursor() as cursor:
        while not stopping:
            # It waits on the server for messages, for at most a second: then it may have to stop.
            wait = 0 if until_empty else 1
            cursor.execute("CALL queue_claim(%s, %s, %s)", ("mail", 100, wait))
            deliveries = cursor.fetchall()
            if deliveries:
                work(connection, cursor, deliveries)
            elif until_empty:
                break
        # What is not settled goes back at once, and is charged with nothing.
        cursor.execute("CALL queue_leave()")


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
while not stopping:
    try:
        consume("--until-empty" in sys.argv)
        break
    except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
        if error.args[0] in REFUSED:
            sys.exit(f"cannot connect: {error}")
        # A new session is a new consumer: what the old one held is delivered again.
        print(f"the session is lost: {error}", file=sys.stderr, flush=True)
        time.sleep(1)
