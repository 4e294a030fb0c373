<?php

declare(strict_types=1);

namespace Rowmq;

/** What a statement has done, and the rows that it has found. */
final class Rows
{
    /**
     * @internal
     * @param list<array<string, mixed>> $all
     */
    public function __construct(
        public readonly array $all,
        public readonly int $rowCount,
        public readonly string $lastInsertId,
    ) {
    }

    /**
     * Returns the first row.
     *
     * @return ?array<string, mixed>
     */
    public function first(): ?array
    {
        return $this->all[0] ?? null;
    }
}

/**
 * The open transaction that a handler's work and its ack share.
 *
 * Do not commit or roll back: the worker does. A handler that does, or whose statement does (DDL), has
 * its message dead-lettered, because it could be done twice otherwise.
 */
final class Transaction
{
    /** @internal Whether the worker has gone on: a later statement would be in another transaction. */
    public bool $isOver = false;

    /** @internal */
    public function __construct(private readonly Session $session)
    {
    }

    /**
     * Runs a statement; the values take the place of `?` or of names.
     *
     * @param array<int|string, mixed> $values
     */
    public function execute(string $sql, array $values = []): Rows
    {
        $this->check();
        return $this->session->execute($sql, $values);
    }

    /**
     * Returns the connection, for libraries that want one. From then on the worker sends no sign of
     * life of its own in this transaction: a handler that works for longer than the worker's lease
     * must send a statement in between.
     */
    public function connection(): \PDO
    {
        $this->check();
        return $this->session->share();
    }

    private function check(): void
    {
        if ($this->isOver) {
            throw new \LogicException('the transaction of this handler is over');
        }
    }
}
