<?php

declare(strict_types=1);

namespace Rowmq;

/** @internal The session has ended, or is in a state that nothing is known of. */
final class SessionLost extends \RuntimeException
{
}

/** @internal The handler has ended the transaction itself: its effects cannot be undone. */
final class TransactionEnded extends DeadLetter
{
    public function __construct()
    {
        parent::__construct('the handler has committed or rolled back its transaction');
    }
}

/** @internal A message and the token by which it is settled. */
final class Delivery
{
    public function __construct(public readonly string $token, public readonly Message $message)
    {
    }
}

/** @internal One session of a worker: it claims, runs the handler and settles. */
final class Session
{
    /** How long a claim waits for messages, in seconds: the worker may have to stop then. */
    public const WAIT = 1;

    /**
     * A deadlock, a lock that did not come, and MariaDB's changed row: the transaction is undone, and
     * may succeed the next time.
     */
    private const AGAIN = [1213, self::NO_LOCK, 1020];

    /** A lock did not come: most servers undo the statement only. */
    private const NO_LOCK = 1205;

    /** How often a transaction is tried again before its message has failed. */
    private const TRIES = 5;

    /** Another message with this business id has been handled: ack this one without its work. */
    private const REPEATED = 31023;

    /** There is no such savepoint. */
    private const NO_SAVEPOINT = 1305;

    /** The most statements that are kept prepared. */
    private const PREPARED = 100;

    /** @var array<string, \PDOStatement> */
    private array $prepared = [];
    private readonly bool $emulates;
    private bool $isShared = false;
    private bool $inTransaction = false;
    /** The error by which the server has undone the transaction although the handler goes on. */
    private ?int $undoneBy = null;
    /** Whether a statement is on its way. */
    private bool $isBusy = false;
    private float $spoke;
    private float $beaten;

    public function __construct(private ?\PDO $connection, private readonly int $lease)
    {
        $this->spoke = $this->beaten = hrtime(true) / 1e9;
        $this->emulates = (bool) $connection->getAttribute(\PDO::ATTR_EMULATE_PREPARES);
        $this->restoreAttributes();
        // It locks less, and on MariaDB never fails because a row has changed.
        $this->execute('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED');
        $this->execute("SET autocommit = 1, @queue_lease = $lease");
    }

    /** An error that PDO does not throw would be taken for success. */
    private function restoreAttributes(): void
    {
        $this->connection?->setAttribute(\PDO::ATTR_ERRMODE, \PDO::ERRMODE_EXCEPTION);
        $this->connection?->setAttribute(\PDO::ATTR_CASE, \PDO::CASE_NATURAL);
        $this->connection?->setAttribute(\PDO::ATTR_ORACLE_NULLS, \PDO::NULL_NATURAL);
    }

    /**
     * Runs a statement and reads all that it returns.
     *
     * @param array<int|string, mixed> $values
     */
    public function execute(string $sql, array $values = []): Rows
    {
        if ($this->undoneBy !== null) {
            throw new \LogicException('the server has undone the transaction after an error before');
        }
        if ($this->connection === null) {
            throw new SessionLost('the session is closed');
        }
        $this->isBusy = true;
        try {
            $statement = $this->sent($sql, $values);
            $rows = $statement->columnCount() > 0 ? $statement->fetchAll(\PDO::FETCH_ASSOC) : [];
            $rows = new Rows($rows, $statement->rowCount(), (string) $this->connection->lastInsertId());
            // A procedure may fail after its first rows.
            while ($statement->nextRowset()) {
            }
            $statement->closeCursor();
            return $rows;
        } catch (\PDOException $error) {
            $this->undoneBy = $this->inTransaction && self::isUndoing($error) ? Refused::codeOf($error) : null;
            throw Refused::named($error);
        } finally {
            $this->spoke = hrtime(true) / 1e9;
            $this->isBusy = false;
        }
    }

    /** @param array<int|string, mixed> $values */
    private function sent(string $sql, array $values): \PDOStatement
    {
        if ($values === []) {
            // MySQL cannot prepare every statement, and to prepare this one would take a round trip.
            $this->connection->setAttribute(\PDO::ATTR_EMULATE_PREPARES, true);
            try {
                return $this->connection->query($sql);
            } finally {
                $this->connection->setAttribute(\PDO::ATTR_EMULATE_PREPARES, $this->emulates);
            }
        }
        if (count($this->prepared) >= self::PREPARED) {
            $this->prepared = [];
        }
        $statement = $this->prepared[$sql] ??= $this->connection->prepare($sql);
        $statement->execute($values);
        return $statement;
    }

    /** Whether it is the session of this connection. */
    public function isOn(\PDO $connection): bool
    {
        return $this->connection === $connection;
    }

    public function isInTransaction(): bool
    {
        return $this->connection?->inTransaction() === true;
    }

    /** Returns the connection, and leaves it alone until the transaction ends. */
    public function share(): \PDO
    {
        $this->isShared = true;
        return $this->connection ?? throw new SessionLost('the session is closed');
    }

    /** Shows that the session is alive, if it has been silent and nothing else uses it. */
    public function beat(): void
    {
        [$now, $silence] = [hrtime(true) / 1e9, $this->lease / 4];
        $mayWait = $now - $this->beaten < $silence || ($this->inTransaction && $now - $this->spoke < $silence);
        if ($mayWait || $this->isBusy || $this->isShared || $this->undoneBy !== null || $this->connection === null) {
            return;
        }
        $this->isBusy = true;
        try {
            // In a transaction the call is refused, and any statement is a sign of life.
            $this->sent($this->inTransaction ? 'DO 0' : 'CALL queue_beat()', [])->closeCursor();
            $this->spoke = $this->beaten = hrtime(true) / 1e9;
        } catch (\PDOException) {
            // The session's own next statement tells.
        } finally {
            $this->isBusy = false;
        }
    }

    /**
     * Claims up to `limit` messages.
     *
     * @return list<Delivery>
     */
    public function claim(string $topic, int $limit, int $wait): array
    {
        try {
            $rows = $this->execute('CALL queue_claim(?, ?, ?)', [$topic, $limit, $wait]);
        } catch (\PDOException $error) {
            if (self::isUndoing($error)) {
                return [];
            }
            throw self::lost($error);
        }
        $this->beaten = hrtime(true) / 1e9;
        return array_map(fn (array $row) => $this->delivery($topic, $row), $rows->all);
    }

    /** @param array<string, mixed> $row */
    private function delivery(string $topic, array $row): Delivery
    {
        $token = (string) $row['delivery'];
        $save = function (string $state, ?int $progress) use ($token): void {
            if ($this->inTransaction) {
                // Its commit ends the message, and its rollback undoes the checkpoint.
                throw new \LogicException('a handler in a transaction saves no checkpoints');
            }
            $this->execute('CALL queue_checkpoint(?, ?, ?)', [$token, $state, $progress]);
        };
        $last = function () use ($token): ?Checkpoint {
            $row = $this->execute('CALL queue_last_checkpoint(?)', [$token])->first();
            return $row === null ? null : new Checkpoint(
                (int) $row['delivery_no'],
                Message::moment((string) $row['saved_at']),
                $row['progress'] === null ? null : (int) $row['progress'],
                (string) $row['state'],
            );
        };
        return new Delivery($token, Message::ofRow($topic, $row, $save, $last));
    }

    /**
     * Settles them, in the open transaction or in one of its own.
     *
     * @param list<Delivery> $deliveries
     */
    public function settle(array $deliveries, ?Verdict $verdict): void
    {
        $tokens = implode(',', array_map(static fn (Delivery $one) => $one->token, $deliveries));
        $settled = ['ack', null, null];
        if ($verdict !== null) {
            $settled = [$verdict->word, $verdict->reason === '' ? null : $verdict->reason, $verdict->delay];
        }
        $this->execute('CALL queue_settle(?, ?, ?, ?)', [$tokens, ...$settled]);
    }

    /**
     * Settles one in a transaction of its own; returns what became of it, null for ack. Throws
     * DeliveryLost if the session does not hold it any more.
     */
    public function settleAlone(Delivery $delivery, ?Verdict $verdict): ?Verdict
    {
        for ($tries = 0; $tries < self::TRIES; ++$tries) {
            try {
                $this->settle([$delivery], $verdict);
                if ($verdict instanceof Retry) {
                    $settled = $this->execute('SELECT @queue_settled AS settled')->first()['settled'] ?? null;
                    return $settled === 'dead-letter' ? new DeadLetter($verdict->reason) : $verdict;
                }
                return $verdict;
            } catch (DeliveryLost $error) {
                throw $error;
            } catch (Refused $error) {
                // 31025: the ack comes alone, and the work was undone.
                $verdict = new Retry($error);
            } catch (\PDOException $error) {
                $this->rollback();
                if (!self::isUndoing($error)) {
                    throw self::lost($error);
                }
            }
        }
        throw new SessionLost('a message could not be settled');
    }

    /**
     * Does the work of all and acks them in one transaction; returns why that was undone.
     *
     * @param list<Delivery> $deliveries
     */
    public function together(array $deliveries, callable $handle): ?\Throwable
    {
        $transaction = new Transaction($this);
        $isInWork = false;
        try {
            $this->execute('START TRANSACTION');
            $this->inTransaction = true;
            // It is gone if a handler ends the transaction.
            $this->execute('SAVEPOINT rowmq_work');
            $isInWork = true;
            foreach ($deliveries as $delivery) {
                $verdict = Verdict::checked($handle($transaction, $delivery->message));
                if ($verdict !== null) {
                    throw $verdict;
                }
            }
            $transaction->isOver = true;
            $this->toSavepoint('RELEASE SAVEPOINT rowmq_work');
            $isInWork = false;
            $this->settle($deliveries, null);
            $this->execute('COMMIT');
            $this->inTransaction = false;
            return null;
        } catch (\Throwable $error) {
            $transaction->isOver = true;
            return $this->undo($error, $isInWork);
        } finally {
            if ($this->isShared) {
                $this->isShared = false;
                $this->restoreAttributes();
            }
        }
    }

    /** Undoes the work; returns why it failed. */
    private function undo(\Throwable $error, bool $isInWork): \Throwable
    {
        $failure = $error;
        if ($isInWork && !$error instanceof TransactionEnded) {
            try {
                $this->undoWork($error);
            } catch (TransactionEnded $ended) {
                $failure = $ended;
            }
        }
        $this->rollback();
        return $failure;
    }

    /** Returns to the savepoint. Throws TransactionEnded if the handler has ended the transaction. */
    public function undoWork(?\Throwable $error): void
    {
        $code = $this->undoneBy ?? Refused::codeOf($error);
        $this->undoneBy = null;
        if ($code !== self::NO_LOCK && in_array($code, self::AGAIN, true)) {
            // The server has undone all of it.
            return;
        }
        try {
            $this->toSavepoint('ROLLBACK TO SAVEPOINT rowmq_work');
        } catch (TransactionEnded $ended) {
            if ($code !== self::NO_LOCK || !$this->execute('SELECT @@innodb_rollback_on_timeout AS yes')->first()['yes']) {
                throw $ended;
            }
        } catch (\PDOException $lost) {
            throw self::lost($lost);
        }
    }

    /** Throws TransactionEnded if there is no such savepoint any more. */
    public function toSavepoint(string $statement): void
    {
        try {
            $this->execute($statement);
        } catch (\PDOException $error) {
            throw Refused::codeOf($error) === self::NO_SAVEPOINT ? new TransactionEnded() : $error;
        }
    }

    /** Does the work of one message in a transaction of its own, and settles it. */
    public function alone(Delivery $delivery, callable $handle): ?Verdict
    {
        for ($tries = 0; $tries < self::TRIES; ++$tries) {
            $error = $this->together([$delivery], $handle);
            if ($error === null) {
                return null;
            }
            if ($error instanceof Verdict || !self::isUndoing($error)) {
                break;
            }
        }
        if ($error instanceof DeliveryLost) {
            throw $error;
        }
        if ($error instanceof Refused && $error->getCode() === self::REPEATED) {
            return $this->settleAlone($delivery, null);
        }
        return $this->settleAlone($delivery, Verdict::of($error));
    }

    /** Undoes what is open. A session that cannot do that is lost. */
    public function rollback(): void
    {
        [$this->inTransaction, $this->undoneBy] = [false, null];
        try {
            $this->execute('ROLLBACK');
        } catch (\PDOException $error) {
            throw self::lost($error);
        }
    }

    /** Gives back what was not handled. */
    public function leave(): void
    {
        try {
            $this->execute('CALL queue_leave()');
        } catch (\PDOException) {
            // The server gives it back when the session ends.
        }
    }

    /** Ends a session that is lost, even if someone else still holds its connection. */
    public function cut(): void
    {
        try {
            $this->connection?->exec('KILL CONNECTION_ID()');
        } catch (\PDOException) {
            // That is how a session ends that kills itself, or has ended already.
        }
        $this->close();
    }

    /** Disconnects. */
    public function close(): void
    {
        $this->prepared = [];
        $this->connection = null;
    }

    /** Whether the server has undone the transaction. */
    public static function isUndoing(\Throwable $error): bool
    {
        return in_array(Refused::codeOf($error), self::AGAIN, true);
    }

    private static function lost(\Throwable $error): SessionLost
    {
        return new SessionLost($error->getMessage(), 0, $error);
    }
}
