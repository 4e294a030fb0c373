"""Runs the package on the server of ROWMQ_URL, in whose database each test's topic is."""

import asyncio
import os
import signal
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone

import rowmq
from rowmq.driver import connector

connect = connector(os.environ["ROWMQ_URL"])


def counts(topic):
    """Returns how many messages the topic has, and how often they have failed."""
    rows = 0, 0
    with connect() as connection, connection.cursor() as cursor:
        for table in ("queue_message", "queue_scheduled"):
            cursor.execute(
                f"SELECT COUNT(*), COALESCE(SUM(failures), 0) FROM {table} m "
                "JOIN queue_topic t ON t.id = m.topic_id WHERE t.name = %s",
                (topic,),
            )
            rows = tuple(int(a) + b for a, b in zip(cursor.fetchone(), rows))
    return rows


def send(topic, *bodies):
    with connect() as connection:
        connection.begin()
        rowmq.send_all(connection, topic, bodies)
        connection.commit()


class Sending(unittest.TestCase):
    def test_a_message_exists_if_its_transaction_commits(self):
        connection = connect()
        for commit in (False, True):
            connection.begin()
            sent = rowmq.send(
                connection,
                "sending",
                {"order": 17},
                priority=3,
                key="ada",
                headers={"trace": "4bf9"},
                deliver_in=timedelta(hours=48),
                expires_at=datetime.now(timezone.utc) + timedelta(days=30),
            )
            connection.commit() if commit else connection.rollback()
            self.assertEqual(counts("sending")[0], int(commit))
        self.assertRegex(sent.id, "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")

    def test_a_refusal_has_a_name_and_leaves_the_transaction_open(self):
        connection = connect()
        connection.begin()
        rowmq.send(connection, "refusals", "first")
        for expected, topic, options in (
            (rowmq.TopicNotFound, "no-such-topic", {}),
            (rowmq.InvalidOptions, "refusals", {"priority": 10}),
            (rowmq.InvalidOptions, "refusals", {"colour": "blue"}),
            (rowmq.InvalidOptions, "refusals", {"deliver_in": "soon"}),
        ):
            with self.assertRaises(expected) as refused:
                rowmq.send(connection, topic, "x", **options)
            self.assertTrue(str(refused.exception).startswith("queue: "))
        connection.commit()
        self.assertEqual(counts("refusals")[0], 1)
        with self.assertRaises(rowmq.NoTransaction):
            rowmq.send_all(connection, "refusals", ["x"])

    def test_one_message_holds_a_key(self):
        connection = connect()
        connection.begin()
        first = rowmq.send(
            connection, "unique", "1", unique="c-7", on_conflict="replace", deliver_in=60
        )
        second = rowmq.send(connection, "unique", "2", unique="c-7", on_conflict="replace")
        third = rowmq.send(connection, "unique", "3", unique="c-7")
        connection.commit()
        self.assertEqual((first.duplicate, first.replaced), (False, False))
        self.assertEqual(second, rowmq.Sent(first.id, True, True))
        self.assertEqual(third, rowmq.Sent(first.id, True, False))
        self.assertEqual(counts("unique")[0], 1)

    def test_many_messages_are_sent_in_one_transaction(self):
        connection = connect()
        connection.begin()
        bodies = [{"n": n} for n in range(2_500)]
        bodies.append(rowmq.NewMessage(bytes(range(256)), key="k", headers={"a": "ü"}))
        self.assertEqual(rowmq.send_all(connection, "many", bodies), 2_501)
        connection.commit()
        seen = []
        worker = rowmq.Worker(connect=connect)
        worker.handler("many", transactional=True, batch=1000)(lambda tx, message: seen.append(message))
        worker.run(until_empty=True)
        self.assertEqual([message.json["n"] for message in seen[:2_500]], list(range(2_500)))
        last = seen[2_500]
        self.assertEqual((last.body, last.key, last.headers), (bytes(range(256)), b"k", {"a": "ü"}))


class Handling(unittest.TestCase):
    def test_the_work_and_the_ack_of_a_batch_commit_together_and_a_failure_is_alone(self):
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM effect")
        send("work", *range(10), "bad")
        worker = rowmq.Worker(os.environ["ROWMQ_URL"])

        @worker.handler("work", transactional=True)
        def work(tx, message):
            tx.execute("INSERT INTO effect (msg_id) VALUES (%s)", (message.id,))
            if message.text == "bad":
                raise ValueError("no number")

        worker.run(until_empty=True)
        self.assertEqual(counts("work"), (1, 1))
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*), COUNT(DISTINCT msg_id) FROM effect")
            self.assertEqual(cursor.fetchone(), (10, 10))

    def test_each_verdict_is_raised_or_returned(self):
        verdicts = {
            "retry": rowmq.Retry("later", delay=timedelta(hours=1)),
            "odd text": rowmq.Retry("\ud800", delay=3600),
            "snooze": rowmq.Snooze(3600),
            "dead": rowmq.DeadLetter("broken"),
            "discard": rowmq.Discard("old"),
            "error": ValueError("odd"),
            "exit": SystemExit(1),
            "cancelled": asyncio.CancelledError(),
            "number": 200,
            "ack": None,
        }
        self.assertEqual(rowmq.Retry(delay=-1).delay, 0)
        for wrong in (float("nan"), float("inf"), "10m"):
            with self.assertRaises((TypeError, ValueError)):
                rowmq.Retry(delay=wrong)
        expected = {name: verdict and "retry" for name, verdict in verdicts.items()}
        expected.update(snooze="snooze", dead="dead-letter", discard="discard")
        rounds = 0
        for transactional in (False, True):
            for raised in (False, True):
                send("verdicts", *verdicts)
                settled = {}

                def on_settled(message, verdict, _):
                    settled.setdefault(message.text, verdict and verdict.word)
                    raise RuntimeError("a hook that fails harms nothing")

                def handle(*arguments):
                    verdict = verdicts[arguments[-1].text]
                    is_error = isinstance(verdict, BaseException)
                    if is_error and (raised or not isinstance(verdict, rowmq.Verdict)):
                        raise verdict
                    return verdict

                worker = rowmq.Worker(os.environ["ROWMQ_URL"], on_settled=on_settled)
                worker.handler("verdicts", transactional=transactional)(handle)
                worker.run(until_empty=True)
                self.assertEqual(settled, expected)
                # Those that failed or wait are left.
                rounds += 1
                self.assertEqual(counts("verdicts")[0], 7 * rounds)

    def test_a_released_message_comes_back_uncharged(self):
        send("release", "x")
        calls = []
        worker = rowmq.Worker(os.environ["ROWMQ_URL"])

        @worker.handler("release")
        def handle(message):
            calls.append(message.failures)
            return rowmq.Release() if len(calls) < 3 else None

        worker.run(until_empty=True)
        self.assertEqual(calls, [0, 0, 0])

    def test_a_checkpoint_is_there_for_the_next_delivery(self):
        for transactional in (False, True):
            send("checkpoints", "x")
            found = []
            worker = rowmq.Worker(os.environ["ROWMQ_URL"])

            def handle(*given):
                message = given[-1]
                last = message.last_checkpoint()
                found.append(last and (last.delivery_no, last.progress, last.state))
                if transactional:
                    self.assertRaises(RuntimeError, message.checkpoint, "page 7")
                else:
                    message.checkpoint(b"page 7 \xff", 40)
                return rowmq.Release() if message.delivery_no == 1 else None

            worker.handler("checkpoints", transactional=transactional)(handle)
            worker.run(until_empty=True)
            self.assertEqual(found, [None, None if transactional else (1, 40, b"page 7 \xff")])
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM queue_checkpoint")
            self.assertEqual(cursor.fetchone(), (0,))

    def test_groups_of_a_stream_are_consumed_and_an_ordered_one_in_order(self):
        send("events", "a", "b", "c")
        for group, expected in (("events@all", "abca"), ("events@ordered", "aabc")):
            found = []
            worker = rowmq.Worker(os.environ["ROWMQ_URL"])

            @worker.handler(group, batch=10)
            def handle(message, found=found):
                found.append(message.text)
                is_first = message.text == "a" and message.delivery_no == 1
                return rowmq.Release() if is_first else None

            worker.run(until_empty=True)
            self.assertEqual("".join(found), expected)

    def test_an_error_of_a_statement_that_the_handler_swallows_acks_nothing(self):
        send("swallow", "lock", "other")
        holder = connect()
        holder.begin()
        with holder.cursor() as cursor:
            cursor.execute("INSERT INTO only_one (id) VALUES (1)")
        worker = rowmq.Worker(os.environ["ROWMQ_URL"])

        @worker.handler("swallow", transactional=True)
        def handle(tx, message):
            tx.execute("INSERT INTO effect (msg_id) VALUES (%s)", (message.id,))
            if message.text == "lock":
                tx.execute("SET SESSION innodb_lock_wait_timeout = 1")
                try:
                    tx.execute("INSERT INTO only_one (id) VALUES (1)")
                except Exception:
                    pass

        worker.run(until_empty=True)
        holder.rollback()
        self.assertEqual(counts("swallow"), (1, 1))
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM effect WHERE msg_id IN (SELECT LOWER(CONCAT_WS('-', "
                "SUBSTR(h, 1, 8), SUBSTR(h, 9, 4), SUBSTR(h, 13, 4), SUBSTR(h, 17, 4), SUBSTR(h, 21))) "
                "FROM (SELECT HEX(msg_id) AS h FROM queue_scheduled) AS left_over)"
            )
            self.assertEqual(cursor.fetchone(), (0,))

    def test_a_handler_that_commits_has_its_message_dead_lettered(self):
        for bodies in (["commit"], ["throw"], ["first", "commit", "last"], ["first", "throw", "last"], ["wait"]):
            send("commits", *bodies)
            settled = {}
            worker = rowmq.Worker(
                os.environ["ROWMQ_URL"],
                on_settled=lambda message, verdict, _: settled.update({message.text: verdict}),
            )

            @worker.handler("commits", transactional=True)
            def handle(tx, message):
                tx.execute("INSERT INTO effect (msg_id) VALUES (%s)", (message.id,))
                if message.text in ("commit", "throw", "wait"):
                    tx.connection.commit()
                if message.text == "wait":
                    # For a lock, in vain: the server undoes the statement only.
                    with connect() as other, other.cursor() as cursor:
                        other.begin()
                        cursor.execute("INSERT INTO only_one VALUES (8)")
                        tx.execute("SET SESSION innodb_lock_wait_timeout = 1")
                        tx.execute("INSERT INTO only_one VALUES (8)")
                if message.text == "throw":
                    raise ValueError("after its commit")

            worker.run(until_empty=True)
            self.assertEqual({name: it.word for name, it in settled.items()}, dict.fromkeys(bodies, "dead-letter"))
            self.assertEqual(counts("commits"), (0, 0))

    def test_term_ends_a_worker_and_then_means_what_it_meant_before(self):
        send("term", *range(3))
        before = signal.getsignal(signal.SIGTERM)
        worker = rowmq.Worker(os.environ["ROWMQ_URL"])
        handled = []

        @worker.handler("term")
        def handle(message):
            handled.append(message)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

        worker.run()
        self.assertEqual(len(handled), 1)
        self.assertEqual(counts("term"), (2, 0))
        self.assertEqual(signal.getsignal(signal.SIGTERM), before)

    def test_a_long_handler_keeps_its_session_alive(self):
        send("beats", "x")
        for transactional in (False, True):
            calls = []
            worker = rowmq.Worker(os.environ["ROWMQ_URL"], lease=3)

            def handle(*arguments):
                calls.append(arguments[-1].delivery_no)
                time.sleep(5)

            worker.handler("beats", transactional=transactional)(handle)
            worker.run(until_empty=True)
            self.assertEqual(calls, [1])
            self.assertEqual(counts("beats"), (0, 0))
            send("beats", "x")

    def test_a_lost_session_is_replaced(self):
        send("lost", "x")
        worker = rowmq.Worker(os.environ["ROWMQ_URL"])
        deliveries = []

        @worker.handler("lost", transactional=True)
        def handle(tx, message):
            deliveries.append(message.delivery_no)
            if len(deliveries) == 1:
                number = tx.execute("SELECT CONNECTION_ID()").fetchone()[0]
                with connect() as other, other.cursor() as cursor:
                    cursor.execute("KILL CONNECTION %s", (number,))
            else:
                worker.stop()
            tx.execute("INSERT INTO effect (msg_id) VALUES (%s)", (message.id,))

        runs = threading.Thread(target=worker.run, daemon=True)
        runs.start()
        runs.join(60)
        self.assertEqual(deliveries, [1, 2])
        self.assertEqual(counts("lost")[0], 0)

    def test_what_keeps_a_worker_from_starting_is_raised(self):
        worker = rowmq.Worker(os.environ["ROWMQ_URL"])
        worker.handler("no-such-topic")(print)
        with self.assertRaises(rowmq.TopicNotFound):
            worker.run()


if __name__ == "__main__":
    unittest.main()
