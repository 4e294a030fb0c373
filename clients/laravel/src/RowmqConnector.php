<?php

declare(strict_types=1);

namespace Rowmq\Laravel;

use Illuminate\Database\ConnectionResolverInterface;
use Illuminate\Queue\Connectors\ConnectorInterface;

/** @internal Makes a queue of an entry in config/queue.php. */
final class RowmqConnector implements ConnectorInterface
{
    /** As long as Laravel's other drivers wait, and longer than a worker's default `--timeout`. */
    private const LEASE = 90;

    public function __construct(private readonly ConnectionResolverInterface $connections)
    {
    }

    /** @param array<string, mixed> $config */
    public function connect(array $config): RowmqQueue
    {
        return new RowmqQueue(
            $this->connections,
            $config['connection'] ?? $this->connections->getDefaultConnection(),
            $config['queue'] ?? 'default',
            (int) ($config['retry_after'] ?? self::LEASE),
            (int) ($config['block_for'] ?? 1),
            (bool) ($config['after_commit'] ?? false),
        );
    }
}
