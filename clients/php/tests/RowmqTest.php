<?php

// Runs the package on the server of ROWMQ_URL, in whose database each test's topic is.

declare(strict_types=1);

use PHPUnit\Framework\TestCase;
use Rowmq\{Connector, DeadLetter, Discard, Message, Release, Retry, Snooze, Transaction, Verdict, Worker};

use function Rowmq\{send, sendAll};

final class RowmqTest extends TestCase
{
    private static function url(): string
    {
        return (string) getenv('ROWMQ_URL');
    }

    /** @param array<int, mixed> $options */
    private static function connect(array $options = []): PDO
    {
        $url = parse_url(self::url());
        $dsn = "mysql:host={$url['host']};port={$url['port']};dbname=" . ltrim($url['path'], '/') . ';charset=utf8mb4';
        return new PDO($dsn, $url['user'], $url['pass'] ?? '', $options);
    }

    /** @return array{int, int} how many messages the topic has, and how often they have failed */
    private static function counts(string $topic): array
    {
        $all = [0, 0];
        foreach (['queue_message', 'queue_scheduled'] as $table) {
            $statement = self::connect()->prepare(
                "SELECT COUNT(*) AS n, COALESCE(SUM(failures), 0) AS failures FROM $table m
                 JOIN queue_topic t ON t.id = m.topic_id WHERE t.name = ?",
            );
            $statement->execute([$topic]);
            $row = $statement->fetch();
            $all = [$all[0] + (int) $row['n'], $all[1] + (int) $row['failures']];
        }
        return $all;
    }

    private static function sent(string $topic, string ...$bodies): void
    {
        $connection = self::connect();
        $connection->beginTransaction();
        sendAll($connection, $topic, array_map(static fn (string $body) => ['body' => $body], $bodies));
        $connection->commit();
    }

    private static function effects(): int
    {
        return (int) self::connect()->query('SELECT COUNT(*) FROM effect')->fetchColumn();
    }

    private static function effect(Transaction $tx, Message $message): void
    {
        $tx->execute('INSERT INTO effect VALUES (?, ?)', [$message->id, $message->deliveryNo]);
    }

    private static function silently(callable $handle, string $topic, bool $transactional = true, mixed ...$options): void
    {
        $worker = new Worker(self::url(), ...$options, log: static fn () => null);
        $worker->handler($topic, $handle, $transactional);
        $worker->run(untilEmpty: true);
    }

    public function testAMessageExistsIfItsTransactionCommits(): void
    {
        $silent = [PDO::ATTR_ERRMODE => PDO::ERRMODE_SILENT, PDO::ATTR_EMULATE_PREPARES => false];
        foreach ([[], $silent] as $settings) {
            $connection = self::connect($settings);
            $before = self::counts('sending')[0];
            foreach ([0, 1] as $committed) {
                $connection->beginTransaction();
                $sent = send(
                    $connection,
                    'sending',
                    ['order' => 17],
                    priority: 3,
                    key: 'ada',
                    headers: ['0' => '4bf9'],
                    deliver_in: '48h',
                    expires_at: new DateTimeImmutable('+30 days'),
                );
                self::assertMatchesRegularExpression('/^[0-9a-f]{8}-/', $sent->id);
                $committed ? $connection->commit() : $connection->rollBack();
                self::assertSame($before + $committed, self::counts('sending')[0]);
            }
        }
    }

    public function testARefusalHasANameAndLeavesTheTransactionOpen(): void
    {
        foreach ([PDO::ERRMODE_EXCEPTION, PDO::ERRMODE_SILENT] as $mode) {
            $connection = self::connect([PDO::ATTR_ERRMODE => $mode]);
            $before = self::counts('refusals')[0];
            $connection->beginTransaction();
            send($connection, 'refusals', 'first', headers: []);
            $refused = [
                [Rowmq\TopicNotFound::class, 'no-such-topic', []],
                [Rowmq\InvalidOptions::class, 'refusals', ['priority' => 10]],
                [Rowmq\InvalidOptions::class, 'refusals', ['colour' => 'blue']],
            ];
            foreach ($refused as [$expected, $topic, $options]) {
                self::assertRefused($expected, static fn () => send($connection, $topic, 'x', ...$options));
            }
            $connection->commit();
            self::assertSame($before + 1, self::counts('refusals')[0]);
            $all = static fn () => sendAll($connection, 'refusals', [['body' => 'x']]);
            self::assertRefused(Rowmq\NoTransaction::class, $all);
        }
    }

    private static function assertRefused(string $expected, callable $call): void
    {
        try {
            $call();
        } catch (Rowmq\Refused $error) {
            self::assertInstanceOf($expected, $error);
            self::assertStringStartsWith('queue: ', $error->getMessage());
            return;
        }
        self::fail("no $expected");
    }

    public function testOneMessageHoldsAKey(): void
    {
        $connection = self::connect();
        $connection->beginTransaction();
        $first = send($connection, 'unique', '1', unique: 'c-7', on_conflict: 'replace', deliver_in: 60);
        $second = send($connection, 'unique', '2', unique: 'c-7', on_conflict: 'replace');
        $connection->commit();
        self::assertSame([false, false], [$first->duplicate, $first->replaced]);
        self::assertSame([$first->id, true, true], [$second->id, $second->duplicate, $second->replaced]);
    }

    public function testManyMessagesAreSentInOneTransaction(): void
    {
        $bytes = implode('', array_map(chr(...), range(0, 255)));
        $messages = array_map(static fn (int $n) => ['body' => ['n' => $n]], range(0, 2_499));
        $messages[] = ['body' => $bytes, 'key' => 'k', 'headers' => ['a' => 'ü']];
        foreach ([true, false] as $emulated) {
            $connection = self::connect([PDO::ATTR_EMULATE_PREPARES => $emulated]);
            $connection->beginTransaction();
            self::assertSame(2_501, sendAll($connection, 'many', $messages));
            send($connection, 'many', $bytes);
            $connection->commit();
            $seen = [];
            $connect = static fn () => self::connect([PDO::ATTR_EMULATE_PREPARES => $emulated]);
            $worker = new Worker(connect: $connect);
            $worker->handler('many', function (Transaction $tx, Message $message) use (&$seen): void {
                $seen[] = $message;
            }, transactional: true, batch: 1000);
            $worker->run(untilEmpty: true);
            $numbers = array_map(static fn (Message $message) => $message->json()['n'], array_slice($seen, 0, 2_500));
            self::assertSame(range(0, 2_499), $numbers);
            [$last, $sent] = array_slice($seen, 2_500);
            self::assertSame([$bytes, 'k', ['a' => 'ü']], [$last->body, $last->key, $last->headers]);
            self::assertSame($bytes, $sent->body);
            self::assertLessThan(600, abs($last->enqueuedAt->getTimestamp() - time()));
        }
    }

    public function testTheWorkAndTheAckOfABatchCommitTogetherAndAFailureIsAlone(): void
    {
        self::sent('work', ...array_map(strval(...), range(0, 9)), ...['bad']);
        $before = self::effects();
        self::silently(function (Transaction $tx, Message $message): void {
            self::effect($tx, $message);
            if ($message->body === 'bad') {
                throw new TypeError('no number');
            }
        }, 'work');
        self::assertSame([1, 1], self::counts('work'));
        self::assertSame(10, self::effects() - $before);
    }

    public function testEachVerdictIsThrownOrReturned(): void
    {
        $verdicts = [
            'retry' => new Retry('later', 3600),
            'odd text' => new Retry("\xff\xfe", 3600),
            'snooze' => new Snooze(3600),
            'dead' => new DeadLetter('broken'),
            'discard' => new Discard('old'),
            'error' => new TypeError('odd'),
            'number' => 200,
            'odd class' => new class () extends DeadLetter {
                public function __construct()
                {
                }
            },
            'ack' => null,
        ];
        self::assertSame(0.0, (new Retry('', -1))->delay);
        // A packet has room for it.
        self::assertLessThan(8200, strlen((new Retry(str_repeat('é', 1 << 20)))->reason));
        $expected = array_fill_keys(array_keys($verdicts), 'retry');
        $expected = ['snooze' => 'snooze', 'dead' => 'dead-letter', 'discard' => 'discard', 'ack' => null] + $expected;
        ksort($expected);
        foreach ([false, true] as $round => $transactional) {
            foreach ([false, true] as $thrown) {
                self::sent('verdicts', ...array_keys($verdicts));
                $settled = [];
                $onSettled = function (Message $message, ?Verdict $verdict) use (&$settled): void {
                    $settled += [$message->body => $verdict?->word];
                    throw new RuntimeException('a hook that fails harms nothing');
                };
                self::silently(function (mixed ...$given) use ($verdicts, $thrown): mixed {
                    $verdict = $verdicts[end($given)->body];
                    if ($verdict instanceof Throwable && ($thrown || !$verdict instanceof Verdict)) {
                        throw $verdict;
                    }
                    return $verdict;
                }, 'verdicts', $transactional, onSettled: $onSettled);
                ksort($settled);
                self::assertSame($expected, $settled);
            }
            self::assertSame(12 * ($round + 1), self::counts('verdicts')[0]);
        }
    }

    public function testAnErrorOfAStatementThatTheHandlerSwallowsAcksNothing(): void
    {
        self::sent('swallow', 'lock', 'other');
        $before = self::effects();
        $holder = self::connect();
        $holder->beginTransaction();
        $holder->exec('INSERT INTO only_one (id) VALUES (1)');
        self::silently(function (Transaction $tx, Message $message): void {
            self::effect($tx, $message);
            if ($message->body === 'lock') {
                $tx->execute('SET SESSION innodb_lock_wait_timeout = 1');
                try {
                    $tx->execute('INSERT INTO only_one (id) VALUES (1)');
                } catch (PDOException) {
                }
            }
        }, 'swallow');
        $holder->rollBack();
        self::assertSame([1, 1], self::counts('swallow'));
        self::assertSame(1, self::effects() - $before);
    }

    public function testACheckpointIsThereForTheNextDelivery(): void
    {
        foreach ([false, true] as $transactional) {
            self::sent('checkpoints', 'x');
            $found = [];
            self::silently(function (mixed ...$given) use (&$found, $transactional): ?Verdict {
                $message = end($given);
                $last = $message->lastCheckpoint();
                $found[] = $last === null ? null : [$last->deliveryNo, $last->progress, $last->state];
                try {
                    $message->checkpoint("page 7 \xff", 40);
                    self::assertFalse($transactional);
                } catch (LogicException) {
                    self::assertTrue($transactional);
                }
                return $message->deliveryNo === 1 ? new Release() : null;
            }, 'checkpoints', $transactional);
            self::assertSame([null, $transactional ? null : [1, 40, "page 7 \xff"]], $found);
        }
        self::assertSame(0, (int) self::connect()->query('SELECT COUNT(*) FROM queue_checkpoint')->fetchColumn());
    }

    public function testGroupsOfAStreamAreConsumedAndAnOrderedOneInOrder(): void
    {
        self::sent('events', 'a', 'b', 'c');
        foreach (['events@all' => 'abca', 'events@ordered' => 'aabc'] as $group => $expected) {
            $found = '';
            self::silently(function (Message $message) use (&$found): ?Verdict {
                $found .= $message->body;
                return $message->body === 'a' && $message->deliveryNo === 1 ? new Release() : null;
            }, $group, false);
            self::assertSame($expected, $found);
        }
    }

    public function testAProcedureThatFailsAfterItsRowsAcksNothing(): void
    {
        $code = "SELECT 1; INSERT INTO effect VALUES ('x', 1); SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1644";
        $connection = self::connect();
        $connection->exec("CREATE PROCEDURE fails(IN given INT) BEGIN $code; END");
        $before = self::effects();
        foreach (['CALL fails(1)' => [], 'CALL fails(?)' => [1]] as $call => $values) {
            [$left] = self::counts('fails');
            self::sent('fails', 'x');
            self::silently(static function (Transaction $tx) use ($call, $values): void {
                $tx->execute($call, $values);
            }, 'fails');
            self::assertSame($left + 1, self::counts('fails')[0]);
        }
        self::assertSame($before, self::effects());
        $connection->exec('DROP PROCEDURE fails');
    }

    public function testAConnectionThatThrowsNoErrorsAcksNothingThatFailed(): void
    {
        $odd = [PDO::ATTR_ERRMODE => PDO::ERRMODE_SILENT, PDO::ATTR_CASE => PDO::CASE_UPPER];
        [$left] = self::counts('silent');
        self::sent('silent', 'x');
        $worker = new Worker(connect: static fn () => self::connect($odd), log: static fn () => null);
        $worker->handler('silent', static function (Transaction $tx): void {
            $tx->execute('INSERT INTO no_such_table VALUES (?)', [1]);
        }, transactional: true);
        $worker->run(untilEmpty: true);
        self::assertSame([$left + 1, 1], self::counts('silent'));
        $connection = self::connect($odd);
        $connection->beginTransaction();
        self::assertFalse(send($connection, 'silent', 'y', unique: 'k', deliver_in: 3600)->duplicate);
        self::assertTrue(send($connection, 'silent', 'y', unique: 'k', deliver_in: 3600)->duplicate);
        self::assertSame(1, sendAll($connection, 'silent', [['body' => 'z']]));
        $connection->rollBack();
    }

    public function testAHandlerThatCommitsHasItsMessageDeadLettered(): void
    {
        $rounds = [['commit'], ['first', 'throw', 'last'], ['first', 'ddl', 'last'], ['wait']];
        $other = self::connect();
        foreach ($rounds as $bodies) {
            self::sent('commits', ...$bodies);
            $settled = [];
            $onSettled = function (Message $message, ?Verdict $verdict) use (&$settled): void {
                $settled[$message->body] = $verdict?->word;
            };
            self::silently(function (Transaction $tx, Message $message) use ($other): void {
                self::effect($tx, $message);
                if ($message->body === 'ddl') {
                    $tx->execute('CREATE OR REPLACE VIEW nothing AS SELECT 1');
                }
                if (in_array($message->body, ['commit', 'throw', 'wait'], true)) {
                    $tx->connection()->commit();
                }
                if ($message->body === 'throw') {
                    throw new RuntimeException('after its commit');
                }
                if ($message->body === 'wait') {
                    // For a lock, in vain: the server undoes the statement only.
                    $other->beginTransaction();
                    $other->exec('INSERT INTO only_one VALUES (7)');
                    $tx->execute('SET SESSION innodb_lock_wait_timeout = 1');
                    $tx->execute('INSERT INTO only_one VALUES (7)');
                }
            }, 'commits', onSettled: $onSettled);
            self::assertSame(array_fill_keys($bodies, 'dead-letter'), $settled);
            self::assertSame([0, 0], self::counts('commits'));
        }
    }

    public function testALongHandlerKeepsItsSessionAlive(): void
    {
        foreach ([false, true] as $transactional) {
            self::sent('beats', 'x');
            $calls = [];
            self::silently(function (mixed ...$given) use (&$calls): void {
                $calls[] = end($given)->deliveryNo;
                for ($until = microtime(true) + 5; microtime(true) < $until;) {
                    // A signal ends it early.
                    usleep(500_000);
                }
            }, 'beats', $transactional, lease: 3);
            self::assertSame([1], $calls);
            self::assertSame([0, 0], self::counts('beats'));
        }
    }

    public function testALostSessionIsReplaced(): void
    {
        self::sent('lost', 'x');
        [$deliveries, $connections, $held] = [[], 0, []];
        $connect = function () use (&$connections): PDO {
            return ++$connections === 2 ? throw new RuntimeException('of a library') : self::connect();
        };
        $worker = new Worker(connect: $connect, log: static fn () => null);
        $handle = function (Transaction $tx, Message $message) use (&$deliveries, &$held, $worker): void {
            $deliveries[] = $message->deliveryNo;
            $held[] = $tx->connection();
            if (count($deliveries) === 1) {
                $number = $tx->execute('SELECT CONNECTION_ID() AS number')->first()['number'];
                self::connect()->exec("KILL CONNECTION $number");
            } else {
                $worker->stop();
            }
            self::effect($tx, $message);
        };
        $worker->handler('lost', $handle, transactional: true);
        $worker->run();
        self::assertSame([1, 2], $deliveries);
        self::assertSame([0, 0], self::counts('lost'));
    }

    public function testASessionThatFailsEndsAlthoughItsConnectionIsHeld(): void
    {
        self::sent('held', 'x');
        $held = null;
        $worker = null;
        $worker = new Worker(self::url(), log: static function () use (&$worker): void {
            $worker->stop();
        });
        $handle = function (Transaction $tx) use (&$held): void {
            $held = $tx->connection();
            // No settlement succeeds in it any more.
            $tx->execute('SET SESSION TRANSACTION READ ONLY');
            throw new RuntimeException('it has failed');
        };
        $worker->handler('held', $handle, transactional: true);
        $worker->run();
        $this->expectException(PDOException::class);
        $held->query('SELECT 1');
    }

    public function testTermEndsAWorkerAfterItsMessage(): void
    {
        self::sent('term', '0', '1', '2');
        self::sent('frameworks', '3', '4');
        $handled = [];
        $handle = function (mixed ...$given) use (&$handled): void {
            $handled[] = end($given)->id;
            exec('kill -TERM ' . getmypid());
        };
        $worker = new Worker(self::url());
        $worker->handler('term', $handle)->handler('frameworks', $handle, transactional: true);
        $worker->run();
        self::assertCount(1, $handled);
        self::assertSame([2, 0], self::counts('term'));
        self::assertSame(SIG_DFL, pcntl_signal_get_handler(SIGTERM));
    }

    public function testOneWorkerHandlesSeveralTopics(): void
    {
        self::sent('one', 'first', 'second');
        self::sent('other', 'last');
        $handled = [];
        $worker = new Worker(self::url());
        foreach (['one', 'other', 'third'] as $topic) {
            $worker->handler($topic, function (Message $message) use (&$handled, $worker): ?Verdict {
                $handled[] = $message->body;
                if ($message->body === 'last') {
                    self::sent('third', 'while it is idle');
                } elseif (count($handled) === 5) {
                    $worker->stop();
                }
                return $handled === ['first'] ? new Release() : null;
            });
        }
        $worker->run();
        sort($handled);
        self::assertSame(['first', 'first', 'last', 'second', 'while it is idle'], $handled);
    }

    public function testAUrlOfLocalhostMeansItsPort(): void
    {
        $connect = Connector::to(str_replace('127.0.0.1', 'localhost', self::url()));
        self::assertSame(parse_url(self::url())['port'], (int) $connect()->query('SELECT @@port')->fetchColumn());
    }

    public function testWhatKeepsAWorkerFromStartingIsThrown(): void
    {
        $worker = null;
        $worker = new Worker(self::url(), log: static function () use (&$worker): void {
            $worker->stop();
        });
        $worker->handler('one', static fn () => null)->handler('no-such-topic', static fn () => null);
        $this->expectException(Rowmq\TopicNotFound::class);
        $worker->run();
    }
}
