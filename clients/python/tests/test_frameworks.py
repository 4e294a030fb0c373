"""Sends on the connections of SQLAlchemy and Django; the topic `frameworks` is there."""

import os
import unittest
from urllib.parse import urlparse

import django
import pymysql
import sqlalchemy
from django.conf import settings
from sqlalchemy.orm import Session

import rowmq

url = urlparse(os.environ["ROWMQ_URL"])
engine = sqlalchemy.create_engine(url._replace(scheme="mysql+pymysql").geturl())

pymysql.install_as_MySQLdb()
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.mysql",
            "NAME": url.path[1:],
            "USER": url.username,
            "PASSWORD": url.password,
            "HOST": url.hostname,
            "PORT": url.port,
        }
    }
)
django.setup()
from django.db import connection, transaction  # noqa: E402


class Frameworks(unittest.TestCase):
    def setUp(self):
        self.before = self.count()

    def sent(self):
        return self.count() - self.before

    def count(self):
        with engine.connect() as reader:
            return reader.execute(sqlalchemy.text("SELECT COUNT(*) FROM queue_message")).scalar()

    def test_sqlalchemy_connections(self):
        with engine.connect() as sender:
            rowmq.send(sender, "frameworks", "undone")
            sender.rollback()
        self.assertEqual(self.sent(), 0)
        with engine.connect() as sender:
            rowmq.send(sender, "frameworks", "kept")
            sender.commit()
        self.assertEqual(self.sent(), 1)
        with engine.begin() as sender:
            rowmq.send(sender, "frameworks", "kept")
            rowmq.send_all(sender, "frameworks", ["one", "two"])
        self.assertEqual(self.sent(), 4)

    def test_sqlalchemy_sessions(self):
        with Session(engine) as sender:
            rowmq.send(sender, "frameworks", "undone")
            sender.rollback()
        self.assertEqual(self.sent(), 0)
        with Session(engine) as sender:
            with self.assertRaises(rowmq.TopicNotFound):
                rowmq.send(sender, "no-such-topic", "refused")
            rowmq.send(sender, "frameworks", "kept", unique="sqlalchemy")
            sender.commit()
        self.assertEqual(self.sent(), 1)

    def test_django(self):
        with self.assertRaises(rowmq.TopicNotFound), transaction.atomic():
            rowmq.send(connection, "frameworks", "undone")
            rowmq.send(connection, "no-such-topic", "refused")
        self.assertEqual(self.sent(), 0)
        with transaction.atomic():
            rowmq.send(connection, "frameworks", "kept", unique="django")
            rowmq.send_all(connection, "frameworks", ["one", "two"])
        self.assertEqual(self.sent(), 3)


if __name__ == "__main__":
    unittest.main()
