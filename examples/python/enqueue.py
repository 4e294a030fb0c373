"""Enqueue in a transaction of PyMySQL. mysqlclient and MySQL Connector/Python are the same but for connect().

    pip install -r requirements.txt
    ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop python3 enqueue.py
"""

import json
import os
import ssl
from urllib.parse import unquote, urlparse

import pymysql


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
    )


def place(cursor, topic, order):
    """Stores the order and enqueues its mail, in the caller's transaction; the message's id."""
    cursor.execute("INSERT INTO orders (id, email) VALUES (%s, %s)", (order, "ada@example.com"))
    cursor.execute(
        "CALL queue_send(%s, %s, %s)",
        (topic, json.dumps({"order": order}, separators=(",", ":")), json.dumps({"biz_id": f"order-{order}"})),
    )
    cursor.execute("SELECT @queue_msg_id")
    return cursor.fetchone()[0]


connection = connect()
with connection.cursor() as cursor:
    # Without autocommit, as PyMySQL connects, the first statement begins a transaction.
    msg_id = place(cursor, "mail", 1)
    connection.commit()
    print(f"order 1 is stored, and its message {msg_id}")

    place(cursor, "mail", 2)
    connection.rollback()
    print("order 2 is undone, and its message with it")

    try:
        place(cursor, "no-such-topic", 3)
        raise SystemExit("order 3 should have been refused")
    except pymysql.MySQLError as refusal:
        number, text = refusal.args
        connection.rollback()
        # SQLSTATE 45000; the numbers are in docs/sql-contract.md.
        if number != 31001:
            raise
        print(f"order 3 is refused: {text}")
connection.close()
